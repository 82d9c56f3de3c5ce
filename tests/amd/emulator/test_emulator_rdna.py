"""RDNA's instructions by the manuals' definitions; expected values are worked by hand."""

from __future__ import annotations

import struct

import pytest
from each_case import each
from small_assembly import run

from ratchet.base.errors import KernelError


def f(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def half(value: float) -> int:
    return int.from_bytes(struct.pack("<e", value), "little")


ONE, TWO, THREE = f(1.0), f(2.0), f(3.0)
MINUS = 0xFFFFFFFF
LANES = list(range(32))
TARGETS = ("gfx1100", "gfx1201")

# body, v1, v2, v3, what v4 must be
VECTOR = [
    ("v_add_nc_u32_e32 v4, v1, v2", MINUS, 2, 0, 1),
    ("v_subrev_nc_u32_e32 v4, v1, v2", 2, 5, 0, 3),
    ("v_add_co_u32 v4, vcc_lo, v1, v2\nv_add_co_ci_u32_e32 v4, vcc_lo, v3, v3, vcc_lo",
     MINUS, 1, 4, 9),
    ("v_sub_co_u32 v5, s8, v1, v2\nv_cndmask_b32_e64 v4, v1, v2, s8", 1, 2, 0, 2),
    ("v_cmp_lt_i32_e32 vcc_lo, v1, v2\nv_cndmask_b32_e32 v4, v3, v1, vcc_lo", MINUS, 1, 7, MINUS),
    ("v_add_co_u32 v4, null, v1, v2", MINUS, 3, 0, 2),
    ("v_clz_i32_u32_e32 v4, v1", 0x00010000, 0, 0, 15),
    ("v_ctz_i32_b32_e32 v4, v1", 0x00010000, 0, 0, 16),
    ("v_cls_i32_e32 v4, v1", 0xFFFF0000, 0, 0, 16),
    ("v_cvt_pk_rtz_f16_f32_e32 v4, v1, v2", f(1 + 2**-10 + 2**-11), ONE, 0, 0x3C003C01),
    ("v_maxmin_u32 v4, v1, v2, v3", 3, 9, 5, 5),
    ("v_minmax_i32 v4, v1, v2, v3", 3, 9, MINUS, 3),
    ("v_mul_dx9_zero_f32_e32 v4, v1, v2", 0, 0x7F800000, 0, 0),
    ("v_sub_nc_u32_e64 v4, v1, 3 clamp", 2, 0, 0, 0),
    ("v_fmaak_f16 v4, v1, v2, 0x4200", half(2), half(5), 0, half(13)),
    # 1.5 * 2 + 3 * 0.5 + 1 in bf16, the upper halves of f32
    ("v_dot2_bf16_bf16 v4, v1, v2, v3", 0x40403FC0, 0x3F004000, 0x3F80, 0x40B0),
    ("v_dot2_f32_f16 v4, v1, v2, v3", half(2) | half(3) << 16, half(5) | half(7) << 16, ONE, f(32)),
    ("v_dual_add_f32 v4, v1, v2 :: v_dual_mul_f32 v5, v1, v2", ONE, TWO, 0, THREE),
    # both read v6 and v7 before either is written
    ("v_mov_b32_e32 v6, v1\nv_dual_mov_b32 v6, v2 :: v_dual_add_f32 v4, v6, v3",
     ONE, 0, TWO, THREE),
    ("v_mov_b32_e32 v4, v1\nv_dual_fmac_f32 v4, v2, v3 :: v_dual_mov_b32 v5, 0",
     ONE, TWO, THREE, f(7.0)),
    ("s_mov_b32 vcc_lo, -1\nv_dual_cndmask_b32 v4, v1, v2 :: v_dual_add_nc_u32 v5, v1, v2",
     3, 4, 0, 4),
]  # fmt: skip
SCALAR = [
    ("s_and_not1_b32 s8, 12, 10", 4),
    ("s_or_not1_b32 s8, 1, -4", 3),
    ("s_nand_b32 s8, 12, 10", MINUS - 8),
    ("s_ctz_i32_b32 s8, 8", 3),
    ("s_clz_i32_u32 s8, 8", 28),
    ("s_mov_b32 s9, exec_lo\ns_bcnt1_i32_b32 s8, s9", 32),
    ("s_mov_b32 vcc_hi, 7\ns_mov_b32 vcc_lo, 0\ns_mov_b32 s8, 1\ns_cbranch_vccz .LBB0_1\n"
     "s_mov_b32 s8, 2\n.LBB0_1:", 1),
]  # fmt: skip
# s8 or v4, and what it must be
RDNA4 = [
    ("s_add_f32 s8, 1.0, 2.0", THREE),
    ("s_mov_b32 s8, 1.0\ns_fmac_f32 s8, 2.0, 4.0", f(9.0)),
    ("s_min_num_f32 s8, 1.0, -2.0", f(-2.0)),
    ("s_rndne_f32 s8, 0x40200000", TWO),
    ("s_cvt_i32_f32 s8, 0xc0200000", MINUS - 1),
    ("s_cvt_f32_u32 s8, 3", THREE),
    ("s_cmp_lt_f32 1.0, 2.0\ns_cselect_b32 s8, 5, 6", 5),
    ("s_cmp_nlt_f32 1.0, 0x7fc00000\ns_cselect_b32 s8, 5, 6", 5),
    ("s_add_co_u32 s8, -1, 1\ns_add_co_ci_u32 s8, 2, 3", 6),
    ("s_mov_b64 s[8:9], 3\ns_mul_u64 s[8:9], s[8:9], s[8:9]", 9),
    ("v_max_num_f32_e32 v4, 0x7fc00000, v3\nv_readfirstlane_b32 s8, v4", 0),
    ("v_mad_co_u64_u32 v[4:5], null, 3, 4, 5\nv_readfirstlane_b32 s8, v4", 17),
    ("v_s_exp_f32 s8, 2.0", f(4.0)),
    ("s_mov_b32 s8, ttmp9", 0),
    ("s_bfe_u32 s8, ttmp8, 0x50019", 0),
]


@each((target, *one) for target in TARGETS for one in VECTOR)
def test_a_vector_instruction_does_what_the_manual_says(
    target: str, body: str, a: int, b: int, c: int, wanted: int
) -> None:
    found, _, _ = run(body, [a], [b], [c], target=target, threads=32)
    assert [hex(one) for one in found] == [hex(wanted)] * 32


@each((target, *one) for target in TARGETS for one in SCALAR)
def test_a_scalar_instruction_does_what_the_manual_says(
    target: str, body: str, wanted: int
) -> None:
    found, _, _ = run(f"{body}\nv_mov_b32_e32 v4, s8", target=target, threads=32)
    assert [hex(one) for one in found] == [hex(wanted)] * 32


@each(RDNA4)
def test_an_instruction_of_rdna4_does_what_the_manual_says(body: str, wanted: int) -> None:
    found, _, _ = run(f"{body}\nv_mov_b32_e32 v4, s8", target="gfx1201", threads=32)
    assert [hex(one) for one in found] == [hex(wanted)] * 32


def test_a_result_of_16_bits_keeps_the_other_half() -> None:
    body = "v_mov_b32_e32 v4, 0x12345678\nv_cvt_f16_f32_e32 v4, v1"
    assert run(body, [ONE], target="gfx1100", threads=32)[0] == [0x12343C00] * 32
    assert run(body, [ONE], target="gfx942")[0] == [0x3C00] * 64


def test_two_operations_that_read_each_others_results_are_refused() -> None:
    with pytest.raises(KernelError, match="read each other's results"):
        run("v_dual_mov_b32 v4, v5 :: v_dual_mov_b32 v5, v4", target="gfx1100", threads=32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("control", "wanted"),
    [
        ("row_xmask:3 row_mask:0xf bank_mask:0xf", [lane ^ 3 for lane in LANES]),
        ("row_share:5 row_mask:0xf bank_mask:0xf", [lane // 16 * 16 + 5 for lane in LANES]),
        ("row_shr:1 row_mask:0xf bank_mask:0xf", [lane - 1 if lane % 16 else 99 for lane in LANES]),
        ("dpp8:[7,6,5,4,3,2,1,0]", [lane ^ 7 for lane in LANES]),
    ],
)
def test_dpp_moves_lanes(target: str, control: str, wanted: list[int]) -> None:
    body = f"v_mov_b32_e32 v4, 99\nv_mov_b32_dpp v4, v1 {control}"
    assert run(body, LANES, target=target, threads=32)[0] == wanted


@pytest.mark.parametrize("target", TARGETS)
def test_permlanes_read_their_row_or_the_other(target: str) -> None:
    body = """s_mov_b32 s8, 0x76543210
    s_mov_b32 s9, 0xfedcba98
    v_permlanex16_b32 v4, v1, s8, s9 op_sel:[1,0]
    v_permlane16_b32 v5, v1, 0, -1"""
    across, within, _ = run(body, LANES, target=target, threads=32)
    assert across == [lane ^ 16 for lane in LANES]
    assert within == [lane // 16 * 16 + (15 if lane % 16 > 7 else 0) for lane in LANES]


@pytest.mark.parametrize("target", TARGETS)
def test_a_mask_of_lanes_is_one_register(target: str) -> None:
    body = """s_mov_b32 s9, 77
    v_cmp_gt_u32_e64 s8, 8, v1
    s_and_saveexec_b32 s10, s8
    v_mov_b32_e32 v4, 5
    s_or_b32 exec_lo, exec_lo, s10
    s_mov_b32 s10, exec_lo
    v_cmpx_lt_u32_e32 30, v1
    v_mov_b32_e32 v4, s9
    s_mov_b32 exec_lo, s10"""
    found, _, _ = run(body, LANES, target=target, threads=32)
    assert found == [5] * 8 + [0] * 23 + [77]


@pytest.mark.parametrize("target", TARGETS)
def test_lds_and_scratch_by_their_names_here(target: str) -> None:
    body = """ds_store_b32 v0, v1
    ds_load_u16 v4, v0 offset:4
    scratch_store_b32 off, v2, off offset:4
    scratch_load_d16_hi_b16 v5, off, off offset:4"""
    read, high, _ = run(body, LANES, [7], target=target, threads=32, scratch=8)
    assert read[:31] == LANES[1:]
    assert high == [7 << 16] * 32


@pytest.mark.parametrize("target", TARGETS)
def test_atomics_by_their_names_here(target: str) -> None:
    body = """v_mov_b32_e32 v6, 0
    global_atomic_add_u32 v6, v1, s[6:7] offset:128
    global_atomic_max_i32 v6, v2, s[6:7] offset:132
    global_load_b32 v5, v6, s[6:7] offset:128
    global_load_b32 v4, v6, s[6:7] offset:132"""
    found, other, _ = run(body, [3], [MINUS, 9], target=target, threads=32)
    assert (found, other) == ([9] * 32, [96] * 32)


def test_the_waves_of_32_lanes_meet_at_a_barrier() -> None:
    body = """v_xor_b32_e32 v6, 0x80, v0
    ds_store_b32 v6, v1
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_load_b32 v4, v0
    s_waitcnt lgkmcnt(0)"""
    found, _, _ = run(body, list(range(1024)), threads=1024, lds=4096, target="gfx1100")
    assert found == [lane ^ 32 for lane in range(1024)]


SPLIT = """v_xor_b32_e32 v6, 0x80, v0
s_barrier_signal -1
{between}
s_barrier_wait -1
ds_store_b32 v6, v1
s_barrier_signal -1
s_barrier_wait -1
ds_load_b32 v4, v0"""


@pytest.mark.parametrize("between", ["s_nop 0", "ds_bpermute_b32 v7, v0, v1"])
def test_the_waves_meet_at_the_second_half_of_a_barrier(between: str) -> None:
    """What moves values across lanes touches no memory."""
    body = SPLIT.format(between=between)
    found, _, _ = run(body, list(range(64)), threads=64, target="gfx1201")
    assert found == [lane ^ 32 for lane in range(64)]


def test_an_access_to_lds_between_the_halves_of_a_barrier_is_refused() -> None:
    with pytest.raises(KernelError, match="ds_store_b32 between a barrier's signal and its wait"):
        run(SPLIT.format(between="ds_store_b32 v6, v1"), threads=64, target="gfx1201")


@pytest.mark.parametrize(
    ("target", "lane_of_a", "lanes_of_b", "register", "lanes_of_d"),
    [
        # every 16 lanes hold all of A and B; row 5 is the third register of the upper lanes
        ("gfx1100", (5, 21), range(32), 2, range(16, 32)),
        # the upper 16 lanes hold k from 8 on; the lower ones hold the first eight rows
        ("gfx1201", (21,), range(16, 32), 5, range(16)),
    ],
)
def test_a_matrix_product_places_rows_and_columns_as_the_manual(
    target: str, lane_of_a: tuple[int, ...], lanes_of_b: range, register: int,
    lanes_of_d: range,
) -> None:  # fmt: skip
    """A[i][k] = 1 where i = 5, B[k][j] = j + 1 in f16: row 5 of the product is j + 1.

    Both hold it in the low half of a lane's second register.
    """
    a = [half(1.0) if lane in lane_of_a else 0 for lane in LANES]
    b = [half(lane % 16 + 1.0) if lane in lanes_of_b else 0 for lane in LANES]
    count = 8 if target == "gfx1100" else 4
    clear = "\n".join(f"v_mov_b32_e32 v{32 + at}, 0" for at in range(2 * count))
    body = f"""{clear}
    v_mov_b32_e32 v33, v1
    v_mov_b32_e32 v{33 + count}, v2
    v_wmma_f32_16x16x16_f16 v[16:23], v[32:{31 + count}], v[{32 + count}:{31 + 2 * count}], 0
    v_mov_b32_e32 v4, v{16 + register}
    v_mov_b32_e32 v5, v{16 + register - 1}"""
    found, other, _ = run(body, a, b, target=target, threads=32)
    assert found == [f(lane % 16 + 1.0) if lane in lanes_of_d else 0 for lane in LANES]
    assert other == [0] * 32


def test_a_matrix_product_in_fp8_has_eight_values_in_two_registers() -> None:
    """1.0 is 0x38; A[5][2] and B[2][j] are third bytes of lane 5 and of lanes 0 to 15."""
    body = """v_mov_b32_e32 v33, 0
    v_mov_b32_e32 v32, v1
    v_mov_b32_e32 v34, v2
    v_mov_b32_e32 v35, 0
    v_wmma_f32_16x16x16_fp8_fp8 v[16:23], v[32:33], v[34:35], 0
    v_mov_b32_e32 v4, v21"""
    a = [0x380000 if lane == 5 else 0 for lane in LANES]
    b = [0x380000 if lane < 16 else 0 for lane in LANES]
    found, _, _ = run(body, a, b, target="gfx1201", threads=32)
    assert found == [ONE] * 16 + [0] * 16
    with pytest.raises(KernelError, match="is not emulated for gfx1100"):
        run(body, a, b, target="gfx1100", threads=32)


@pytest.mark.parametrize(("signs", "factor"), [("[1,1,0]", -2), ("[0,1,0]", 254), ("[0,0,0]", 254)])
def test_bytes_of_a_matrix_have_a_sign_where_it_is_told(signs: str, factor: int) -> None:
    """A[5][0] is 0xFE, which is -2 or 254, and B[0][j] is 3."""
    body = f"""v_mov_b32_e32 v33, 0
    v_mov_b32_e32 v32, v1
    v_mov_b32_e32 v34, v2
    v_mov_b32_e32 v35, 0
    v_wmma_i32_16x16x16_iu8 v[16:23], v[32:33], v[34:35], 1 neg_lo:{signs}
    v_mov_b32_e32 v4, v21"""
    a, b = [0xFE if lane == 5 else 0 for lane in LANES], [3 if lane < 16 else 0 for lane in LANES]
    found, _, _ = run(body, a, b, target="gfx1201", threads=32)
    assert found == [(3 * factor + 1) & MINUS] * 16 + [1] * 16


def test_the_halves_of_a_wave_may_order_a_matrix_otherwise_along_k() -> None:
    """A[5][1] is 1 and B[1][j] is 2 in the lower half of the wave, k = 0 in the upper half.

    Where the upper half of A alone is in another order, a pair is lost.
    """
    a = [half(1.0) << (16 if lane < 16 else 0) if lane % 16 == 5 else 0 for lane in LANES]
    b = [half(2.0) << (16 if lane < 16 else 0) for lane in LANES]
    body = "v_wmma_f32_16x16x16_f16 v[16:23], v[32:39], v[40:47], 0\nv_mov_b32_e32 v4, v18"
    clear = "\n".join(f"v_mov_b32_e32 v{at}, 0" for at in range(32, 48))
    whole = f"{clear}\nv_mov_b32_e32 v33, v1\nv_mov_b32_e32 v41, v2\n{body}"
    found, _, _ = run(whole, a, b, target="gfx1100", threads=32)
    assert found == [0] * 16 + [f(2.0)] * 16
    with pytest.raises(KernelError, match="of a matrix operand differ"):
        run(whole, a, [half(2.0) << 16 for _ in LANES], target="gfx1100", threads=32)


def test_copies_of_a_matrix_operand_that_differ_are_a_fault() -> None:
    body = "v_wmma_f32_16x16x16_f16 v[16:23], v[32:39], v[40:47], 0\nv_mov_b32_e32 v4, v16"
    clear = "\n".join(f"v_mov_b32_e32 v{at}, 0" for at in range(32, 48))
    with pytest.raises(KernelError, match="lanes 21 and 5 of a matrix operand differ"):
        run(f"{clear}\nv_mov_b32_e32 v33, v1\n{body}", [int(lane == 5) for lane in LANES],
            target="gfx1100", threads=32)  # fmt: skip
