"""Each family of instructions by the manual's definition; expected values are worked by hand."""

from __future__ import annotations

import struct

import pytest
from each_case import each
from small_assembly import run

from ratchet.base.errors import KernelError


def f(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def two(low: float, high: float) -> int:
    """Two halves in one register."""
    return int.from_bytes(struct.pack("<ee", low, high), "little")


DIVISION = """v_mov_b32_e32 v10, 0
v_mov_b32_e32 v11, v1
v_mov_b32_e32 v12, 0
v_mov_b32_e32 v13, v2
v_div_scale_f64 v[14:15], s[8:9], v[12:13], v[12:13], v[10:11]
v_rcp_f64_e32 v[16:17], v[14:15]
v_fma_f64 v[18:19], -v[14:15], v[16:17], 1.0
v_fma_f64 v[16:17], v[16:17], v[18:19], v[16:17]
v_fma_f64 v[18:19], -v[14:15], v[16:17], 1.0
v_fma_f64 v[16:17], v[16:17], v[18:19], v[16:17]
v_div_scale_f64 v[18:19], vcc, v[10:11], v[12:13], v[10:11]
v_mul_f64 v[20:21], v[18:19], v[16:17]
v_fma_f64 v[14:15], -v[14:15], v[20:21], v[18:19]
v_div_fmas_f64 v[14:15], v[14:15], v[16:17], v[20:21]
v_div_fixup_f64 v[6:7], v[14:15], v[12:13], v[10:11]
v_mov_b32_e32 v4, v{part}"""
ONE, TWO, THREE = f(1.0), f(2.0), f(3.0)
MINUS = 0xFFFFFFFF
# body, v1, v2, v3, what v4 must be
VECTOR = [
    ("v_add_f32_e32 v4, v1, v2", ONE, TWO, 0, THREE),
    ("v_sub_f32_e32 v4, v1, v2", ONE, THREE, 0, f(-2.0)),
    ("v_subrev_f32_e32 v4, v1, v2", ONE, THREE, 0, TWO),
    ("v_mul_f32_e64 v4, -v1, |v2|", TWO, f(-3.0), 0, f(-6.0)),
    ("v_add_f32_e64 v4, v1, v2 clamp", ONE, TWO, 0, ONE),
    ("v_mul_f32_e64 v4, v1, v2 div:2", TWO, THREE, 0, THREE),
    ("v_fma_f32 v4, v1, v2, -v3", TWO, THREE, ONE, f(5.0)),
    # (1 + 2^-12)^2 - 1 = 2^-11 + 2^-24 in one rounding; in two the last bit would be lost
    ("v_fma_f32 v4, v1, v1, -1.0", f(1 + 2**-12), 0, 0, f(2**-11 + 2**-24)),
    ("v_fmaak_f32 v4, v1, v2, 0x40400000", TWO, TWO, 0, f(7.0)),
    ("v_fmamk_f32 v4, v1, 0x40400000, v2", TWO, ONE, 0, f(7.0)),
    ("v_max_f32_e32 v4, v1, v2", 0x7FC00000, TWO, 0, TWO),
    ("v_min3_f32 v4, v1, v2, v3", THREE, ONE, TWO, ONE),
    ("v_med3_f32 v4, v1, v2, v3", THREE, ONE, TWO, TWO),
    ("v_rcp_f32_e32 v4, v1", TWO, 0, 0, f(0.5)),
    ("v_exp_f32_e32 v4, v1", THREE, 0, 0, f(8.0)),
    ("v_log_f32_e32 v4, v1", f(8.0), 0, 0, THREE),
    ("v_rndne_f32_e32 v4, v1", f(2.5), 0, 0, TWO),
    ("v_ldexp_f32 v4, v1, -2", THREE, 0, 0, f(0.75)),
    ("v_cvt_i32_f32_e32 v4, v1", f(-2.7), 0, 0, MINUS - 1),
    ("v_cvt_u32_f32_e32 v4, v1", f(-2.7), 0, 0, 0),
    ("v_cvt_f32_u32_e32 v4, v1", MINUS, 0, 0, f(2.0**32)),
    ("v_cvt_f16_f32_e32 v4, v1", f(1.0), 0, 0, 0x3C00),
    ("v_cvt_pkrtz_f16_f32 v4, v1, v2", f(1 + 2**-10 + 2**-11), ONE, 0, 0x3C003C01),
    ("v_div_fixup_f32 v4, v1, v2, v3", ONE, 0, TWO, 0x7F800000),
    # 1 / 3 by the compiler's own steps, in f64: v1 and v2 are the high halves of 1.0 and of 3.0
    (DIVISION.format(part=6), 0x3FF00000, 0x40080000, 0, 0x55555555),
    (DIVISION.format(part=7), 0x3FF00000, 0x40080000, 0, 0x3FD55555),
    # the smallest normal number over 2: its half, which is denormal
    (DIVISION.format(part=7), 0x00100000, 0x40000000, 0, 0x00080000),
    (DIVISION.format(part=7), 0x3FF00000, 0x80000000, 0, 0xFFF00000),
    ("v_max3_f16 v4, v1, v2, v3", two(1.0, 0), two(4.0, 0), two(3.0, 0), two(4.0, 0)),
    ("v_min3_i16 v4, v1, v2, v3", 5, 0xFFFE, 7, 0xFFFE),
    ("v_add_u32_e64 v4, v1, v2 clamp", MINUS, 2, 0, MINUS),
    ("v_sub_u32_e64 v4, v1, 1 clamp", 0, 0, 0, 0),
    ("v_add_u32_e32 v4, v1, v2", MINUS, 2, 0, 1),
    ("v_mul_hi_u32 v4, v1, v2", MINUS, MINUS, 0, MINUS - 1),
    ("v_mul_u32_u24_e32 v4, v1, v2", 0xFF000003, 5, 0, 15),
    ("v_mul_i32_i24_e32 v4, v1, v2", 0x00FFFFFF, 5, 0, MINUS - 4),
    ("v_lshlrev_b32_e32 v4, 4, v1", 0x12345678, 0, 0, 0x23456780),
    ("v_ashrrev_i32_e32 v4, 31, v1", 0x80000000, 0, 0, MINUS),
    ("v_bfe_u32 v4, v1, 8, 8", 0x12345678, 0, 0, 0x56),
    ("v_bfe_i32 v4, v1, 4, 4", 0x00000080, 0, 0, MINUS - 7),
    ("v_bfi_b32 v4, v1, v2, v3", 0xFF00FF00, 0x11111111, 0x22222222, 0x11221122),
    ("v_alignbit_b32 v4, v1, v2, 8", 0x000000AB, 0x12345678, 0, 0xAB123456),
    ("v_perm_b32 v4, v1, v2, v3", 0x44332211, 0xDDCCBBAA, 0x0C0D0400, 0x00FF11AA),
    ("v_bfrev_b32_e32 v4, v1", 0x00000003, 0, 0, 0xC0000000),
    ("v_lshl_add_u32 v4, v1, 2, v2", 3, 5, 0, 17),
    ("v_add_lshl_u32 v4, v1, v2, 2", 3, 5, 0, 32),
    ("v_and_or_b32 v4, v1, v2, v3", 0xF0, 0x3C, 0x01, 0x31),
    ("v_xad_u32 v4, v1, v2, v3", 6, 3, 10, 15),
    ("v_mad_u64_u32 v[4:5], s[8:9], v1, v2, 0", MINUS, MINUS, 0, 1),
    ("v_add_co_u32_e32 v4, vcc, v1, v2\nv_addc_co_u32_e32 v4, vcc, v3, v3, vcc", MINUS, 1, 4, 9),
    ("v_sub_co_u32_e32 v5, vcc, v1, v2\nv_cndmask_b32_e64 v4, v1, v2, vcc", 1, 2, 0, 2),
    ("v_cmp_lt_i32_e32 vcc, v1, v2\nv_cndmask_b32_e64 v4, 0, 1, vcc", MINUS, 1, 0, 1),
    ("v_cmp_lt_u32_e32 vcc, v1, v2\nv_cndmask_b32_e64 v4, 0, 1, vcc", MINUS, 1, 0, 0),
    ("v_cmp_nlt_f32_e64 s[8:9], v1, v2\nv_cndmask_b32_e64 v4, 0, 1, s[8:9]", 0x7FC00000, 0, 0, 1),
    ("v_cmp_class_f32_e64 s[8:9], v1, 3\nv_cndmask_b32_e64 v4, 0, 1, s[8:9]", 0x7FC00000, 0, 0, 1),
    ("v_bcnt_u32_b32 v4, v1, v2", 0xF0F0, 2, 0, 10),
    ("v_and_b32_sdwa v4, v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 "
     "src1_sel:DWORD", 0x12345678, 0xFF, 0, 0x34),
    ("v_pk_add_f16 v4, v1, v2", two(1.0, 2.0), two(3.0, 4.0), 0, two(4.0, 6.0)),
    ("v_pk_fma_f16 v4, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[0,1,1] neg_lo:[0,0,1]",
     two(1.0, 2.0), two(3.0, 4.0), two(1.0, 5.0), two(5.0, 9.0)),
    ("v_mov_b32_e32 v6, v1\nv_mov_b32_e32 v7, v2\nv_pk_mul_f32 v[4:5], v[6:7], v[6:7] "
     "op_sel:[0,1] op_sel_hi:[1,0]", TWO, THREE, 0, f(6.0)),
    ("v_fma_mix_f32 v4, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,0,0]",
     two(1.0, 2.0), THREE, ONE, f(7.0)),
    ("v_accvgpr_write_b32 a3, v1\nv_accvgpr_read_b32 v4, a3", 77, 0, 0, 77),
]  # fmt: skip
GFX950 = [
    # 1 + 2^-8 lies half way between two bf16: to the even one, 1; the next half way up to 1 + 2^-6
    ("v_cvt_pk_bf16_f32 v4, v1, v2", f(1 + 2**-8), f(1 + 3 * 2**-8), 0, 0x3F823F80),
    ("v_bitop3_b32 v4, v1, v2, v3 bitop3:0x96", 0b1100, 0b1010, 0b1111, 0b1001),
]
GFX90A = [
    # (1 + 2^-12)^2 - 1 in two roundings: the last bit is lost
    ("v_mad_f32 v4, v1, v1, -1.0", f(1 + 2**-12), 0, 0, f(2**-11)),
    ("v_madmk_f32 v4, v1, 0x40400000, v2", TWO, ONE, 0, f(7.0)),
    ("v_mov_b32_e32 v4, v3\nv_mac_f32_e32 v4, v1, v2", TWO, THREE, ONE, f(7.0)),
    ("v_mad_f32 v4, v1, 1.0, v2", 0x00000001, 0x80400000, 0, 0),  # denormals are zeros
]
SCALAR = [
    ("s_add_u32 s8, -1, 1\ns_addc_u32 s8, 2, 3", 6),
    ("s_sub_i32 s8, 0x80000000, 1\ns_cselect_b32 s8, 5, 6", 5),
    ("s_mov_b32 s8, 7\ns_bfe_u32 s8, s8, 0x20001", 3),
    ("s_mov_b32 s8, 0x80\ns_bfe_i32 s8, s8, 0x40004", MINUS - 7),
    ("s_movk_i32 s8, 0x8000", 0xFFFF8000),
    ("s_mul_hi_u32 s8, -1, -1", MINUS - 1),
    ("s_lshl2_add_u32 s8, 3, 5", 17),
    ("s_abs_i32 s8, -9", 9),
    ("s_brev_b32 s8, 1", 0x80000000),
    ("s_cmp_lt_i32 -1, 0\ns_cselect_b32 s8, 1, 2", 1),
    ("s_cmp_lt_u32 -1, 0\ns_cselect_b32 s8, 1, 2", 2),
    ("s_mov_b64 s[8:9], -1\ns_lshr_b64 s[8:9], s[8:9], 60", 15),
    ("s_mov_b64 s[8:9], exec\ns_bcnt1_i32_b64 s8, s[8:9]", 64),
]


@each(VECTOR)
def test_a_vector_instruction_does_what_the_manual_says(
    body: str, a: int, b: int, c: int, wanted: int
) -> None:
    found, _, _ = run(body, [a], [b], [c])
    assert [hex(one) for one in found] == [hex(wanted)] * 64


@each(GFX950)
def test_an_instruction_of_gfx950_does_what_the_manual_says(
    body: str, a: int, b: int, c: int, wanted: int
) -> None:
    found, _, _ = run(body, [a], [b], [c], target="gfx950")
    assert [hex(one) for one in found] == [hex(wanted)] * 64


@each(GFX90A)
def test_an_instruction_of_gfx90a_does_what_the_manual_says(
    body: str, a: int, b: int, c: int, wanted: int
) -> None:
    found, _, _ = run(body, [a], [b], [c], target="gfx90a")
    assert [hex(one) for one in found] == [hex(wanted)] * 64


@each(SCALAR)
def test_a_scalar_instruction_does_what_the_manual_says(body: str, wanted: int) -> None:
    found, _, _ = run(f"{body}\nv_mov_b32_e32 v4, s8")
    assert [hex(one) for one in found] == [hex(wanted)] * 64


LANES = list(range(64))


@pytest.mark.parametrize(
    ("control", "wanted"),
    [
        ("quad_perm:[1,0,3,2]", [lane ^ 1 for lane in LANES]),
        ("row_shr:1", [lane - 1 if lane % 16 else 0 for lane in LANES]),
        ("row_shl:2", [lane + 2 if lane % 16 < 14 else 0 for lane in LANES]),
        ("row_ror:4", [lane // 16 * 16 + (lane - 4) % 16 for lane in LANES]),
        ("row_mirror", [lane // 16 * 16 + 15 - lane % 16 for lane in LANES]),
        ("row_bcast:15", [lane // 16 * 16 - 1 if lane > 15 else 0 for lane in LANES]),
        ("row_bcast:31", [31 if lane > 31 else 0 for lane in LANES]),
    ],
)
def test_dpp_moves_lanes(control: str, wanted: list[int]) -> None:
    body = f"v_mov_b32_dpp v4, v1 {control} row_mask:0xf bank_mask:0xf bound_ctrl:1"
    assert run(body, LANES)[0] == wanted


def test_a_lane_without_a_source_keeps_its_value_unless_bound_ctrl_is_set() -> None:
    body = "v_mov_b32_e32 v4, 9\nv_mov_b32_dpp v4, v1 row_shr:1 row_mask:0xa bank_mask:0xf"
    wanted = [lane - 1 if lane // 16 in (1, 3) and lane % 16 else 9 for lane in LANES]
    assert run(body, LANES)[0] == wanted


def test_lanes_that_are_off_keep_their_values() -> None:
    body = "v_cmp_gt_u32_e32 vcc, 8, v1\ns_and_saveexec_b64 s[8:9], vcc\nv_mov_b32_e32 v4, 5\n"
    found, _, _ = run(f"{body}s_or_b64 exec, exec, s[8:9]", LANES)
    assert found == [5] * 8 + [0] * 56


def test_values_move_between_lanes_and_scalars() -> None:
    body = "v_readlane_b32 s8, v1, 17\nv_writelane_b32 v4, s8, 3\nv_readfirstlane_b32 s9, v1\n"
    found, other, _ = run(f"{body}v_mov_b32_e32 v5, s9", [lane + 100 for lane in LANES])
    assert found == [0, 0, 0, 117] + [0] * 60
    assert other == [100] * 64


def test_permutations_through_the_lds_hardware() -> None:
    body = "v_lshlrev_b32_e32 v6, 2, v2\nds_bpermute_b32 v4, v6, v1\n"
    found, other, _ = run(
        f"{body}ds_swizzle_b32 v5, v1 offset:swizzle(SWAP,16)", LANES, LANES[::-1]
    )
    assert found == LANES[::-1]
    assert other == [lane ^ 16 for lane in LANES]


def test_permlane_swaps_rows_of_two_registers() -> None:
    body = "v_mov_b32_e32 v4, v1\nv_mov_b32_e32 v5, v2\nv_permlane32_swap_b32_e32 v4, v5"
    high = [lane + 100 for lane in LANES]
    found, other, _ = run(body, LANES, high, target="gfx950")
    assert (found, other) == (LANES[:32] + high[:32], LANES[32:] + high[32:])


def test_lds_keeps_what_other_lanes_wrote() -> None:
    body = """v_sub_u32_e32 v6, 63, v1
    v_lshlrev_b32_e32 v6, 2, v6
    ds_write_b32 v6, v1
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_read_b32 v4, v0
    ds_read_u16 v5, v0 offset:4
    s_waitcnt lgkmcnt(0)"""
    found, other, _ = run(body, LANES)
    assert found == LANES[::-1]
    assert other[:63] == LANES[::-1][1:]


def test_waves_of_a_workgroup_meet_at_a_barrier() -> None:
    body = """v_xor_b32_e32 v6, 0x100, v0
    ds_write_b32 v6, v1
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_read_b32 v4, v0
    s_waitcnt lgkmcnt(0)"""
    found, _, _ = run(body, list(range(128)), threads=128)
    assert found == [*range(64, 128), *range(64)]


def test_atomics_of_lds_add_up_and_return_what_was_there() -> None:
    body = """v_mov_b32_e32 v6, 0
    ds_write_b32 v6, v6
    ds_add_rtn_u32 v4, v6, v1
    ds_read_b32 v5, v6"""
    found, other, _ = run(body, [2])
    assert sorted(found) == [2 * lane for lane in LANES]
    assert other == [128] * 64


def test_global_atomics_reach_memory() -> None:
    body = """v_mov_b32_e32 v6, 0
    global_atomic_add v6, v1, s[6:7] offset:256
    global_load_dword v5, v6, s[6:7] offset:256"""
    assert run(body, [3])[1] == [192] * 64


def test_scratch_belongs_to_each_lane() -> None:
    body = "scratch_store_dword off, v1, off offset:4\nscratch_load_dword v4, off, off offset:4"
    assert run(body, LANES, scratch=8)[0] == LANES


def test_scratch_of_gfx90a_is_a_buffer() -> None:
    """A scalar offset counts the bytes of all 64 lanes, so 256 of it are 4 of each."""
    body = """s_movk_i32 s9, 0x100
    buffer_store_dword v1, off, s[0:3], 0 offset:4
    buffer_store_dword v2, off, s[0:3], s9 offset:4
    buffer_load_dword v4, off, s[0:3], 0 offset:4
    buffer_load_dword v5, off, s[0:3], 0 offset:8"""
    found, other, _ = run(body, LANES, LANES[::-1], target="gfx90a", scratch=12)
    assert (found, other) == (LANES, LANES[::-1])


def test_a_buffer_drops_what_lies_beyond_its_records() -> None:
    body = """s_mov_b32 s8, s4
    s_mov_b32 s9, s5
    s_mov_b32 s10, 64
    s_mov_b32 s11, 0x27000
    v_mov_b32_e32 v4, 9
    buffer_load_dword v4, v0, s[8:11], 0 offen"""
    assert run(body, LANES)[0] == LANES[:16] + [0] * 48


def test_the_offsets_of_a_buffer_are_added_in_32_bits() -> None:
    """LLVM folds the 64 of `x - 64 + 64` into the instruction, so the register may wrap."""
    body = """s_mov_b32 s8, s4
    s_mov_b32 s9, s5
    s_mov_b32 s10, 0x7ffffffe
    s_mov_b32 s11, 0x27000
    v_subrev_u32_e32 v5, 64, v0
    buffer_load_dword v4, v5, s[8:11], 0 offen offset:64"""
    assert run(body, LANES)[0] == LANES


def test_the_offsets_of_a_scalar_buffer_load_are_added_in_64_bits() -> None:
    """LLVM folds no constant out of a sum that may wrap, "because s_load instructions perform the
    addition in 64 bits" (llvm-project #68302). A sum that wraps lies past the records."""
    body = """s_mov_b32 s8, s4
    s_mov_b32 s9, s5
    s_mov_b32 s10, 0x7ffffffe
    s_mov_b32 s11, 0x27000
    s_mov_b32 s12, {}
    s_buffer_load_dword s13, s[8:11], s12 offset:0x48
    s_waitcnt lgkmcnt(0)
    v_mov_b32_e32 v4, s13"""
    assert run(body.format("0"), LANES)[0] == [LANES[18]] * 64
    assert run(body.format("-64"), LANES)[0] == [0] * 64


def test_a_loop_ends_when_its_scalar_does() -> None:
    body = """s_mov_b32 s8, 0
    .LBB0_1:
    v_add_u32_e32 v4, v4, v1
    s_add_i32 s8, s8, 1
    s_cmp_lt_i32 s8, 10
    s_cbranch_scc1 .LBB0_1"""
    found, _, counts = run(body, [3])
    assert found == [30] * 64
    assert counts.by_mnemonic["s_cbranch_scc1"] == 10
    by_line = {place.rpartition(":")[2]: one for place, one in counts.by_place.items()}
    assert by_line["8"].by_mnemonic["s_cbranch_scc1"] == 10
    assert by_line["7"].by_mnemonic["global_load_dword"] == 3
    assert by_line["9"].by_mnemonic["global_store_dword"] == 2
    assert 3 * 4 <= by_line["7"].lines_64 <= 3 * 5  # 256 bytes each, perhaps across a line's edge
    assert by_line["8"].lines_64 == 0
    assert sum(one.lines_64 for one in by_line.values()) == counts.lines_64
    assert sum(one.lanes for one in by_line.values()) == sum(counts.lanes.values())
    assert counts.lanes["v_add_u32_e32"] == 640


def test_counts_are_those_of_hand() -> None:
    _, _, counts = run("v_mov_b32_e32 v4, v1", LANES)
    assert counts.instructions == 13  # 12 of the frame with s_endpgm, and one
    assert counts.bytes == 5 * 256  # three loads and two stores of 64 words
    assert counts.stored_bytes == 2 * 256


@pytest.mark.parametrize(
    ("name", "size", "target"),
    [
        ("v_mfma_f32_32x32x8_bf16", 32, "gfx942"),
        ("v_mfma_f32_16x16x16_bf16", 16, "gfx942"),
        ("v_mfma_f32_32x32x8bf16_1k", 32, "gfx90a"),
        ("v_mfma_f32_16x16x16bf16_1k", 16, "gfx90a"),
    ],
)
def test_a_matrix_product_places_rows_and_columns_as_the_manual(
    name: str, size: int, target: str
) -> None:
    """A[i][k] = 1 where i = 5 and k = 2, B[k][j] = j + 1 in bf16: row 5 of the product is j + 1.

    Lane l holds A[l % size][l // size * 4 + n] in its n-th half, and B likewise. D[i][j] with i = 5
    is in register 5 % 4 = 1 of lanes 32-63 (size 32: rows 4-7 are group 1) or 16-31 (size 16).
    """
    place = 5  # A[5][2]: lane 5, second register's low half
    a = [0x3F80 if lane == place else 0 for lane in LANES]
    b = [int.from_bytes(struct.pack("<f", lane % size + 1.0)[2:], "little") for lane in LANES]
    registers = size * size // 64
    body = f"""v_mov_b32_e32 v6, 0
    v_mov_b32_e32 v7, v1
    v_mov_b32_e32 v8, 0
    v_mov_b32_e32 v9, v2
    {name} v[16:{15 + registers}], v[6:7], v[8:9], 0
    v_mov_b32_e32 v4, v17
    v_mov_b32_e32 v5, v16"""
    found, other, _ = run(body, a, b, target=target)
    wanted = [f(lane % size + 1.0) if lane // size == 1 else 0 for lane in LANES]
    assert found == wanted
    assert other == [0] * 64


SETS_OVERFLOW = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n"


@pytest.mark.compiler
def test_a_mode_that_nothing_reads_is_set() -> None:
    found, _, _ = run(SETS_OVERFLOW + "v_add_f32_e32 v4, v1, v2", [ONE], [TWO])
    assert found[0] == THREE


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("sets", "target"),
    [
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3", "gfx950"),
        ("s_denorm_mode 15", "gfx1100"),
        ("s_denorm_mode 12", "gfx1201"),
    ],
)
def test_denormals_are_kept_in_each_mode(sets: str, target: str) -> None:
    """Compilers set the mode around a division if a kernel lets denormals be flushed."""
    found, _, _ = run(sets + "\nv_add_f32_e32 v4, v1, v2", [ONE, 1], [TWO, 1], target=target)
    assert found[:2] == [THREE, 2]


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("sets", "target"),
    [
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 2, 2), 0", "gfx942"),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 0", "gfx90a"),
        ("s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 2, 2), 0", "gfx1201"),
        ("s_round_mode 0x0", "gfx1100"),
    ],
)
def test_the_mode_of_rounding_may_be_set_to_what_it_is(sets: str, target: str) -> None:
    """1 + 2^-11 lies between two numbers of f16, and the even one is 1."""
    body = sets + "\nv_cvt_f16_f32_e32 v4, v1"
    assert run(body, [f(1 + 2**-11)], target=target)[0][0] == two(1.0, 0.0)


@pytest.mark.parametrize("sets", ["2, 2), 3", "0, 2), 1", "0, 4), 12", "0, 8), 0"])
def test_another_mode_is_refused(sets: str) -> None:
    with pytest.raises(KernelError, match="s_setreg_imm32_b32 is not emulated"):
        run(f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, {sets}", [ONE])


def test_other_modes_of_rdna_are_refused() -> None:
    with pytest.raises(KernelError, match="s_round_mode is not emulated"):
        run("s_round_mode 0xc", [ONE], target="gfx1100")
    with pytest.raises(KernelError, match="s_denorm_mode is not emulated"):
        run("s_denorm_mode 3", [ONE], target="gfx1100")
