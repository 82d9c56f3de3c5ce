"""RDNA's names of operations that CDNA has under another one, and its pairs in one instruction.

The manuals are "RDNA3 Instruction Set Architecture" and "RDNA4 Instruction Set Architecture",
chapter "Instructions". A name means the same in both.
"""

from __future__ import annotations

import re
from typing import Final

from ratchet.base.errors import KernelError

_RENAMED: Final = """
    v_add_nc_u32=v_add_u32 v_sub_nc_u32=v_sub_u32 v_subrev_nc_u32=v_subrev_u32
    v_add_nc_i32=v_add_i32 v_sub_nc_i32=v_sub_i32 v_add_nc_u16=v_add_u16 v_sub_nc_u16=v_sub_u16
    v_add_nc_i16=v_add_u16 v_sub_nc_i16=v_sub_u16 v_add_co_ci_u32=v_addc_co_u32
    v_sub_co_ci_u32=v_subb_co_u32 v_subrev_co_ci_u32=v_subbrev_co_u32
    v_mad_co_u64_u32=v_mad_u64_u32 v_mad_co_i64_i32=v_mad_i64_i32
    v_mul_dx9_zero_f32=v_mul_legacy_f32 v_dot2acc_f32_f16=v_dot2c_f32_f16
    v_clz_i32_u32=v_ffbh_u32 v_ctz_i32_b32=v_ffbl_b32 v_cls_i32=v_ffbh_i32
    v_cvt_floor_i32_f32=v_cvt_flr_i32_f32 v_cvt_nearest_i32_f32=v_cvt_rpi_i32_f32
    v_cvt_pk_rtz_f16_f32=v_cvt_pkrtz_f16_f32
    s_and_not1_b32=s_andn2_b32 s_and_not1_b64=s_andn2_b64 s_or_not1_b32=s_orn2_b32
    s_or_not1_b64=s_orn2_b64 s_and_not1_saveexec_b32=s_andn2_saveexec_b32
    s_or_not1_saveexec_b32=s_orn2_saveexec_b32 s_ctz_i32_b32=s_ff1_i32_b32
    s_ctz_i32_b64=s_ff1_i32_b64 s_clz_i32_u32=s_flbit_i32_b32 s_clz_i32_u64=s_flbit_i32_b64
    s_add_co_u32=s_add_u32 s_sub_co_u32=s_sub_u32 s_add_co_i32=s_add_i32 s_sub_co_i32=s_sub_i32
    s_add_co_ci_u32=s_addc_u32 s_sub_co_ci_u32=s_subb_u32 s_addk_co_i32=s_addk_i32
"""
RENAMED: Final = dict(pair.split("=") for pair in _RENAMED.split())
PARTS: Final = (
    ("v_dual_", "v_"), ("_num_", "_"), ("ds_load_2addr_stride64_", "ds_read2st64_"),
    ("ds_load_2addr_", "ds_read2_"), ("ds_load_", "ds_read_"),
    ("ds_store_2addr_stride64_", "ds_write2st64_"), ("ds_store_2addr_", "ds_write2_"),
    ("ds_store_", "ds_write_"), ("ds_storexchg_", "ds_wrxchg_"),
)  # fmt: skip
"""Parts of names."""


def cdna_name(name: str) -> str:
    """The name by which the tables have an operation of RDNA."""
    for old, new in PARTS:
        name = name.replace(old, new)
    return RENAMED.get(name, name)


def in_order(first: str, second: str) -> tuple[str, str]:
    """The two operations of a `v_dual` instruction, so that one can be done after the other.

    Both read their operands before either writes (section "Dual Issue VALU").
    """
    if _written(first) in _read(second):
        if _written(second) in _read(first):
            raise KernelError(f"two operations that read each other's results: {first:.60}")
        return second, first
    return first, second


def _written(text: str) -> str:
    return re.findall(r"\bv\d+\b", text)[0] if re.search(r"\bv\d+\b", text) else ""


def _read(text: str) -> list[str]:
    return re.findall(r"\bv\d+\b", text)[1:]
