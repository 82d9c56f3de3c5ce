"""Missing waits: a kernel with one is stopped, and its twin that waits is right.

Each case has a line `WAIT`, which becomes the wait that is needed, the weakest that is not enough
(`too_weak`), or nothing.
"""

from __future__ import annotations

import re

import pytest
from small_assembly import run, text_of

from ratchet.amd.emulator import waits
from ratchet.amd.emulator.decode import decode
from ratchet.base.errors import KernelError

pytestmark = pytest.mark.compiler
LANES = {"gfx90a": 64, "gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1201": 32}
LOAD, STORE = "global_load_dword", "global_store_dword"
CDNA = ("gfx90a", "gfx942", "gfx950")
RDNA_NAMES = {
    "global_load_dword ": "global_load_b32 ", "global_store_dword ": "global_store_b32 ",
    "flat_load_dword ": "flat_load_b32 ", "s_load_dword ": "s_load_b32 ",
    "buffer_load_dword ": "buffer_load_b32 ", "scratch_load_dword ": "scratch_load_b32 ",
    "scratch_store_dword ": "scratch_store_b32 ",
}  # fmt: skip


def weaker(wait: str) -> list[str]:
    """Waits that are not enough: none, and for one operation less where that can be said."""
    return ["", wait.replace("(0)", "(1)").replace("0x0", "0x1")]


def on(target: str, body: str) -> str:
    """The lines with the target's names; RDNA 4 has its barrier in two halves."""
    if target in CDNA:
        return body
    for name, new in RDNA_NAMES.items():
        body = body.replace(name, new)
    halves = "s_barrier_signal -1\ns_barrier_wait -1"
    return re.sub(r"s_barrier\b", halves, body) if target == "gfx1201" else body


def outcome(body: str, target: str, waves: int = 2, **given: object) -> str:
    """The fault of a kernel, or nothing."""
    threads = LANES[target] * waves
    try:
        run(
            on(target, body), range(threads), range(threads), target=target, threads=threads,
            waits=False, scratch=8, lds=4096, **given,
        )  # fmt: skip
    except KernelError as error:
        return str(error)
    return ""


VECTOR_LOAD = """global_load_dword v4, v0, s[4:5]
WAIT
v_add_u32_e32 v5, v4, v4"""
OVERWRITTEN = """global_load_dword v4, v0, s[4:5]
WAIT
v_mov_b32_e32 v4, 0"""
"""The load would come after the move."""
ADDRESS = """ds_write_b32 v0, v0
ds_read_b32 v6, v0
WAIT
ds_write_b32 v6, v1"""
OTHER_QUEUE = """ds_read_b32 v4, v0
WAIT
global_load_dword v4, v0, s[4:5]
LOADED"""
SCALAR_LOAD = """s_load_dword s8, s[4:5], 0x0
WAIT
s_add_i32 s9, s8, 1"""
SCALAR_TWICE = """s_load_dword s8, s[4:5], 0x0
s_load_dword s9, s[4:5], 0x4
WAIT
s_mov_b32 s10, s8"""
"""Scalar loads come back in no order, so the first of two needs a wait for both."""
SCALAR_OVER = """s_load_dword s8, s[4:5], 0x0
WAIT
s_load_dword s8, s[4:5], 0x4"""
LDS_LOAD = """v_mov_b32_e32 v6, 0
ds_read_b32 v4, v6
WAIT
v_mov_b32_e32 v5, v4"""
ACROSS = """v_mov_b32_e32 v6, 0
ds_bpermute_b32 v4, v6, v1
WAIT
v_mov_b32_e32 v5, v4"""
SCRATCH = """scratch_load_dword v4, off, off
WAIT
v_mov_b32_e32 v5, v4"""
ATOMIC = """v_mov_b32_e32 v6, 0
ds_add_rtn_u32 v4, v6, v1
WAIT
v_mov_b32_e32 v5, v4"""
VCC = """s_load_dword vcc_lo, s[4:5], 0x0
s_mov_b32 vcc_hi, 0
WAIT
s_cbranch_vccz .LBB0_1
.LBB0_1:"""
LDS_READ = """ds_read_b32 v4, v0
WAIT
s_barrier
v_xor_b32_e32 v6, XOR, v0
ds_write_b32 v6, v1
SHARED
s_barrier"""
"""The other wave changes behind the barrier what a read in flight has yet to read."""
LDS_WRITE = """ds_write_b32 v0, v2
WAIT
s_barrier
v_xor_b32_e32 v6, XOR, v0
ds_read_b32 v4, v6
SHARED"""
LDS_TWO = """ds_read2_b32 v[4:5], v0 offset1:1
WAIT
s_barrier
v_xor_b32_e32 v6, XOR, v0
ds_write_b32 v6, v1 offset:4
SHARED"""
LOADED = {"gfx1201": "s_wait_loadcnt 0x0"}
SHARED = {"gfx1201": "s_wait_dscnt 0x0"}
SCALAR = {"gfx1201": "s_wait_kmcnt 0x0"}
VMCNT, LGKMCNT = "s_waitcnt vmcnt(0)", "s_waitcnt lgkmcnt(0)"
CASES = {
    "vector load": (VECTOR_LOAD, LOADED, VMCNT, "v4 is used"),
    "overwritten": (OVERWRITTEN, LOADED, VMCNT, "v4 is used"),
    "scratch": (SCRATCH, LOADED, VMCNT, "v4 is used"),
    "address": (ADDRESS, SHARED, LGKMCNT, "v6 is used"),
    "two queues": (OTHER_QUEUE, SHARED, LGKMCNT, "v4 is used"),
    "scalar load": (SCALAR_LOAD, SCALAR, LGKMCNT, "s8 is used"),
    "scalar loads": (SCALAR_TWICE, SCALAR, LGKMCNT, "s8 is used"),
    "scalar over": (SCALAR_OVER, SCALAR, LGKMCNT, "s8 is used"),
    "vcc": (VCC, SCALAR, LGKMCNT, "vcc is used"),
    "lds load": (LDS_LOAD, SHARED, LGKMCNT, "v4 is used"),
    "lanes": (ACROSS, SHARED, LGKMCNT, "v4 is used"),
    "atomic": (ATOMIC, SHARED, LGKMCNT, "v4 is used"),
    "lds read": (LDS_READ, SHARED, LGKMCNT, r"changes at \d+ what wave \d read before"),
    "lds write": (LDS_WRITE, SHARED, LGKMCNT, r"reads at \d+ what wave \d wrote before"),
    "two lds reads": (LDS_TWO, SHARED, LGKMCNT, r"changes at \d+ what wave \d read before"),
}


def filled(body: str, target: str, wait: str) -> str:
    """The lines with their waits; the two waves' places in LDS differ in one bit."""
    body = body.replace("XOR", hex(4 * LANES[target])).replace("WAIT", wait)
    body = body.replace("LOADED", LOADED.get(target, VMCNT))
    ended = {"gfx1201": "s_wait_idle"}.get(target, "s_waitcnt 0")
    return body.replace("SHARED", SHARED.get(target, LGKMCNT)) + "\n" + ended


@pytest.mark.parametrize("target", LANES)
@pytest.mark.parametrize("name", CASES)
def test_a_missing_wait_is_told_and_its_twin_is_right(name: str, target: str) -> None:
    body, by_target, wait, words = CASES[name]
    wait = by_target.get(target, wait)
    assert outcome(filled(body, target, wait), target) == ""
    for weak in weaker(wait):
        said = outcome(filled(body, target, weak), target)
        counter = wait.split("_")[-1].split()[0] if target == "gfx1201" else wait[10:-3]
        assert re.search(words, said), (name, target, weak, said)
        assert f"({counter}), there at small.py:8 (" in said
        assert "in the kernel small at small.py:8" in said


def test_every_counter_of_a_wait_is_known() -> None:
    """What `s_waitcnt` says as a number, and the others' limits, by the queue that they are of."""
    for line, target, left in [
        ("s_waitcnt vmcnt(3) lgkmcnt(2)", "gfx90a", (3, -1, 2, 2)),
        ("s_waitcnt vmcnt(3) & expcnt(0) & lgkmcnt(2)", "gfx942", (3, -1, 2, 2)),
        ("s_waitcnt 0", "gfx942", (0, -1, 0, 0)),
        ("s_waitcnt 0xc07f", "gfx942", (63, -1, 0, 0)),
        ("s_waitcnt 0xfc07", "gfx1100", (63, -1, 0, 0)),
        ("s_waitcnt expcnt(0)", "gfx950", (-1, -1, -1, -1)),
        ("s_waitcnt_vscnt null, 0x0", "gfx1100", (-1, 0, -1, -1)),
        ("s_waitcnt_vmcnt null, 0x2", "gfx1100", (2, -1, -1, -1)),
        ("s_waitcnt_lgkmcnt null, 0x1", "gfx1100", (-1, -1, 1, 1)),
        ("s_waitcnt_expcnt null, 0x0", "gfx1100", (-1, -1, -1, -1)),
        ("s_wait_loadcnt 0x2", "gfx1201", (2, -1, -1, -1)),
        ("s_wait_storecnt 0x0", "gfx1201", (-1, 0, -1, -1)),
        ("s_wait_dscnt 0x4", "gfx1201", (-1, -1, 4, -1)),
        ("s_wait_kmcnt 0x0", "gfx1201", (-1, -1, -1, 0)),
        ("s_wait_bvhcnt 0x0", "gfx1201", (-1, -1, -1, -1)),
        ("s_wait_samplecnt 0x0", "gfx1201", (-1, -1, -1, -1)),
        ("s_wait_expcnt 0x0", "gfx1201", (-1, -1, -1, -1)),
        ("s_wait_loadcnt_dscnt 0x102", "gfx1201", (1, -1, 2, -1)),
        ("s_wait_storecnt_dscnt 0x300", "gfx1201", (-1, 3, 0, -1)),
        ("s_wait_idle", "gfx1201", (0, 0, 0, 0)),
    ]:
        name, _, rest = line.partition(" ")
        record = waits.wait(name, rest, target)
        assert record is not None and tuple(record.aux) == left, line


@pytest.mark.parametrize(
    ("line", "target"),
    [("s_waitcnt vscnt(0)", "gfx1100"), ("s_waitcnt wobble(0)", "gfx942"),
     ("s_waitcnt vmcnt(0)", "gfx1201")],
)  # fmt: skip
def test_a_counter_that_the_target_does_not_have_is_refused(line: str, target: str) -> None:
    with pytest.raises(KernelError, match="is not known"):
        decode(text_of(line, target=target))


@pytest.mark.parametrize(
    ("body", "target", "words"),
    [
        # loads come back in order: with one left, all but the last are done
        (f"{LOAD} v4, v0, s[4:5]\n{LOAD} v5, v0, s[4:5]\ns_waitcnt vmcnt(1)\nv_mov_b32 v6, v4",
         "gfx942", ""),
        (f"{LOAD} v4, v0, s[4:5]\n{LOAD} v5, v0, s[4:5]\ns_waitcnt vmcnt(1)\nv_mov_b32 v6, v5",
         "gfx942", "v5 is used"),
        # gfx9 counts stores in vmcnt too, RDNA in a counter of their own
        (f"{LOAD} v4, v0, s[4:5]\n{STORE} v0, v1, s[6:7]\ns_waitcnt vmcnt(1)\nv_mov_b32 v6, v4",
         "gfx90a", ""),
        (f"{LOAD} v4, v0, s[4:5]\n{STORE} v0, v1, s[6:7]\ns_waitcnt vmcnt(1)\nv_mov_b32 v6, v4",
         "gfx1100", "v4 is used"),
        (f"{LOAD} v4, v0, s[4:5]\n{STORE} v0, v1, s[6:7]\ns_wait_loadcnt 0x1\nv_mov_b32 v6, v4",
         "gfx1201", "v4 is used"),
        # of LDS and scalar loads in one counter, LDS is in order among itself
        ("ds_read_b32 v4, v0\nds_read_b32 v5, v0\ns_load_dword s8, s[4:5], 0x0\n"
         "s_waitcnt lgkmcnt(1)\nv_mov_b32 v6, v4", "gfx942", ""),
        ("ds_read_b32 v4, v0\ns_load_dword s8, s[4:5], 0x0\n"
         "s_waitcnt lgkmcnt(1)\nv_mov_b32 v6, v4", "gfx942", "v4 is used"),
        ("s_load_dword s8, s[4:5], 0x0\nds_read_b32 v4, v0\n"
         "s_waitcnt lgkmcnt(1)\ns_mov_b32 s9, s8", "gfx942", "s8 is used"),
        # RDNA 4 counts them apart
        ("s_load_dword s8, s[4:5], 0x0\nds_read_b32 v4, v0\n"
         "s_wait_dscnt 0x0\nv_mov_b32 v6, v4\ns_wait_kmcnt 0x0\ns_mov_b32 s9, s8", "gfx1201", ""),
        ("s_load_dword s8, s[4:5], 0x0\ns_wait_dscnt 0x0\ns_mov_b32 s9, s8", "gfx1201",
         "s8 is used"),
        # exports alone have expcnt: it says nothing of a load, and a store's data may be replaced
        (f"{LOAD} v4, v0, s[4:5]\ns_waitcnt expcnt(0)\nv_mov_b32 v6, v4", "gfx942", "v4 is used"),
        (f"{STORE} v0, v1, s[6:7]\nv_mov_b32 v1, 0", "gfx942", ""),
        (f"{STORE} v0, v1, s[6:7]\nv_mov_b32 v1, 0", "gfx1100", ""),
        ("ds_write_b32 v0, v1\nv_mov_b32 v1, 0", "gfx942", ""),
        # a full counter stalls the wave: of 64 loads one is done
        (f"{LOAD} v4, v0, s[4:5]\n" + f"{LOAD} v5, v0, s[4:5]\n" * 63 + "v_mov_b32 v6, v4",
         "gfx942", ""),
        (f"{LOAD} v4, v0, s[4:5]\n" + f"{LOAD} v5, v0, s[4:5]\n" * 62 + "v_mov_b32 v6, v4",
         "gfx942", "v4 is used"),
        # two loads of one queue into a register are in order
        (f"{LOAD} v4, v0, s[4:5]\n{LOAD} v4, v0, s[4:5] offset:4", "gfx942", ""),
        # lanes that were off at the load keep their values
        (f"s_mov_b64 exec, 1\n{LOAD} v4, v0, s[4:5]\ns_mov_b64 exec, 2\nv_mov_b32 v4, 1\n"
         "s_mov_b64 exec, -1", "gfx942", ""),
        (f"s_mov_b64 exec, 1\n{LOAD} v4, v0, s[4:5]\ns_mov_b64 exec, 3\nv_mov_b32 v4, 1",
         "gfx942", "v4 is used"),
        # the halves of a double operation, of an accumulation register, of a wide load
        ("ds_read_b64 v[4:5], v0\nv_mov_b32 v6, v5", "gfx942", "v5 is used"),
        (f"{LOAD} a4, v0, s[4:5]\nv_accvgpr_read_b32 v6, a4", "gfx942", "a4 is used"),
        (f"{LOAD} v4, v0, s[4:5]\nv_dual_mov_b32 v6, v1 :: v_dual_mov_b32 v7, v4", "gfx1100",
         "v4 is used"),
        # a write-back counts as an access
        (f"{LOAD} v4, v0, s[4:5]\nbuffer_wbl2 sc1\ns_waitcnt vmcnt(1)\nv_mov_b32 v6, v4",
         "gfx942", ""),
    ],
)  # fmt: skip
def test_a_counter_says_what_is_done(body: str, target: str, words: str) -> None:
    ended = {"gfx1201": "s_wait_idle"}.get(target, "s_waitcnt 0")
    said = outcome(f"{body}\n{ended}", target, waves=1)
    assert words in said if words else said == ""


FLAT = """v_mov_b32_e32 v6, v0
v_mov_b32_e32 v7, {high}
flat_load_dword v4, v[6:7]
{more}
{wait}
v_mov_b32_e32 v5, v4"""


@pytest.mark.parametrize(
    ("target", "high", "more", "wait", "words"),
    [
        # in LDS: the counter of LDS; on gfx9 such a load comes back in no order
        ("gfx942", "src_shared_base", "", "s_waitcnt lgkmcnt(0)", ""),
        ("gfx942", "src_shared_base", "", "s_waitcnt vmcnt(0)", "v4 is used"),
        ("gfx942", "src_shared_base", "ds_read_b32 v8, v0", "s_waitcnt lgkmcnt(1)", "v4 is used"),
        ("gfx1100", "src_shared_base", "ds_load_b32 v8, v0", "s_waitcnt lgkmcnt(1)", ""),
        ("gfx1201", "src_shared_base", "", "s_wait_dscnt 0x0", ""),
        ("gfx1201", "src_shared_base", "", "s_wait_loadcnt 0x0", "v4 is used"),
        # in memory: the counter of loads
        ("gfx942", "memory", "", "s_waitcnt vmcnt(0)", ""),
        ("gfx942", "memory", "", "s_waitcnt lgkmcnt(0)", "v4 is used"),
        ("gfx1100", "memory", "", "s_waitcnt vmcnt(0)", ""),
        ("gfx1201", "memory", "", "s_wait_dscnt 0x0", "v4 is used"),
    ],
)
def test_a_flat_load_counts_where_it_goes(
    target: str, high: str, more: str, wait: str, words: str
) -> None:
    if high == "memory":
        body = FLAT.replace("v_mov_b32_e32 v6, v0", "v_mov_b32_e32 v6, s4")
        body = body.format(high="s5", more=more, wait=wait)
    else:
        wide = "s_mov_b64 s[8:9], {high}\nv_mov_b32_e32 v7, s9"
        body = FLAT.replace("v_mov_b32_e32 v7, {high}", wide)
        body = body.format(high=high, more=more, wait=wait)
    ended = {"gfx1201": "s_wait_idle"}.get(target, "s_waitcnt 0")
    said = outcome(f"{body}\n{ended}", target, waves=1)
    assert words in said if words else said == ""


TO_LDS = """s_mov_b32 s8, 0
v_cmp_gt_u32_e32 vcc, 0x100, v0
s_cbranch_vccnz .LBB0_1
s_mov_b32 s8, 0x100
.LBB0_1:
s_mov_b32 m0, s8
{load}
{before}
s_barrier
v_xor_b32_e32 v6, {other}, v0
ds_read_b32 v4, v6
s_waitcnt 0"""
"""Each wave loads its words to LDS, and reads its own or the other's."""


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("load", ["global_load_lds_dword v0, s[4:5]"])
@pytest.mark.parametrize(
    ("before", "other", "words"),
    [
        ("s_waitcnt vmcnt(0)", "0x100", ""),
        ("", "0x100", "reads at 256 what wave 1 wrote before the last barrier without waiting"),
        ("s_waitcnt lgkmcnt(0)", "0x100", "wrote before the last barrier"),
        ("s_waitcnt vmcnt(0)", "0", ""),
        ("", "0", "the bytes at 0 in LDS are used before the load to them has been waited for"),
    ],
)
def test_a_load_to_lds_is_waited_for(
    target: str, load: str, before: str, other: str, words: str
) -> None:
    said = outcome(TO_LDS.format(load=load, before=before, other=other), target)
    assert words in said if words else said == ""
    if words:
        assert "(vmcnt), there at small.py:8 (global_load_lds_dword)" in said


HANDED_OVER = """global_store_dword v0, v1, s[6:7]
{wait}
s_barrier
v_xor_b32_e32 v6, 0x80, v0
global_load_dword v4, {place}, s[6:7]
{loaded}"""


@pytest.mark.parametrize(
    ("target", "loaded", "stored"),
    [("gfx1100", "s_waitcnt vmcnt(0)", "s_waitcnt_vscnt null, 0x0"),
     ("gfx1201", "s_wait_loadcnt 0x0", "s_wait_storecnt 0x0")],
)  # fmt: skip
def test_a_store_is_waited_for_where_waves_have_several_caches(
    target: str, loaded: str, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compute units of a work-group processor have caches of their own (RDNA's WGP mode)."""
    mode = "\t.amdhsa_workgroup_processor_mode 1"
    for wait, place, beside, words in [
        (stored, "v6", mode, ""),
        (loaded, "v6", mode, r"a race: wave 0 reads what wave 1 stored before the last barrier"),
        (loaded, "v0", mode, ""),  # its own
        (loaded, "v6", "", ""),  # all waves in one compute unit
    ]:
        body = HANDED_OVER.format(wait=wait, place=place, loaded=loaded)
        said = outcome(body, target, beside=beside)
        assert re.search(words, said) if words else said == "", (wait, place)
    for target in CDNA:  # one cache, in which accesses are in order
        body = HANDED_OVER.format(wait="", place="v6", loaded="s_waitcnt vmcnt(0)")
        assert outcome(body.replace("0x80", "0x100"), target) == ""


SPLIT = """ds_store_b32 v0, v2
{first}
s_barrier_signal -1
{second}
s_barrier_wait -1
v_xor_b32_e32 v6, 0x80, v0
ds_load_b32 v4, v6
s_wait_dscnt 0x0"""


def test_what_is_in_flight_at_a_barrier_s_signal_is_late() -> None:
    """Others go on once a wave has signalled, whether or not it waits before its own end."""
    wait = "s_wait_dscnt 0x0"
    assert outcome(SPLIT.format(first=wait, second=""), "gfx1201") == ""
    said = outcome(SPLIT.format(first="", second=wait), "gfx1201")
    assert "wrote before the last barrier without waiting for it (dscnt)" in said


def test_what_several_waves_write_alike_is_no_race() -> None:
    body = """v_mov_b32_e32 v6, 0
    v_mov_b32_e32 v7, 7
    ds_write_b32 v6, v7
    s_barrier
    ds_read_b32 v4, v6
    s_waitcnt lgkmcnt(0)"""
    assert outcome(body, "gfx942") == ""


SHIFTED = """v_xor_b32_e32 v6, 0x100, v0
v_cmp_gt_u32_e32 vcc, 0x100, v0
{first}
s_barrier
.LBB0_1:
ds_read_b32 v4, v0
{before}
s_barrier
{after}
v_add_u32_e32 v5, v4, v4
s_barrier
ds_write_b32 v6, v1
s_waitcnt lgkmcnt(0)
s_barrier
{last}
s_barrier
.LBB0_2:"""
"""A ping-pong of two waves: one may be a barrier behind. Each writes what the other has read."""


@pytest.mark.parametrize("target", CDNA)
def test_a_wave_that_is_a_barrier_behind_waits_before_its_own(target: str) -> None:
    """Its wait behind the barrier is late: the other has passed one more, and writes."""
    wait = LGKMCNT
    alike = {"first": "s_branch .LBB0_1", "last": "s_branch .LBB0_2"}
    behind = {"first": "s_cbranch_vccnz .LBB0_1", "last": "s_cbranch_vccz .LBB0_2"}
    late = r"wave 0 changes at \d+ what wave 1 read before the last barrier without waiting"
    for how, before, after, words in [
        (alike, wait, "", ""),
        (alike, "", wait, ""),
        (behind, wait, "", ""),
        (behind, "", wait, late),
    ]:
        said = outcome(SHIFTED.format(**how, before=before, after=after), target)
        assert re.search(words, said) if words else said == "", (how, before)
