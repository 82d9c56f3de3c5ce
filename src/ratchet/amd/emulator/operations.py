"""The table of operations: mnemonic, operand kinds, expression, and where the ISA manual has it.

The manual is "AMD Instinct MI300 Instruction Set Architecture", chapter "Instructions"; a section
here is one of its sections. What only gfx90a has (`v_mad_f32`, `v_mac_f32`) is in "AMD Instinct
MI200 Instruction Set Architecture"; gfx950's additions are in the CDNA 4 edition, those
of RDNA in "RDNA3 Instruction Set Architecture" and "RDNA4 Instruction Set Architecture".

A line is `mnemonic | results:sources | expression`. The kinds of operands:

    u i U I     32 and 64 bits, without and with sign        w x    16 bits, likewise
    f D h       f32, f64, f16 (computed in f32)              m      one bit of each lane
    v           one bit of each lane, in VCC, not written    q      old value of the result

Sources are `a`, `b`, `c` in order, `d` is the old value of the result. The expression of a vector
operation gives its result `r`, or its mask `m`. An operation with both has statements in braces,
which assign both. Scalar operations have a table of their own.
"""

# ruff: noqa: E501  an operation stands on one line
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Operation:
    """One mnemonic, without the suffix of its encoding."""

    name: str
    results: str
    sources: str
    expression: str
    section: str

    def __post_init__(self) -> None:
        both = "m" in self.results and len(self.results) > 1
        if both and not (self.is_scalar or self.statements):
            raise AssertionError(f"{self.name} has a result and a mask: write statements for both")

    @property
    def is_scalar(self) -> bool:
        return self.name.startswith(("s_", "v_s_"))

    @property
    def statements(self) -> str:
        """The statements of a vector operation in braces; empty if it has an expression."""
        return self.expression[1:-1].strip() if self.expression.startswith("{") else ""


VECTOR: Final = {
    "VOP1": """
        v_mov_b32 | u:u | a
        v_mov_b64 | U:U | a
        v_accvgpr_read_b32 | u:u | a
        v_accvgpr_write_b32 | u:u | a
        v_accvgpr_mov_b32 | u:u | a
        v_not_b32 | u:u | ~a
        v_bfrev_b32 | u:u | reversed(a)
        v_ffbh_u32 | u:u | a ? u32(__builtin_clz(a)) : ~0u
        v_ffbl_b32 | u:u | a ? u32(__builtin_ctz(a)) : ~0u
        v_ffbh_i32 | u:i | leading_signs(a)
        v_not_b16 | w:w | ~a
        v_cvt_i32_i16 | i:x | a
        v_cvt_u32_u16 | u:w | a
        v_cvt_f32_i32 | f:i | f32(a)
        v_cvt_f32_u32 | f:u | f32(a)
        v_cvt_i32_f32 | i:f | to_i32(a)
        v_cvt_u32_f32 | u:f | to_u32(a)
        v_cvt_i32_f64 | i:D | to_i32(a)
        v_cvt_u32_f64 | u:D | to_u32(a)
        v_cvt_f64_i32 | D:i | f64(a)
        v_cvt_f64_u32 | D:u | f64(a)
        v_cvt_f64_f32 | D:f | f64(a)
        v_cvt_f32_f64 | f:D | f32(a)
        v_cvt_f16_f32 | h:f | a
        v_cvt_f32_f16 | f:h | a
        v_cvt_f16_u16 | h:w | f32(a)
        v_cvt_f16_i16 | h:x | f32(a)
        v_cvt_u16_f16 | w:h | u32(a > 0 ? (a < 65535 ? a : 65535) : 0)
        v_cvt_i16_f16 | x:h | i32(a == a ? (a < -32768 ? -32768 : a > 32767 ? 32767 : a) : 0)
        v_cvt_f32_ubyte0 | f:u | f32(a & 255)
        v_cvt_f32_ubyte1 | f:u | f32(a >> 8 & 255)
        v_cvt_f32_ubyte2 | f:u | f32(a >> 16 & 255)
        v_cvt_f32_ubyte3 | f:u | f32(a >> 24)
        v_cvt_flr_i32_f32 | i:f | to_i32(floorf(a))
        v_cvt_rpi_i32_f32 | i:f | to_i32(floorf(a + 0.5f))
        v_rcp_f32 | f:f | 1.0f / a
        v_rcp_iflag_f32 | f:f | 1.0f / a
        v_rsq_f32 | f:f | 1.0f / sqrtf(a)
        v_sqrt_f32 | f:f | sqrtf(a)
        v_exp_f32 | f:f | exp2_of(a)
        v_log_f32 | f:f | log2f(a)
        v_sin_f32 | f:f | sine(a)
        v_cos_f32 | f:f | cosine(a)
        v_fract_f32 | f:f | fraction(a, 0x1.fffffep-1f)
        v_trunc_f32 | f:f | truncf(a)
        v_ceil_f32 | f:f | ceilf(a)
        v_floor_f32 | f:f | floorf(a)
        v_rndne_f32 | f:f | nearbyintf(a)
        v_frexp_exp_i32_f32 | i:f | exponent_of(a)
        v_frexp_mant_f32 | f:f | mantissa_of(a)
        v_cvt_f32_fp8 | f:u | small_float(a & 255, 3, false)
        v_cvt_f32_bf8 | f:u | small_float(a & 255, 2, false)
        v_cvt_f32_fp8_ocp | f:u | small_float(a & 255, 3, true)
        v_cvt_f32_bf8_ocp | f:u | small_float(a & 255, 2, true)
        v_cvt_pk_f32_fp8 | U:u | two_floats(small_float(a & 255, 3, false), small_float(a >> 8 & 255, 3, false))
        v_cvt_pk_f32_bf8 | U:u | two_floats(small_float(a & 255, 2, false), small_float(a >> 8 & 255, 2, false))
        v_cvt_pk_f32_fp8_ocp | U:u | two_floats(small_float(a & 255, 3, true), small_float(a >> 8 & 255, 3, true))
        v_cvt_pk_f32_bf8_ocp | U:u | two_floats(small_float(a & 255, 2, true), small_float(a >> 8 & 255, 2, true))
        v_rcp_f16 | h:h | 1.0f / a
        v_rsq_f16 | h:h | 1.0f / sqrtf(a)
        v_sqrt_f16 | h:h | sqrtf(a)
        v_exp_f16 | h:h | exp2_of(a)
        v_log_f16 | h:h | log2f(a)
        v_trunc_f16 | h:h | truncf(a)
        v_ceil_f16 | h:h | ceilf(a)
        v_floor_f16 | h:h | floorf(a)
        v_rndne_f16 | h:h | nearbyintf(a)
        v_rcp_f64 | D:D | 1.0 / a
        v_rsq_f64 | D:D | 1.0 / sqrt(a)
        v_sqrt_f64 | D:D | sqrt(a)
        v_trunc_f64 | D:D | trunc(a)
        v_ceil_f64 | D:D | ceil(a)
        v_floor_f64 | D:D | floor(a)
        v_rndne_f64 | D:D | nearbyint(a)
        v_frexp_exp_i32_f64 | i:D | exponent_of(a)
        v_frexp_mant_f64 | D:D | mantissa_of(a)
        v_frexp_exp_i16_f16 | x:h | exponent_of(a)
        v_frexp_mant_f16 | h:h | mantissa_of(a)
        v_fract_f16 | h:h | fraction(a, 0x1.ffcp-1f)
        v_fract_f64 | D:D | fraction(a, 0x1.fffffffffffffp-1)
        v_sin_f16 | h:h | sine(a)
        v_cos_f16 | h:h | cosine(a)
    """,
    "VOP2": """
        v_cndmask_b32 | u:uum | c ? b : a
        v_add_f32 | f:ff | a + b
        v_sub_f32 | f:ff | a - b
        v_subrev_f32 | f:ff | b - a
        v_mul_f32 | f:ff | a * b
        v_mul_legacy_f32 | f:ff | a == 0 || b == 0 ? 0.0f : a * b
        v_fmac_f32 | f:ffq | fma_f32(a, b, d)
        v_fmamk_f32 | f:fff | fma_f32(a, b, c)
        v_fmaak_f32 | f:fff | fma_f32(a, b, c)
        v_mac_f32 | f:ffq | unfused(a, b, d)
        v_madmk_f32 | f:fff | unfused(a, b, c)
        v_madak_f32 | f:fff | unfused(a, b, c)
        v_fmac_f64 | D:DDq | fma(a, b, d)
        v_min_f32 | f:ff | smaller(a, b)
        v_max_f32 | f:ff | larger(a, b)
        v_add_u32 | u:uu | a + b
        v_sub_u32 | u:uu | a - b
        v_subrev_u32 | u:uu | b - a
        v_mul_i32_i24 | u:uu | u32(low24(a) * low24(b))
        v_mul_u32_u24 | u:uu | (a & 0xffffff) * (b & 0xffffff)
        v_mul_hi_u32_u24 | u:uu | u32(u64(a & 0xffffff) * (b & 0xffffff) >> 32)
        v_mul_hi_i32_i24 | i:uu | i32(i64(low24(a)) * low24(b) >> 32)
        v_min_i32 | i:ii | a < b ? a : b
        v_max_i32 | i:ii | a > b ? a : b
        v_min_u32 | u:uu | a < b ? a : b
        v_max_u32 | u:uu | a > b ? a : b
        v_lshlrev_b32 | u:uu | b << (a & 31)
        v_lshrrev_b32 | u:uu | b >> (a & 31)
        v_ashrrev_i32 | i:ui | b >> (a & 31)
        v_and_b32 | u:uu | a & b
        v_or_b32 | u:uu | a | b
        v_xor_b32 | u:uu | a ^ b
        v_xnor_b32 | u:uu | ~(a ^ b)
        v_add_co_u32 | um:uu | { r = a + b; m = r < a }
        v_sub_co_u32 | um:uu | { r = a - b; m = a < b }
        v_subrev_co_u32 | um:uu | { r = b - a; m = b < a }
        v_addc_co_u32 | um:uum | { const u64 t = u64(a) + b + c; r = u32(t); m = u32(t >> 32) }
        v_subb_co_u32 | um:uum | { const u64 t = u64(a) - b - c; r = u32(t); m = u32(t >> 63) }
        v_subbrev_co_u32 | um:uum | { const u64 t = u64(b) - a - c; r = u32(t); m = u32(t >> 63) }
        v_ldexp_f16 | h:hx | scaled(a, b)
        v_add_f16 | h:hh | a + b
        v_sub_f16 | h:hh | a - b
        v_subrev_f16 | h:hh | b - a
        v_mul_f16 | h:hh | a * b
        v_min_f16 | h:hh | smaller(a, b)
        v_max_f16 | h:hh | larger(a, b)
        v_fmamk_f16 | h:hhh | f16_of(f64(a) * b + c)
        v_fmaak_f16 | h:hhh | f16_of(f64(a) * b + c)
        v_fmac_f16 | h:hhq | f16_of(f64(a) * b + d)
        v_add_u16 | w:ww | a + b
        v_sub_u16 | w:ww | a - b
        v_subrev_u16 | w:ww | b - a
        v_mul_lo_u16 | w:ww | a * b
        v_lshlrev_b16 | w:ww | b << (a & 15)
        v_lshrrev_b16 | w:ww | b >> (a & 15)
        v_ashrrev_i16 | x:wx | b >> (a & 15)
        v_max_u16 | w:ww | a > b ? a : b
        v_max_i16 | x:xx | a > b ? a : b
        v_min_u16 | w:ww | a < b ? a : b
        v_min_i16 | x:xx | a < b ? a : b
        v_dot2c_f32_f16 | f:uuq | f32(f64(half(a)) * half(b) + f64(half(a >> 16)) * half(b >> 16) + d)
        v_dot4c_i32_i8 | i:uuq | i32(u32(d) + u32(dot<8, true, true>(a, b)))
        v_dot2c_f32_bf16 | f:uuq | f32(bf16(a) * bf16(b) + bf16(a >> 16) * bf16(b >> 16) + d)
    """,
    "VOP3A & VOP3B": """
        v_fma_f32 | f:fff | fma_f32(a, b, c)
        v_mad_f32 | f:fff | unfused(a, b, c)
        v_fma_f64 | D:DDD | fma(a, b, c)
        v_add_f64 | D:DD | a + b
        v_mul_f64 | D:DD | a * b
        v_min_f64 | D:DD | smaller(a, b)
        v_max_f64 | D:DD | larger(a, b)
        v_ldexp_f64 | D:Di | scalbn(a, b)
        v_trig_preop_f64 | D:Du | angle_segment(a, b)
        v_ldexp_f32 | f:fi | scaled(a, b)
        v_add_i32 | u:uu | a + b
        v_sub_i32 | u:uu | a - b
        v_add_u32_clamp | u:uu | a + b < a ? ~0u : a + b
        v_sub_u32_clamp | u:uu | a < b ? 0 : a - b
        v_subrev_u32_clamp | u:uu | b < a ? 0 : b - a
        v_add_i32_clamp | i:ii | i32(least(most(i64(a) + b, i64(-2147483648)), i64(2147483647)))
        v_sub_i32_clamp | i:ii | i32(least(most(i64(a) - b, i64(-2147483648)), i64(2147483647)))
        v_add_u16_clamp | w:ww | least(a + b, 65535u)
        v_sub_u16_clamp | w:ww | a < b ? 0 : a - b
        v_mul_lo_u32 | u:uu | a * b
        v_mul_hi_u32 | u:uu | u32(u64(a) * b >> 32)
        v_mul_hi_i32 | i:ii | i32(i64(a) * b >> 32)
        v_mad_u64_u32 | Um:uuU | { r = u64(a) * b + c; m = r < c }
        v_mad_i64_i32 | Im:iiI | { m = __builtin_add_overflow(i64(a) * b, c, &r) }
        v_mad_i32_i24 | u:uuu | u32(low24(a) * low24(b)) + c
        v_mad_u32_u24 | u:uuu | (a & 0xffffff) * (b & 0xffffff) + c
        v_mad_u32_u16 | u:wwu | a * b + c
        v_mad_i32_i16 | i:xxi | a * b + c
        v_mad_u16 | w:www | a * b + c
        v_mad_legacy_u16 | w:www | a * b + c
        v_mad_i16 | w:www | a * b + c
        v_mad_legacy_i16 | w:www | a * b + c
        v_fma_f16 | h:hhh | f16_of(f64(a) * b + c)
        v_bfe_u32 | u:uuu | a >> (b & 31) & ((1u << (c & 31)) - 1)
        v_bfe_i32 | i:iuu | field(a, b & 31, c & 31)
        v_bfi_b32 | u:uuu | (a & b) | (~a & c)
        v_bfm_b32 | u:uu | ((1u << (a & 31)) - 1) << (b & 31)
        v_alignbit_b32 | u:uuu | u32((u64(a) << 32 | b) >> (c & 31))
        v_alignbyte_b32 | u:uuu | u32((u64(a) << 32 | b) >> 8 * (c & 3))
        v_perm_b32 | u:uuu | permuted(a, b, c)
        v_add3_u32 | u:uuu | a + b + c
        v_lshl_add_u32 | u:uuu | (a << (b & 31)) + c
        v_add_lshl_u32 | u:uuu | (a + b) << (c & 31)
        v_lshl_or_b32 | u:uuu | a << (b & 31) | c
        v_and_or_b32 | u:uuu | (a & b) | c
        v_or3_b32 | u:uuu | a | b | c
        v_xad_u32 | u:uuu | (a ^ b) + c
        v_xor3_b32 | u:uuu | a ^ b ^ c
        v_lshl_add_u64 | U:UuU | (a << (b & 7)) + c
        v_lshlrev_b64 | U:uU | b << (a & 63)
        v_lshrrev_b64 | U:uU | b >> (a & 63)
        v_ashrrev_i64 | I:uI | b >> (a & 63)
        v_min3_f32 | f:fff | smaller(smaller(a, b), c)
        v_max3_f32 | f:fff | larger(larger(a, b), c)
        v_med3_f32 | f:fff | middle(a, b, c)
        v_min3_f16 | h:hhh | smaller(smaller(a, b), c)
        v_max3_f16 | h:hhh | larger(larger(a, b), c)
        v_med3_f16 | h:hhh | middle(a, b, c)
        v_min3_i16 | x:xxx | least(least(a, b), c)
        v_max3_i16 | x:xxx | most(most(a, b), c)
        v_min3_u16 | w:www | least(least(a, b), c)
        v_max3_u16 | w:www | most(most(a, b), c)
        v_med3_i16 | x:xxx | most(least(a, b), least(most(a, b), c))
        v_med3_u16 | w:www | most(least(a, b), least(most(a, b), c))
        v_min3_i32 | i:iii | least(least(a, b), c)
        v_max3_i32 | i:iii | most(most(a, b), c)
        v_med3_i32 | i:iii | most(least(a, b), least(most(a, b), c))
        v_min3_u32 | u:uuu | least(least(a, b), c)
        v_max3_u32 | u:uuu | most(most(a, b), c)
        v_med3_u32 | u:uuu | most(least(a, b), least(most(a, b), c))
        v_maximum_f32 | f:ff | greatest(a, b)
        v_minimum_f32 | f:ff | smallest(a, b)
        v_maximum3_f32 | f:fff | greatest(greatest(a, b), c)
        v_minimum3_f32 | f:fff | smallest(smallest(a, b), c)
        v_maximum_f16 | h:hh | greatest(a, b)
        v_minimum_f16 | h:hh | smallest(a, b)
        v_maximum3_f16 | h:hhh | greatest(greatest(a, b), c)
        v_minimum3_f16 | h:hhh | smallest(smallest(a, b), c)
        v_maximum_f64 | D:DD | greatest(a, b)
        v_minimum_f64 | D:DD | smallest(a, b)
        v_maximumminimum_f32 | f:fff | smallest(greatest(a, b), c)
        v_minimummaximum_f32 | f:fff | greatest(smallest(a, b), c)
        v_maximumminimum_f16 | h:hhh | smallest(greatest(a, b), c)
        v_minimummaximum_f16 | h:hhh | greatest(smallest(a, b), c)
        v_minmax_f16 | h:hhh | larger(smaller(a, b), c)
        v_maxmin_f16 | h:hhh | smaller(larger(a, b), c)
        v_minmax_f32 | f:fff | larger(smaller(a, b), c)
        v_maxmin_f32 | f:fff | smaller(larger(a, b), c)
        v_minmax_i32 | i:iii | most(least(a, b), c)
        v_maxmin_i32 | i:iii | least(most(a, b), c)
        v_minmax_u32 | u:uuu | most(least(a, b), c)
        v_maxmin_u32 | u:uuu | least(most(a, b), c)
        v_and_b16 | w:ww | a & b
        v_or_b16 | w:ww | a | b
        v_xor_b16 | w:ww | a ^ b
        v_cndmask_b16 | w:wwm | c ? b : a
        v_dot2_bf16_bf16 | w:uuw | bf16_of(f32(bf16(a) * bf16(b) + bf16(a >> 16) * bf16(b >> 16) + bf16(c)))
        v_dot2_f32_f16 | f:uuf | f32(f64(half(a)) * half(b) + f64(half(a >> 16)) * half(b >> 16) + c)
        v_dot2_f32_bf16 | f:uuf | f32(bf16(a) * bf16(b) + bf16(a >> 16) * bf16(b >> 16) + c)
        v_dot2_i32_i16 | u:uuu | c + u32(dot<16, true, true>(a, b))
        v_dot2_u32_u16 | u:uuu | c + u32(dot<16, false, false>(a, b))
        v_dot4_i32_i8 | u:uuu | c + u32(dot<8, true, true>(a, b))
        v_dot4_u32_u8 | u:uuu | c + u32(dot<8, false, false>(a, b))
        v_dot8_i32_i4 | u:uuu | c + u32(dot<4, true, true>(a, b))
        v_dot8_u32_u4 | u:uuu | c + u32(dot<4, false, false>(a, b))
        v_dot4_i32_iu8_00 | u:uuu | c + u32(dot<8, false, false>(a, b))
        v_dot4_i32_iu8_10 | u:uuu | c + u32(dot<8, true, false>(a, b))
        v_dot4_i32_iu8_01 | u:uuu | c + u32(dot<8, false, true>(a, b))
        v_dot4_i32_iu8_11 | u:uuu | c + u32(dot<8, true, true>(a, b))
        v_dot8_i32_iu4_00 | u:uuu | c + u32(dot<4, false, false>(a, b))
        v_dot8_i32_iu4_10 | u:uuu | c + u32(dot<4, true, false>(a, b))
        v_dot8_i32_iu4_01 | u:uuu | c + u32(dot<4, false, true>(a, b))
        v_dot8_i32_iu4_11 | u:uuu | c + u32(dot<4, true, true>(a, b))
        v_bcnt_u32_b32 | u:uu | u32(__builtin_popcount(a)) + b
        v_mbcnt_lo_u32_b32 | u:uu | u32(__builtin_popcount(a & (l < 32 ? (1u << l) - 1 : ~0u))) + b
        v_mbcnt_hi_u32_b32 | u:uu | u32(__builtin_popcount(l < 32 ? 0 : a & ((1u << (l - 32)) - 1))) + b
        v_cvt_pkrtz_f16_f32 | u:ff | toward_zero(a) | toward_zero(b) << 16
        v_cvt_pk_f16_f32 | u:ff | half_bits(a, w.clamps) | half_bits(b, w.clamps) << 16
        v_cvt_pk_fp8_f32 | u:ffq | into_half(d, small_bits(a, 3, false, w.clamps) | small_bits(b, 3, false, w.clamps) << 8, in)
        v_cvt_pk_bf8_f32 | u:ffq | into_half(d, small_bits(a, 2, false, w.clamps) | small_bits(b, 2, false, w.clamps) << 8, in)
        v_cvt_pk_fp8_f32_ocp | u:ffq | into_half(d, small_bits(a, 3, true, w.clamps) | small_bits(b, 3, true, w.clamps) << 8, in)
        v_cvt_pk_bf8_f32_ocp | u:ffq | into_half(d, small_bits(a, 2, true, w.clamps) | small_bits(b, 2, true, w.clamps) << 8, in)
        v_cvt_scalef32_pk_fp8_f32 | u:fffq | into_half(d, small_bits(by_scale(a, c, true), 3, true, w.clamps) | small_bits(by_scale(b, c, true), 3, true, w.clamps) << 8, in)
        v_cvt_scalef32_pk_fp8_f16 | u:ufq | into_half(d, small_bits(by_scale(half(a), b, true), 3, true, w.clamps) | small_bits(by_scale(half(a >> 16), b, true), 3, true, w.clamps) << 8, in)
        v_cvt_scalef32_pk_fp8_bf16 | u:ufq | into_half(d, small_bits(by_scale(f32(bf16(a)), b, true), 3, true, w.clamps) | small_bits(by_scale(f32(bf16(a >> 16)), b, true), 3, true, w.clamps) << 8, in)
        v_cvt_scalef32_pk_bf8_f32 | u:fffq | into_half(d, small_bits(by_scale(a, c, true), 2, true, w.clamps) | small_bits(by_scale(b, c, true), 2, true, w.clamps) << 8, in)
        v_cvt_scalef32_pk_bf8_f16 | u:ufq | into_half(d, small_bits(by_scale(half(a), b, true), 2, true, w.clamps) | small_bits(by_scale(half(a >> 16), b, true), 2, true, w.clamps) << 8, in)
        v_cvt_scalef32_pk_bf8_bf16 | u:ufq | into_half(d, small_bits(by_scale(f32(bf16(a)), b, true), 2, true, w.clamps) | small_bits(by_scale(f32(bf16(a >> 16)), b, true), 2, true, w.clamps) << 8, in)
        v_cvt_scalef32_pk_f32_fp8 | U:uf | two_floats(by_scale(small_float(a & 255, 3, true), b), by_scale(small_float(a >> 8 & 255, 3, true), b))
        v_cvt_scalef32_pk_f16_fp8 | u:uf | half_bits(by_scale(small_float(a & 255, 3, true), b), w.clamps) | half_bits(by_scale(small_float(a >> 8 & 255, 3, true), b), w.clamps) << 16
        v_cvt_scalef32_pk_bf16_fp8 | u:uf | bf16_of(by_scale(small_float(a & 255, 3, true), b)) | bf16_of(by_scale(small_float(a >> 8 & 255, 3, true), b)) << 16
        v_cvt_scalef32_pk_f32_bf8 | U:uf | two_floats(by_scale(small_float(a & 255, 2, true), b), by_scale(small_float(a >> 8 & 255, 2, true), b))
        v_cvt_scalef32_pk_f16_bf8 | u:uf | half_bits(by_scale(small_float(a & 255, 2, true), b), w.clamps) | half_bits(by_scale(small_float(a >> 8 & 255, 2, true), b), w.clamps) << 16
        v_cvt_scalef32_pk_bf16_bf8 | u:uf | bf16_of(by_scale(small_float(a & 255, 2, true), b)) | bf16_of(by_scale(small_float(a >> 8 & 255, 2, true), b)) << 16
        v_cvt_scalef32_pk_f32_fp4 | U:uf | two_floats(by_scale(tiny_float(a & 15), b), by_scale(tiny_float(a >> 4 & 15), b))
        v_cvt_scalef32_pk_f16_fp4 | u:uf | half_bits(by_scale(tiny_float(a & 15), b), w.clamps) | half_bits(by_scale(tiny_float(a >> 4 & 15), b), w.clamps) << 16
        v_cvt_scalef32_pk_bf16_fp4 | u:uf | bf16_of(by_scale(tiny_float(a & 15), b)) | bf16_of(by_scale(tiny_float(a >> 4 & 15), b)) << 16
        v_cvt_pk_u16_u32 | u:uu | least(a, 65535u) | least(b, 65535u) << 16
        v_cvt_pk_i16_i32 | u:ii | packed16(a, b)
        v_cvt_pk_i16_f32 | u:ff | packed16(to_i32(a), to_i32(b))
        v_cvt_pk_u16_f32 | u:ff | least(to_u32(a), 65535u) | least(to_u32(b), 65535u) << 16
        v_cvt_pk_bf16_f32 | u:ff | bf16_of(a) | bf16_of(b) << 16
        v_pack_b32_f16 | u:ww | a | b << 16
        v_sad_u32 | u:uuu | (a > b ? a - b : b - a) + c
        v_sad_u8 | u:uuu | c + differences<8>(a, b)
        v_sad_hi_u8 | u:uuu | c + (differences<8>(a, b) << 16)
        v_sad_u16 | u:uuu | c + differences<16>(a, b)
        v_div_scale_f32 | fm:fff | { r = divide_scale(a, b, c, m) }
        v_div_scale_f64 | Dm:DDD | { r = divide_scale(a, b, c, m) }
        v_div_fmas_f64 | D:DDDv | divide_fmas(a, b, c, vcc)
        v_div_fixup_f64 | D:DDD | divide_fixup(a, b, c)
        v_div_fmas_f32 | f:fffv | divide_fmas(a, b, c, vcc)
        v_div_fixup_f16 | h:hhh | divide_fixup(a, b, c)
        v_div_fixup_f32 | f:fff | divide_fixup(a, b, c)
        v_bitop3_b32 | u:uuu | three_bits(a, b, c, in.aux[0])
        v_bitop3_b16 | w:www | three_bits(a, b, c, in.aux[0])
        v_prng_b32 | u:u | a << 1 ^ (a >> 31 ? 197u : 0u)
    """,
}

PACKED: Final = {
    "VOP3P": """
        v_pk_add_f32 | f:ff | a + b
        v_pk_mul_f32 | f:ff | a * b
        v_pk_fma_f32 | f:fff | fma_f32(a, b, c)
        v_pk_add_f16 | h:hh | a + b
        v_pk_mul_f16 | h:hh | a * b
        v_pk_fma_f16 | h:hhh | f16_of(f64(a) * b + c)
        v_pk_min_f16 | h:hh | smaller(a, b)
        v_pk_max_f16 | h:hh | larger(a, b)
        v_pk_maximum_f16 | h:hh | greatest(a, b)
        v_pk_minimum_f16 | h:hh | smallest(a, b)
        v_pk_maximum3_f16 | h:hhh | greatest(greatest(a, b), c)
        v_pk_minimum3_f16 | h:hhh | smallest(smallest(a, b), c)
        v_pk_add_u16 | w:ww | a + b
        v_pk_add_i16 | x:xx | a + b
        v_pk_sub_u16 | w:ww | a - b
        v_pk_sub_i16 | x:xx | a - b
        v_pk_mul_lo_u16 | w:ww | a * b
        v_pk_mad_u16 | w:www | a * b + c
        v_pk_mad_i16 | x:xxx | a * b + c
        v_pk_lshlrev_b16 | w:ww | b << (a & 15)
        v_pk_lshrrev_b16 | w:ww | b >> (a & 15)
        v_pk_ashrrev_i16 | x:wx | b >> (a & 15)
        v_pk_max_i16 | x:xx | a > b ? a : b
        v_pk_min_i16 | x:xx | a < b ? a : b
        v_pk_max_u16 | w:ww | a > b ? a : b
        v_pk_min_u16 | w:ww | a < b ? a : b
    """,
}
"""Operations that are done twice, on the low and the high half of the operands."""

TYPES: Final = {
    "f16": "h", "f32": "f", "f64": "D", "i16": "x", "u16": "w",
    "i32": "i", "u32": "u", "i64": "I", "u64": "U",
}  # fmt: skip
"""Kinds of operands by the ending of a comparison."""
FLOAT_COMPARISONS: Final = {
    "lt": "a < b", "eq": "a == b", "le": "a <= b", "gt": "a > b", "lg": "(a < b) | (a > b)",
    "ge": "a >= b", "o": "(a == a) & (b == b)", "u": "(a != a) | (b != b)", "nge": "!(a >= b)",
    "nlg": "!((a < b) | (a > b))", "ngt": "!(a > b)", "nle": "!(a <= b)", "neq": "!(a == b)",
    "nlt": "!(a < b)",
}  # fmt: skip
INTEGER_COMPARISONS: Final = {
    "lt": "a < b", "eq": "a == b", "le": "a <= b", "gt": "a > b", "ne": "a != b", "ge": "a >= b",
}  # fmt: skip
_WITHOUT_EFFECT: Final = (
    "s_nop s_setprio s_sleep s_inst_prefetch s_icache_inv s_dcache_inv s_dcache_wb "
    "buffer_inv buffer_invl2 buffer_wbinvl1 buffer_wbinvl1_vol s_set_gpr_idx_off s_sethalt "
    "s_ttracedata v_nop s_delay_alu s_clause s_waitcnt_depctr s_set_inst_prefetch_distance "
    "buffer_gl0_inv buffer_gl1_inv s_wait_alu "
)
NOTHING: Final = frozenset(_WITHOUT_EFFECT.split())
"""Instructions that change no value."""


def read(tables: dict[str, str]) -> Iterator[Operation]:
    for section, text in tables.items():
        for line in text.strip().splitlines():
            name, form, expression = (part.strip() for part in line.split("|", 2))
            results, _, sources = form.partition(":")
            yield Operation(name, results, sources, expression, section)


def comparisons() -> Iterator[Operation]:
    """Return every `v_cmp` and `v_cmpx` (section VOPC), and those of scalar floats (section SOPC)."""
    for ending, kind in TYPES.items():
        found = FLOAT_COMPARISONS if ending.startswith("f") else INTEGER_COMPARISONS
        for name, expression in found.items():
            for prefix in ("v_cmp", "v_cmpx"):
                yield Operation(f"{prefix}_{name}_{ending}", "m", kind * 2, expression, "VOPC")
    for name, expression in FLOAT_COMPARISONS.items():
        yield Operation(f"s_cmp_{name}_f32", "", "ff", f"scc = {expression}", "SOPC")
        yield Operation(f"s_cmp_{name}_f16", "", "hh", f"scc = {expression}", "SOPC")
    for ending, kind in (("f32", "f"), ("f16", "h"), ("f64", "D")):
        form = "ww" if kind == "h" else f"{kind}u"
        test = "class_of_half(a, b)" if kind == "h" else "class_of(a, b)"
        yield Operation(f"v_cmp_class_{ending}", "m", form, test, "VOPC")
