"""What the emulator refuses, and the accesses and endless loops that it stops: one line each."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
from small_assembly import aligned, emulator, run, text_of

from ratchet.amd.emulator.clock import LaunchClock
from ratchet.amd.emulator.decode import decode
from ratchet.amd.emulator.launch import KernelLaunch, LaunchMemory, assembly, timeline
from ratchet.base.errors import KernelError


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("v_frobnicate_b32 v4, v1", "the instruction v_frobnicate_b32 is not emulated"),
        ("v_add_f32_e64 v4, v1, v2 wobble:3", "the modifier wobble:3 is not emulated"),
        ("v_add_u32_e32 v4, v1", "v_add_u32 has 2 operands and not 3"),
        ("v_add_u32_e32 v4, v1, ttmp3", "the operand 'ttmp3' is not known"),
        ("v_add_u32_e32 s4, v1, v2", "the operand s4 cannot be written"),
        ("v_mov_b32_e32 v4, v300", "the register v300 does not exist"),
        ("v_add_f64 v[4:5], v1, v[2:3]", "the operand v1 has not 2 registers"),
        ("s_branch .LBB9_9", "the branch's label '.LBB9_9' is not known"),
        ("v_mfma_f64_16x16x4_f64 v[4:7], v[0:1], v[2:3], 0", "v[4:7] has not 8 vector registers"),
        ("v_mfma_f32_16x16x9_xf32 v[4:7], v[0:1], v[2:3], 0", "is not emulated for gfx942"),
        ("v_smfmac_f32_16x16x32_f16 v[4:7], v[0:1], v[2:5], v6", "is not emulated"),
        ("v_mfma_f32_32x32x16_bf16 v[4:19], v[0:3], v[4:7], 0", "is not emulated for gfx942"),
        ("v_pk_add_f16 v4, v1, 1.0", "the high half of a constant is not defined"),
        ("buffer_load_dword v4, v0, s[8:11], 0 idxen", "the modifier idxen is not emulated"),
    ],
)
def test_what_is_not_known_is_named(body: str, words: str) -> None:
    with pytest.raises(KernelError) as error:
        decode(text_of(body))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("v_mfma_f32_32x32x8_bf16", "gfx90a"),  # its own name has no underscore, and ends in _1k
        ("v_mfma_f32_32x32x4_2b_bf16", "gfx90a"),
        ("v_mfma_f32_16x16x32_fp8_fp8", "gfx90a"),
        ("v_mfma_f32_32x32x8bf16_1k", "gfx942"),
    ],
)
def test_a_matrix_instruction_of_another_target_is_refused(name: str, target: str) -> None:
    with pytest.raises(KernelError, match=f"{name} is not emulated for {target}"):
        decode(text_of(f"{name} v[16:31], v[2:3], v[4:5], 0", target=target))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("amdhsa--gfx942", "amdhsa--gfx1030", "code for gfx1030 is not emulated"),
        ("wavefront_size: 64", "wavefront_size: 32", "waves of 32 lanes are not emulated"),
        (".name:           small", ".label: small", "describes 0 kernels"),
        (".size:           8", ".sizes:          8", "arguments is damaged"),
        ('.amdgcn_target "amdgcn-amd-amdhsa--gfx942"', ".target sm_90", "not for an AMD GPU"),
    ],
)
def test_a_text_that_is_no_kernel_for_these_targets_is_refused(
    old: str, new: str, words: str
) -> None:
    text = text_of("s_nop 0")
    assert old in text
    with pytest.raises(KernelError, match=words):
        decode(text.replace(old, new))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "global_load_dword v4, v0, s[6:7] offset:1024",
            "at small.py:8 (global_load_dword): an access of 4 bytes ends",
        ),
        ("v_mov_b32_e32 v6, 0\nv_mov_b32_e32 v7, 0\nglobal_load_dword v4, v[6:7], off",
         "lies in no tensor"),
        ("ds_read_b32 v4, v0 offset:1024", "is outside the 1024 bytes of LDS"),
        ("scratch_load_dword v4, off, off offset:8", "is outside a lane's 8 bytes of scratch"),
        (".LBB0_1:\ns_branch .LBB0_1", "ran for 100000 instructions without an end"),
        ("s_trap 2", "a device assertion failed"),
    ],
)  # fmt: skip
def test_a_fault_names_the_source_line(body: str, words: str) -> None:
    with pytest.raises(KernelError) as error:
        run(body, scratch=8)
    assert words in str(error.value)
    assert "in the kernel small at small.py:8" in str(error.value)


def test_a_register_that_was_never_written_is_poisoned() -> None:
    found, _, _ = run("v_mov_b32_e32 v4, v99")
    assert found == [0xFFF7BAD5] * 64


HANDED_OVER = """
ds_write_b32 v0, v1
s_waitcnt lgkmcnt(0)
s_barrier
v_xor_b32_e32 v6, 0x100, v0
ds_read_b32 v4, v6
s_waitcnt lgkmcnt(0)
s_barrier
ds_write_b32 v0, v2
ds_read_b32 v5, v0
s_waitcnt lgkmcnt(0)
"""
"""Each of two waves stores its words, reads the other's, and stores others in their place."""


@pytest.mark.parametrize("backwards", [False, True])
def test_waves_that_meet_at_barriers_hand_over_values(backwards: bool) -> None:
    first, second = range(128), range(1000, 1128)
    theirs, own, _ = run(HANDED_OVER, first, second, threads=128, backwards=backwards)
    assert theirs == [*range(64, 128), *range(64)] and own == list(second)


@pytest.mark.parametrize(
    ("barrier", "backwards", "words"),
    [
        (0, False, r"\(ds_write_b32\): a race in LDS: wave 1 changes at 256 what wave 0 read"),
        (0, True, r"\(ds_write_b32\): a race in LDS: wave 0 changes at 0 what wave 1 read"),
        (1, False, r"\(ds_read_b32\): a race in LDS: wave 1 reads at 0 what wave 0 wrote"),
        (1, True, r"\(ds_read_b32\): a race in LDS: wave 0 reads at 256 what wave 1 wrote"),
    ],
)
def test_a_barrier_that_is_missing_is_a_race(barrier: int, backwards: bool, words: str) -> None:
    lines = HANDED_OVER.strip().splitlines()
    del lines[[at for at, line in enumerate(lines) if line == "s_barrier"][barrier]]
    with pytest.raises(
        KernelError, match=words + r".* since the last barrier, there at small\.py:8"
    ):
        run("\n".join(lines), range(128), range(128, 256), threads=128, backwards=backwards)


def test_one_value_that_two_waves_store_is_no_race() -> None:
    body = (
        "v_and_b32_e32 v6, 0xff, v0\nds_write_b32 v6, v1\nds_read_b32 v4, v6\ns_waitcnt lgkmcnt(0)"
    )
    read, _, _ = run(body, range(64), threads=128)
    assert read == [*range(64), *range(64)]


@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
def test_copies_in_a_waves_lanes_may_differ_in_their_last_bits(target: str) -> None:
    """Lanes that hold copies of a sum may have added in another order: the last lane's stays."""
    lanes = 64 if target == "gfx942" else 32
    store, load = ("write", "read") if target == "gfx942" else ("store", "load")
    body = f"v_mov_b32_e32 v6, 0\nds_{store}_b32 v6, v1\nds_{load}_b32 v4, v6"
    given = {"threads": 2 * lanes, "target": target}
    read, _, _ = run(body, range(lanes), **given)
    assert read == [lanes - 1] * 2 * lanes
    with pytest.raises(KernelError, match="wave 1 changes at 0 what wave 0 wrote"):
        run(body, range(2 * lanes), **given)


def test_bytes_beside_each_other_are_no_race() -> None:
    body = "v_lshrrev_b32_e32 v6, 2, v0\nv_lshlrev_b32_e32 v7, 1, v6\nv_and_b32_e32 v7, 0x7f, v7\n"
    body += "v_lshrrev_b32_e32 v8, 6, v6\nv_or_b32_e32 v7, v7, v8\n"
    body += "ds_write_b8 v7, v1\nds_read_u8 v4, v7\ns_waitcnt lgkmcnt(0)"
    read, _, _ = run(body, range(128), threads=128)
    assert read == list(range(128))


def test_counts_are_those_of_a_hand() -> None:
    _, _, counts = run(HANDED_OVER, range(128), range(128), threads=128)
    assert counts.by_mnemonic["ds_write_b32"] == 4 and counts.by_mnemonic["s_barrier"] == 4
    assert counts.lanes["ds_read_b32"] == 4 * 64
    assert counts.lds_bytes == 8 * 64 * 4 and counts.lds_conflicts == 0
    assert (counts.bytes, counts.stored_bytes) == (5 * 128 * 4, 2 * 128 * 4)
    tensors = 3 * 128 * 4, 2 * 128 * 4
    assert sum(tensors) <= counts.touched_bytes <= sum(tensors) + 2 * 64
    assert counts.lines_64 * 64 >= counts.touched_bytes


def test_the_order_of_the_waves_is_that_of_a_hand() -> None:
    _, _, counts = run(HANDED_OVER, range(128), range(128), threads=128)
    kernel = decode(text_of(HANDED_OVER, threads=128))
    shown = timeline(kernel, counts)
    # 4 cycles an instruction: 9 of line 7, then 3, 4 and 3 of line 8 around barriers, 3 of line 9
    assert (shown["cycles"], shown["slot"], shown["barriers"]) == (88, 1, [48, 64])
    places = [place.rpartition("/")[2] for place in shown["places"]]
    assert places == ["small.py:7", "small.py:8", "small.py:9"]
    assert shown["waves"] == [[(0, 0, 36), (1, 36, 76), (2, 76, 88)]] * 2
    listed = {place.rpartition("/")[2]: lines for place, lines in assembly(kernel, counts).items()}
    assert ("ds_write_b32 v0, v1", 2) in listed["small.py:8"]
    assert listed["small.py:9"][-1] == ("s_endpgm", 2)


WAITS = """
s_cmp_lg_u32 s2, 0
s_cbranch_scc1 .LBB0_2
.LBB0_1:
global_load_dword v4, v0, s[6:7] sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s8, v4
s_cmp_eq_u32 s8, 7
s_cbranch_scc0 .LBB0_1
s_branch .LBB0_3
.LBB0_2:
v_mov_b32_e32 v4, 7
.LBB0_3:
"""


@pytest.mark.compiler
def test_a_workgroup_may_wait_for_a_later_one() -> None:
    kernel = decode(text_of(WAITS))
    source, target = aligned(192), aligned(128)
    places = [ctypes.addressof(one) for one in (source, target)]
    launch = KernelLaunch(
        kernel=kernel,
        grid=(2, 1, 1),
        threads=64,
        shared_bytes=0,
        values=[("*i32", place) for place in places],
        memories=[LaunchMemory(places[0], 768), LaunchMemory(places[1], 512)],
    )
    counts = emulator("gfx942").run(launch, limit=10_000_000)
    assert list(target[:64]) == [7] * 64 and counts.instructions > 1_000_000
    target[:64] = [0] * 64  # the first waits for ever, if it is played alone
    few = replace(counts, instructions=1000)
    assert LaunchClock(emulator("gfx942")).predicted_s(launch, few, 2) is None
