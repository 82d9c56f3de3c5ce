"""Scalar instructions by the definitions of AMD's instruction set manuals, in Python.

A definition takes the sources as Python numbers and returns the result, and SCC after it: None
where it stays. Forms are those of `manual_vector`, and besides: q the result's old value, c SCC,
e EXEC as a source, k an immediate of 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import manual_vector as vector
from exact_numbers import added, fused, signed, times

ScalarDefinition = tuple[str, Callable[..., tuple[Any, int | None]]]
BITS, WIDE = 0xFFFFFFFF, (1 << 64) - 1


def logical(of: Callable[..., int], bits: int = 32) -> Callable[..., tuple[int, int]]:
    """A result whose SCC says that it is not zero."""

    def told(*given: int) -> tuple[int, int]:
        found = of(*given) & ((1 << bits) - 1)
        return found, int(found != 0)

    return told


def plain(of: Callable[..., Any]) -> Callable[..., tuple[Any, None]]:
    """A result that leaves SCC as it is."""
    return lambda *given: (of(*given), None)


def carried(of: Callable[..., int]) -> Callable[..., tuple[int, int]]:
    """A sum whose carry or borrow is SCC."""
    return lambda *given: (of(*given), int(not 0 <= of(*given) <= BITS))


def overflowing(of: Callable[..., int]) -> Callable[..., tuple[int, int]]:
    """A sum of numbers with a sign; SCC says that it does not fit."""
    return lambda *given: (of(*given), int(signed(of(*given)) != of(*given)))


def chosen(of: Callable[..., int]) -> Callable[..., tuple[int, int]]:
    """A minimum or maximum; SCC says that it is the first."""
    return lambda a, b: (of(a, b), int(of(a, b) == a != b))


def field(bits: int, has_sign: bool) -> Callable[[int, int], int]:
    """A field of bits: its place in bits 0 to 5 of b, its width in bits 16 to 22."""

    def of(a: int, b: int) -> int:
        at, width = b & (bits - 1), b >> 16 & 127
        if width == 0:
            return 0
        value = (signed(a, bits) if has_sign else a) >> at
        return (
            value if width >= bits else signed(value, width) if has_sign else value % (1 << width)
        )

    return of


def _both(name: str, of: Callable[..., int]) -> dict[str, ScalarDefinition]:
    return {
        f"s_{name}_b32": ("u:uu", logical(of)),
        f"s_{name}_b64": ("U:UU", logical(of, 64)),
    }


def _saveexec(name: str, of: Callable[[int, int], int]) -> dict[str, tuple[str, Any]]:
    return {f"s_{name}_saveexec_b32": ("u:ue", of), f"s_{name}_saveexec_b64": ("U:Ue", of)}


def _shifted_add(by: int) -> ScalarDefinition:
    return "u:uu", lambda a, b: ((a << by) + b, int((a << by) + b > BITS))


def _compared(letter: str, ending: str) -> dict[str, ScalarDefinition]:
    known = {**vector.COMPARED, "lg": lambda a, b: a != b}
    names = ("eq", "lg") if ending == "u64" else known
    return {
        f"s_cmp_{name}_{ending}": (
            f":{letter * 2}",
            lambda a, b, of=known[name]: (None, int(of(a, b))),
        )
        for name in names
    }


def _compared_to_immediate(letter: str, ending: str) -> dict[str, ScalarDefinition]:
    known = {**vector.COMPARED, "lg": lambda a, b: a != b}
    return {
        f"s_cmpk_{name}_{ending}": (
            f":{letter}k",
            lambda a, k, of=compare: (
                None,
                int(of(a, signed(k, 16) if letter == "i" else k)),
            ),
        )
        for name, compare in known.items()
    }


def first_bit(a: int) -> int:
    return (a & -a).bit_length() - 1 if a else BITS


def zeros_from_the_top(bits: int) -> Callable[[int], int]:
    return lambda a: bits - a.bit_length() if a else BITS


def with_immediate(d: int, k: int) -> tuple[int, int]:
    found = signed(d) + signed(k, 16)
    return found, int(signed(found) != found)


INSTRUCTIONS: dict[str, ScalarDefinition] = {
    "s_mov_b32": ("u:u", plain(lambda a: a)),
    "s_mov_b64": ("U:U", plain(lambda a: a)),
    "s_cmov_b32": ("u:ucq", plain(lambda a, c, d: a if c else d)),
    "s_cmov_b64": ("U:Ucq", plain(lambda a, c, d: a if c else d)),
    "s_not_b32": ("u:u", logical(lambda a: ~a)),
    "s_not_b64": ("U:U", logical(lambda a: ~a, 64)),
    "s_brev_b32": ("u:u", plain(vector.reversed_bits)),
    "s_brev_b64": ("U:U", plain(lambda a: int(f"{a:064b}"[::-1], 2))),
    "s_bcnt1_i32_b32": ("u:u", logical(int.bit_count)),
    "s_bcnt1_i32_b64": ("u:U", logical(int.bit_count)),
    "s_bcnt0_i32_b32": ("u:u", logical(lambda a: 32 - a.bit_count())),
    "s_bcnt0_i32_b64": ("u:U", logical(lambda a: 64 - a.bit_count())),
    "s_ff1_i32_b32": ("u:u", plain(first_bit)),
    "s_ff1_i32_b64": ("u:U", plain(first_bit)),
    "s_flbit_i32_b32": ("u:u", plain(zeros_from_the_top(32))),
    "s_flbit_i32_b64": ("u:U", plain(zeros_from_the_top(64))),
    "s_flbit_i32": ("u:u", plain(vector.unlike_the_sign)),
    "s_flbit_i32_i64": ("u:U", plain(lambda a: vector.unlike_the_sign(a, 64))),
    "s_sext_i32_i8": ("i:u", plain(lambda a: signed(a, 8))),
    "s_sext_i32_i16": ("i:u", plain(lambda a: signed(a, 16))),
    "s_abs_i32": ("u:i", logical(abs)),
    "s_bitset0_b32": ("u:uq", plain(lambda a, d: d & ~(1 << (a & 31)))),
    "s_bitset1_b32": ("u:uq", plain(lambda a, d: d | 1 << (a & 31))),
    "s_bitset0_b64": ("U:uq", plain(lambda a, d: d & ~(1 << (a & 63)))),
    "s_bitset1_b64": ("U:uq", plain(lambda a, d: d | 1 << (a & 63))),
    "s_add_u32": ("u:uu", carried(lambda a, b: a + b)),
    "s_sub_u32": ("u:uu", carried(lambda a, b: a - b)),
    "s_add_i32": ("u:ii", overflowing(lambda a, b: a + b)),
    "s_sub_i32": ("u:ii", overflowing(lambda a, b: a - b)),
    "s_addc_u32": ("u:uuc", carried(lambda a, b, c: a + b + c)),
    "s_subb_u32": ("u:uuc", carried(lambda a, b, c: a - b - c)),
    "s_min_i32": ("i:ii", chosen(min)),
    "s_max_i32": ("i:ii", chosen(max)),
    "s_min_u32": ("u:uu", chosen(min)),
    "s_max_u32": ("u:uu", chosen(max)),
    "s_cselect_b32": ("u:uuc", plain(lambda a, b, c: a if c else b)),
    "s_cselect_b64": ("U:UUc", plain(lambda a, b, c: a if c else b)),
    **_both("and", lambda a, b: a & b),
    **_both("or", lambda a, b: a | b),
    **_both("xor", lambda a, b: a ^ b),
    **_both("andn2", lambda a, b: a & ~b),
    **_both("orn2", lambda a, b: a | ~b),
    **_both("nand", lambda a, b: ~(a & b)),
    **_both("nor", lambda a, b: ~(a | b)),
    **_both("xnor", lambda a, b: ~(a ^ b)),
    "s_lshl_b32": ("u:uu", logical(lambda a, b: a << (b & 31))),
    "s_lshl_b64": ("U:Uu", logical(lambda a, b: a << (b & 63), 64)),
    "s_lshr_b32": ("u:uu", logical(lambda a, b: a >> (b & 31))),
    "s_lshr_b64": ("U:Uu", logical(lambda a, b: a >> (b & 63), 64)),
    "s_ashr_i32": ("i:iu", logical(lambda a, b: a >> (b & 31))),
    "s_ashr_i64": ("I:Iu", logical(lambda a, b: a >> (b & 63), 64)),
    "s_bfm_b32": ("u:uu", plain(lambda a, b: ((1 << (a & 31)) - 1) << (b & 31))),
    "s_bfm_b64": ("U:uu", plain(lambda a, b: ((1 << (a & 63)) - 1) << (b & 63))),
    "s_mul_i32": ("u:uu", plain(lambda a, b: a * b)),
    "s_mul_hi_u32": ("u:uu", plain(lambda a, b: a * b >> 32)),
    "s_mul_hi_i32": ("i:ii", plain(lambda a, b: a * b >> 32)),
    "s_bfe_u32": ("u:uu", logical(field(32, False))),
    "s_bfe_i32": ("i:uu", logical(field(32, True))),
    "s_bfe_u64": ("U:Uu", logical(field(64, False), 64)),
    "s_bfe_i64": ("I:Uu", logical(field(64, True), 64)),
    "s_absdiff_i32": ("u:ii", logical(lambda a, b: abs(signed(a - b)))),
    "s_lshl1_add_u32": _shifted_add(1),
    "s_lshl2_add_u32": _shifted_add(2),
    "s_lshl3_add_u32": _shifted_add(3),
    "s_lshl4_add_u32": _shifted_add(4),
    "s_pack_ll_b32_b16": ("u:uu", plain(vector.together)),
    "s_pack_lh_b32_b16": ("u:uu", plain(lambda a, b: vector.together(a, b >> 16))),
    "s_pack_hh_b32_b16": ("u:uu", plain(lambda a, b: vector.together(a >> 16, b >> 16))),
    "s_pack_hl_b32_b16": ("u:uu", plain(lambda a, b: vector.together(a >> 16, b))),
    "s_add_nc_u64": ("U:UU", plain(lambda a, b: a + b)),
    "s_sub_nc_u64": ("U:UU", plain(lambda a, b: a - b)),
    "s_mul_u64": ("U:UU", plain(lambda a, b: a * b)),
    "s_movk_i32": ("u:k", plain(lambda k: signed(k, 16))),
    "s_cmovk_i32": ("u:kcq", plain(lambda k, c, d: signed(k, 16) if c else d)),
    "s_addk_i32": ("u:kq", lambda k, d: with_immediate(d, k)),
    "s_mulk_i32": ("u:kq", plain(lambda k, d: d * signed(k, 16))),
    **_compared("i", "i32"),
    **_compared("u", "u32"),
    **_compared("U", "u64"),
    **_compared_to_immediate("i", "i32"),
    **_compared_to_immediate("u", "u32"),
    "s_bitcmp0_b32": (":uu", lambda a, b: (None, int(not a >> (b & 31) & 1))),
    "s_bitcmp1_b32": (":uu", lambda a, b: (None, a >> (b & 31) & 1)),
    "s_bitcmp0_b64": (":Uu", lambda a, b: (None, int(not a >> (b & 63) & 1))),
    "s_bitcmp1_b64": (":Uu", lambda a, b: (None, a >> (b & 63) & 1)),
}
"""Whole numbers."""
SAVED: dict[str, tuple[str, Callable[[int, int], int]]] = {
    **_saveexec("and", lambda a, e: a & e),
    **_saveexec("or", lambda a, e: a | e),
    **_saveexec("xor", lambda a, e: a ^ e),
    **_saveexec("andn2", lambda a, e: a & ~e),
    **_saveexec("orn2", lambda a, e: a | ~e),
}
"""What EXEC becomes; its old value is the result, and SCC says that some lane is on."""
FLOATS: dict[str, ScalarDefinition] = {
    "s_cvt_f32_i32": ("f:i", plain(lambda a: a or 0.0)),
    "s_cvt_f32_u32": ("f:u", plain(lambda a: a or 0.0)),
    "s_cvt_i32_f32": ("i:f", plain(vector.to_i32)),
    "s_cvt_u32_f32": ("u:f", plain(vector.to_integer(0, BITS))),
    "s_cvt_f16_f32": ("h:f", plain(lambda a: a)),
    "s_cvt_f32_f16": ("f:h", plain(lambda a: a)),
    "s_ceil_f32": ("f:f", plain(vector.rounded(math.ceil))),
    "s_floor_f32": ("f:f", plain(vector.rounded(math.floor))),
    "s_trunc_f32": ("f:f", plain(vector.rounded(math.trunc))),
    "s_rndne_f32": ("f:f", plain(vector.rounded(round))),
    "s_add_f32": ("f:ff", plain(added)),
    "s_sub_f32": ("f:ff", plain(lambda a, b: added(a, -b))),
    "s_mul_f32": ("f:ff", plain(times)),
    "s_min_f32": ("f:ff", plain(vector.lesser)),
    "s_max_f32": ("f:ff", plain(vector.greater)),
    "s_fmac_f32": ("f:ffq", plain(fused)),
    "s_cvt_hi_f32_f16": ("f:u", plain(lambda a: vector.halves(a)[1])),
    "s_cvt_pk_rtz_f16_f32": ("u:ff", plain(vector.CONVERSIONS["v_cvt_pkrtz_f16_f32"][1])),
    "s_maximum_f32": ("f:ff", plain(vector.or_nan(vector.greater))),
    "s_minimum_f32": ("f:ff", plain(vector.or_nan(vector.lesser))),
    "s_maximum_f16": ("h:hh", plain(vector.or_nan(vector.greater))),
    "s_minimum_f16": ("h:hh", plain(vector.or_nan(vector.lesser))),
    "s_ceil_f16": ("h:h", plain(vector.rounded(math.ceil))),
    "s_floor_f16": ("h:h", plain(vector.rounded(math.floor))),
    "s_trunc_f16": ("h:h", plain(vector.rounded(math.trunc))),
    "s_rndne_f16": ("h:h", plain(vector.rounded(round))),
    "s_add_f16": ("h:hh", plain(added)),
    "s_sub_f16": ("h:hh", plain(lambda a, b: added(a, -b))),
    "s_mul_f16": ("h:hh", plain(times)),
    "s_min_f16": ("h:hh", plain(vector.lesser)),
    "s_max_f16": ("h:hh", plain(vector.greater)),
    "s_fmac_f16": ("h:hhq", plain(fused)),
    **{
        f"s_cmp_{name}_f16": (":hh", lambda a, b, of=compare: (None, int(of(a, b))))
        for name, compare in (vector.COMPARED | vector.COMPARED_FLOATS).items()
    },
    **{
        f"s_cmp_{name}_f32": (":ff", lambda a, b, of=compare: (None, int(of(a, b))))
        for name, compare in (vector.COMPARED | vector.COMPARED_FLOATS).items()
    },
}
"""Floats: RDNA 4 alone."""
NEAR: dict[str, ScalarDefinition] = {
    "v_s_exp_f32": ("f:f", plain(vector.power_of_two)),
    "v_s_log_f32": ("f:f", plain(vector.logarithm)),
    "v_s_rcp_f32": ("f:f", plain(vector.NEAR["v_rcp_f32"][1])),
    "v_s_rsq_f32": ("f:f", plain(vector.NEAR["v_rsq_f32"][1])),
    "v_s_sqrt_f32": ("f:f", plain(vector.root)),
    "v_s_exp_f16": ("h:h", plain(vector.power_of_two)),
    "v_s_log_f16": ("h:h", plain(vector.logarithm)),
    "v_s_rcp_f16": ("h:h", plain(vector.NEAR["v_rcp_f16"][1])),
    "v_s_rsq_f16": ("h:h", plain(vector.NEAR["v_rsq_f16"][1])),
    "v_s_sqrt_f16": ("h:h", plain(vector.root)),
}
"""Floats whose last bits the manual leaves open, likewise."""
