"""The table of scalar operations, in the form of `operations`.

Their expressions are statements that assign `r`, and `scc` if the manual says so.
"""

# ruff: noqa: E501  an operation stands on one line
from __future__ import annotations

from typing import Final

SCALAR: Final = {
    "SOP1": """
        s_mov_b32 | u:u | r = a
        s_mov_b64 | U:U | r = a
        s_cmov_b32 | u:u | r = scc ? a : d
        s_cmov_b64 | U:U | r = scc ? a : d
        s_not_b32 | u:u | r = ~a; scc = r != 0
        s_not_b64 | U:U | r = ~a; scc = r != 0
        s_brev_b32 | u:u | r = reversed(a)
        s_brev_b64 | U:U | r = u64(reversed(u32(a))) << 32 | reversed(u32(a >> 32))
        s_bcnt1_i32_b32 | u:u | r = u32(__builtin_popcount(a)); scc = r != 0
        s_bcnt1_i32_b64 | u:U | r = u32(__builtin_popcountll(a)); scc = r != 0
        s_ff1_i32_b32 | u:u | r = a ? u32(__builtin_ctz(a)) : ~0u
        s_ff1_i32_b64 | u:U | r = a ? u32(__builtin_ctzll(a)) : ~0u
        s_flbit_i32_b32 | u:u | r = a ? u32(__builtin_clz(a)) : ~0u
        s_flbit_i32_b64 | u:U | r = a ? u32(__builtin_clzll(a)) : ~0u
        s_flbit_i32 | u:i | r = leading_signs(a)
        s_flbit_i32_i64 | u:I | r = leading_signs(a)
        s_sext_i32_i8 | i:u | r = i32(int8_t(a))
        s_sext_i32_i16 | i:u | r = i32(int16_t(a))
        s_abs_i32 | u:u | r = a >> 31 ? 0 - a : a; scc = r != 0
        s_cvt_f32_i32 | f:i | r = f32(a)
        s_cvt_f32_u32 | f:u | r = f32(a)
        s_cvt_i32_f32 | i:f | r = to_i32(a)
        s_cvt_u32_f32 | u:f | r = to_u32(a)
        s_cvt_f16_f32 | h:f | r = a
        s_cvt_f32_f16 | f:h | r = a
        v_s_exp_f32 | f:f | r = exp2_of(a)
        v_s_log_f32 | f:f | r = log2f(a)
        v_s_rcp_f32 | f:f | r = 1.0f / a
        v_s_rsq_f32 | f:f | r = 1.0f / sqrtf(a)
        v_s_sqrt_f32 | f:f | r = sqrtf(a)
        v_s_exp_f16 | h:h | r = exp2_of(a)
        v_s_log_f16 | h:h | r = log2f(a)
        v_s_rcp_f16 | h:h | r = 1.0f / a
        v_s_rsq_f16 | h:h | r = 1.0f / sqrtf(a)
        v_s_sqrt_f16 | h:h | r = sqrtf(a)
        s_cvt_hi_f32_f16 | f:u | r = half(a >> 16)
        s_ceil_f16 | h:h | r = ceilf(a)
        s_floor_f16 | h:h | r = floorf(a)
        s_trunc_f16 | h:h | r = truncf(a)
        s_rndne_f16 | h:h | r = nearbyintf(a)
        s_bcnt0_i32_b32 | u:u | r = u32(__builtin_popcount(~a)); scc = r != 0
        s_bcnt0_i32_b64 | u:U | r = u32(__builtin_popcountll(~a)); scc = r != 0
        s_ceil_f32 | f:f | r = ceilf(a)
        s_floor_f32 | f:f | r = floorf(a)
        s_trunc_f32 | f:f | r = truncf(a)
        s_rndne_f32 | f:f | r = nearbyintf(a)
        s_bitset0_b32 | u:u | r = d & ~(1u << (a & 31))
        s_bitset1_b32 | u:u | r = d | 1u << (a & 31)
        s_bitset0_b64 | U:u | r = d & ~(1ull << (a & 63))
        s_bitset1_b64 | U:u | r = d | 1ull << (a & 63)
        s_and_saveexec_b32 | u:u | r = u32(exec); exec = a & exec; scc = exec != 0
        s_or_saveexec_b32 | u:u | r = u32(exec); exec = a | exec; scc = exec != 0
        s_xor_saveexec_b32 | u:u | r = u32(exec); exec = a ^ exec; scc = exec != 0
        s_andn2_saveexec_b32 | u:u | r = u32(exec); exec = a & ~exec; scc = exec != 0
        s_orn2_saveexec_b32 | u:u | r = u32(exec); exec = a | u32(~exec); scc = exec != 0
        s_and_saveexec_b64 | U:U | r = exec; exec = a & exec; scc = exec != 0
        s_or_saveexec_b64 | U:U | r = exec; exec = a | exec; scc = exec != 0
        s_xor_saveexec_b64 | U:U | r = exec; exec = a ^ exec; scc = exec != 0
        s_andn2_saveexec_b64 | U:U | r = exec; exec = a & ~exec; scc = exec != 0
        s_orn2_saveexec_b64 | U:U | r = exec; exec = a | ~exec; scc = exec != 0
    """,
    "SOP2": """
        s_add_u32 | u:uu | r = a + b; scc = r < a
        s_sub_u32 | u:uu | r = a - b; scc = a < b
        s_add_i32 | u:uu | r = a + b; scc = (~(a ^ b) & (a ^ r)) >> 31
        s_sub_i32 | u:uu | r = a - b; scc = ((a ^ b) & (a ^ r)) >> 31
        s_addc_u32 | u:uu | const u64 t = u64(a) + b + scc; r = u32(t); scc = u32(t >> 32)
        s_subb_u32 | u:uu | const u64 t = u64(a) - b - scc; r = u32(t); scc = u32(t >> 63)
        s_min_i32 | i:ii | r = a < b ? a : b; scc = a < b
        s_max_i32 | i:ii | r = a > b ? a : b; scc = a > b
        s_min_u32 | u:uu | r = a < b ? a : b; scc = a < b
        s_max_u32 | u:uu | r = a > b ? a : b; scc = a > b
        s_cselect_b32 | u:uu | r = scc ? a : b
        s_cselect_b64 | U:UU | r = scc ? a : b
        s_and_b32 | u:uu | r = a & b; scc = r != 0
        s_and_b64 | U:UU | r = a & b; scc = r != 0
        s_or_b32 | u:uu | r = a | b; scc = r != 0
        s_or_b64 | U:UU | r = a | b; scc = r != 0
        s_xor_b32 | u:uu | r = a ^ b; scc = r != 0
        s_xor_b64 | U:UU | r = a ^ b; scc = r != 0
        s_andn2_b32 | u:uu | r = a & ~b; scc = r != 0
        s_andn2_b64 | U:UU | r = a & ~b; scc = r != 0
        s_orn2_b32 | u:uu | r = a | ~b; scc = r != 0
        s_orn2_b64 | U:UU | r = a | ~b; scc = r != 0
        s_nand_b32 | u:uu | r = ~(a & b); scc = r != 0
        s_nor_b32 | u:uu | r = ~(a | b); scc = r != 0
        s_xnor_b32 | u:uu | r = ~(a ^ b); scc = r != 0
        s_nand_b64 | U:UU | r = ~(a & b); scc = r != 0
        s_nor_b64 | U:UU | r = ~(a | b); scc = r != 0
        s_xnor_b64 | U:UU | r = ~(a ^ b); scc = r != 0
        s_lshl_b32 | u:uu | r = a << (b & 31); scc = r != 0
        s_lshl_b64 | U:Uu | r = a << (b & 63); scc = r != 0
        s_lshr_b32 | u:uu | r = a >> (b & 31); scc = r != 0
        s_lshr_b64 | U:Uu | r = a >> (b & 63); scc = r != 0
        s_ashr_i32 | i:iu | r = a >> (b & 31); scc = r != 0
        s_ashr_i64 | I:Iu | r = a >> (b & 63); scc = r != 0
        s_bfm_b32 | u:uu | r = ((1u << (a & 31)) - 1) << (b & 31)
        s_bfm_b64 | U:uu | r = ((1ull << (a & 63)) - 1) << (b & 63)
        s_mul_i32 | u:uu | r = a * b
        s_mul_hi_u32 | u:uu | r = u32(u64(a) * b >> 32)
        s_mul_hi_i32 | i:ii | r = i32(i64(a) * b >> 32)
        s_bfe_u32 | u:uu | r = u32(bits_of(a, b & 31, b >> 16 & 127)); scc = r != 0
        s_bfe_u64 | U:Uu | r = bits_of(a, b & 63, b >> 16 & 127); scc = r != 0
        s_bfe_i32 | i:uu | r = i32(signed_bits_of(u64(i64(i32(a))), b & 31, b >> 16 & 127)); scc = r != 0
        s_bfe_i64 | I:Uu | r = signed_bits_of(a, b & 63, b >> 16 & 127); scc = r != 0
        s_absdiff_i32 | u:ii | const i32 t = i32(u32(a) - u32(b)); r = t < 0 ? 0 - u32(t) : u32(t); scc = r != 0
        s_lshl1_add_u32 | u:uu | const u64 t = (u64(a) << 1) + b; r = u32(t); scc = t >> 32 != 0
        s_lshl2_add_u32 | u:uu | const u64 t = (u64(a) << 2) + b; r = u32(t); scc = t >> 32 != 0
        s_lshl3_add_u32 | u:uu | const u64 t = (u64(a) << 3) + b; r = u32(t); scc = t >> 32 != 0
        s_lshl4_add_u32 | u:uu | const u64 t = (u64(a) << 4) + b; r = u32(t); scc = t >> 32 != 0
        s_add_nc_u64 | U:UU | r = a + b
        s_sub_nc_u64 | U:UU | r = a - b
        s_mul_u64 | U:UU | r = a * b
        s_add_f32 | f:ff | r = a + b
        s_sub_f32 | f:ff | r = a - b
        s_mul_f32 | f:ff | r = a * b
        s_min_f32 | f:ff | r = smaller(a, b)
        s_max_f32 | f:ff | r = larger(a, b)
        s_fmac_f32 | f:ff | r = fma_f32(a, b, d)
        s_fmamk_f32 | f:fff | r = fma_f32(a, b, c)
        s_fmaak_f32 | f:fff | r = fma_f32(a, b, c)
        s_maximum_f32 | f:ff | r = greatest(a, b)
        s_minimum_f32 | f:ff | r = smallest(a, b)
        s_add_f16 | h:hh | r = a + b
        s_sub_f16 | h:hh | r = a - b
        s_mul_f16 | h:hh | r = a * b
        s_fmac_f16 | h:hh | r = f16_of(f64(a) * b + d)
        s_min_f16 | h:hh | r = smaller(a, b)
        s_max_f16 | h:hh | r = larger(a, b)
        s_maximum_f16 | h:hh | r = greatest(a, b)
        s_minimum_f16 | h:hh | r = smallest(a, b)
        s_cvt_pk_rtz_f16_f32 | u:ff | r = toward_zero(a) | toward_zero(b) << 16
        s_pack_hl_b32_b16 | u:uu | r = a >> 16 | b << 16
        s_pack_ll_b32_b16 | u:uu | r = (a & 0xffff) | b << 16
        s_pack_lh_b32_b16 | u:uu | r = (a & 0xffff) | (b & 0xffff0000)
        s_pack_hh_b32_b16 | u:uu | r = a >> 16 | (b & 0xffff0000)
    """,
    "SOPK": """
        s_movk_i32 | u:u | r = u32(i32(int16_t(a)))
        s_cmovk_i32 | u:u | r = scc ? u32(i32(int16_t(a))) : d
        s_addk_i32 | u:u | const u32 k = u32(i32(int16_t(a))); r = d + k; scc = (~(d ^ k) & (d ^ r)) >> 31
        s_mulk_i32 | u:u | r = d * u32(i32(int16_t(a)))
        s_cmpk_eq_i32 | :ii | scc = a == int16_t(b)
        s_cmpk_lg_i32 | :ii | scc = a != int16_t(b)
        s_cmpk_gt_i32 | :ii | scc = a > int16_t(b)
        s_cmpk_ge_i32 | :ii | scc = a >= int16_t(b)
        s_cmpk_lt_i32 | :ii | scc = a < int16_t(b)
        s_cmpk_le_i32 | :ii | scc = a <= int16_t(b)
        s_cmpk_eq_u32 | :uu | scc = a == uint16_t(b)
        s_cmpk_lg_u32 | :uu | scc = a != uint16_t(b)
        s_cmpk_gt_u32 | :uu | scc = a > uint16_t(b)
        s_cmpk_ge_u32 | :uu | scc = a >= uint16_t(b)
        s_cmpk_lt_u32 | :uu | scc = a < uint16_t(b)
        s_cmpk_le_u32 | :uu | scc = a <= uint16_t(b)
    """,
    "SOPC": """
        s_cmp_eq_i32 | :ii | scc = a == b
        s_cmp_lg_i32 | :ii | scc = a != b
        s_cmp_gt_i32 | :ii | scc = a > b
        s_cmp_ge_i32 | :ii | scc = a >= b
        s_cmp_lt_i32 | :ii | scc = a < b
        s_cmp_le_i32 | :ii | scc = a <= b
        s_cmp_eq_u32 | :uu | scc = a == b
        s_cmp_lg_u32 | :uu | scc = a != b
        s_cmp_gt_u32 | :uu | scc = a > b
        s_cmp_ge_u32 | :uu | scc = a >= b
        s_cmp_lt_u32 | :uu | scc = a < b
        s_cmp_le_u32 | :uu | scc = a <= b
        s_cmp_eq_u64 | :UU | scc = a == b
        s_cmp_lg_u64 | :UU | scc = a != b
        s_bitcmp0_b32 | :uu | scc = !(a >> (b & 31) & 1)
        s_bitcmp1_b32 | :uu | scc = a >> (b & 31) & 1
        s_bitcmp0_b64 | :Uu | scc = !(a >> (b & 63) & 1)
        s_bitcmp1_b64 | :Uu | scc = a >> (b & 63) & 1
    """,
}
