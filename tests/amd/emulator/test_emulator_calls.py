"""Functions that were not inlined, tables of constants, and words of which a tensor has a part."""

from __future__ import annotations

import ctypes

import pytest
from small_assembly import aligned, emulator, run, text_of

from ratchet.amd.emulator.decode import decode
from ratchet.amd.emulator.launch import KernelLaunch, LaunchMemory
from ratchet.amd.emulator.linking import linked_kernel
from ratchet.base.errors import KernelError

pytestmark = pytest.mark.compiler
TARGETS = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"]
NAMES = {
    "gfx1100": {"s_load_dword": "s_load_b32"},
    "gfx1201": {
        "s_load_dword": "s_load_b32",
        "s_add_i32": "s_add_co_i32",
    },
}
"""Names of a target that has others than CDNA."""


def found_at(name: str, more: int = 0, *, target: str = "gfx942") -> str:
    """Lines that put an address into s[8:9], by its distance from the program counter."""
    if target == "gfx1201":
        return f"""s_getpc_b64 s[8:9]
\ts_wait_alu depctr_sa_sdst(0)
\ts_sext_i32_i16 s9, s9
\ts_add_co_u32 s8, s8, {name}@rel32@lo+{12 + more}
\ts_wait_alu depctr_sa_sdst(0)
\ts_add_co_ci_u32 s9, s9, {name}@rel32@hi+{24 + more}"""
    return f"""s_getpc_b64 s[8:9]
\ts_add_u32 s8, s8, {name}@rel32@lo+{4 + more}
\ts_addc_u32 s9, s9, {name}@rel32@hi+{12 + more}"""


CALL = "\ts_swappc_b64 s[30:31], s[8:9]"
BESIDE = """\
	.type	twice,@function
twice:
	v_lshlrev_b32_e32 v1, 1, v1
	s_setpc_b64 s[30:31]
.Lfunc_end1:
	.type	again,@function
again:
	s_mov_b64 s[34:35], s[30:31]
	s_mov_b32 s20, 0
.LBB2_1:
	{twice}
{call}
	s_add_i32 s20, s20, 1
	s_cmp_lt_i32 s20, 3
	s_cbranch_scc1 .LBB2_1
	s_setpc_b64 s[34:35]
.Lfunc_end2:
	.type	unused,@function
unused:
	v_frobnicate_b32 v1, v2
.Lfunc_end3:
	.type	table,@object
	.section	.rodata,"a",@progbits
table:
	.long	5
	.long	7
	.size	table, 8
	.text
"""


def on(target: str, text: str) -> str:
    """The text with the target's names."""
    for name, new in NAMES.get(target, {}).items():
        text = text.replace(f"{name} ", f"{new} ")
    return text


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_is_called_and_a_constant_is_read(target: str) -> None:
    """`again` calls `twice` three times; what nobody calls may hold anything."""
    body = f"""{found_at("again", target=target)}
    {CALL}
    {found_at("table", 4, target=target)}
    s_load_dword s10, s[8:9], 0x0
    v_mov_b32_e32 v4, v1
    v_mov_b32_e32 v5, s10"""
    beside = on(target, BESIDE.format(twice=found_at("twice", target=target), call=CALL))
    lanes = 64 if target.startswith("gfx9") else 32
    given = {"target": target, "threads": lanes, "beside": beside}
    found, constant, counts = run(on(target, body), list(range(lanes)), **given)
    assert found == [8 * lane for lane in range(lanes)]
    assert constant == [7] * lanes
    assert counts.by_mnemonic["s_swappc_b64"] == 4


def test_a_call_of_what_is_no_function_is_a_fault() -> None:
    with pytest.raises(KernelError, match="where no function is"):
        run("s_mov_b64 s[8:9], 64\ns_swappc_b64 s[30:31], s[8:9]")


def test_a_kernel_that_asks_the_host_is_refused() -> None:
    text = text_of("s_nop 0").replace("global_buffer", "hidden_hostcall_buffer", 1)
    with pytest.raises(KernelError, match="printing and assertions on the device"):
        linked_kernel(text, "small")


LAST = 764
"""Bytes before the word of whose halves the tensor has the first."""
HALF = f"""v_mov_b32_e32 v6, 0
s_load_dword s10, s[4:5], {LAST:#x}
global_load_dword v2, v6, s[4:5] offset:{LAST}
v_mov_b32_e32 v3, v2
{{atomic}}
v_mov_b32_e32 v4, s10
v_mov_b32_e32 v5, v2"""
SWAP = "global_atomic_cmpswap v2, v6, v[2:3], s[4:5] offset:{} sc0"


def changed(atomic: str) -> tuple[int, int]:
    """What the scalar load and the atomic operation return."""
    kernel = decode(text_of(HALF.format(atomic=atomic)))
    source, target = aligned(3 * 64), aligned(2 * 64)
    source[LAST // 4] = 9
    memories = [
        LaunchMemory(ctypes.addressof(source), LAST + 2),
        LaunchMemory(ctypes.addressof(target), ctypes.sizeof(target)),
    ]
    launch = KernelLaunch(
        kernel=kernel,
        grid=(1, 1, 1),
        threads=1,
        shared_bytes=0,
        values=[("*i32", one.address) for one in memories],
        memories=memories,
    )
    emulator("gfx942").run(launch)
    return target[0], target[64]


def test_the_word_around_a_tensors_last_half_may_be_accessed() -> None:
    """An atomic operation on 16 bits is one on their word, and so may be a scalar load."""
    assert changed(SWAP.format(LAST)) == (9, 9)


@pytest.mark.parametrize("atomic", ["s_nop 0", SWAP.format(LAST + 4)])
def test_the_word_after_it_may_not_nor_by_other_loads(atomic: str) -> None:
    with pytest.raises(KernelError, match="past the end of a tensor"):
        changed(atomic)


FAR = """s_mov_b32 s20, 0
.LBB0_1:
s_add_i32 s20, s20, 1
s_cmp_lt_i32 s20, 3
s_cbranch_scc0 .LBB0_3
s_getpc_b64 s[8:9]
.Lpost_getpc0:
s_add_u32 s8, s8, (.LBB0_1-.Lpost_getpc0)&4294967295
s_addc_u32 s9, s9, (.LBB0_1-.Lpost_getpc0)>>32
s_setpc_b64 s[8:9]
.LBB0_3:
s_getpc_b64 s[8:9]
.Lpost_getpc1:
s_add_u32 s8, s8, (.LBB0_4-.Lpost_getpc1)&4294967295
s_addc_u32 s9, s9, (.LBB0_4-.Lpost_getpc1)>>32
s_setpc_b64 s[8:9]
v_mov_b32_e32 v4, 9
.LBB0_4:
v_mov_b32_e32 v5, s20"""
"""A branch back, twice, and one over a line, as LLVM writes those that are too far for 16 bits."""
ADDS = {
    "s_add_u32 ": "s_add_co_u32 ",
    "s_addc_u32 ": "s_add_co_ci_u32 ",
    "s_add_i32 ": "s_add_co_i32 ",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reads_a_table", [False, True])
def test_a_branch_that_is_too_far_for_16_bits(target: str, reads_a_table: bool) -> None:
    body, beside = FAR, ""
    if target == "gfx1201":
        for name, new in ADDS.items():
            body = body.replace(name, new)
    if reads_a_table:  # then the counter's other use stands beside it
        load = on(target, "s_load_dword s10, s[8:9], 0x0")
        wait = "s_wait_kmcnt 0x0" if target == "gfx1201" else "s_waitcnt lgkmcnt(0)"
        body += f"\n{found_at('table', 4, target=target)}\n{load}\n{wait}\nv_mov_b32_e32 v4, s10"
        beside = BESIDE[BESIDE.index("\t.type\ttable") :]
    lanes = 64 if target.startswith("gfx9") else 32
    skipped, rounds, _ = run(body, target=target, threads=lanes, beside=beside)
    assert rounds == [3] * lanes
    assert skipped == [7 if reads_a_table else 0] * lanes


def test_a_counter_without_a_label_is_refused() -> None:
    body = "s_getpc_b64 s[8:9]\ns_add_u32 s8, s8, 16\ns_addc_u32 s9, s9, 0\ns_setpc_b64 s[8:9]"
    with pytest.raises(KernelError, match="the instruction s_getpc_b64 is not emulated"):
        run(body)
