"""The text of one instruction on a target: its name there, its operands, the inputs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from exact_numbers import WIDTHS, bits_for
from small_assembly import run_words

TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
CDNA, RDNA = TARGETS[:3], TARGETS[3:]
_NOT_RDNA = """
    v_accvgpr_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_mad_u16 v_mad_legacy_u16
    v_subrev_u16 v_pk_add_f32 v_pk_mul_f32 v_pk_fma_f32 v_lshl_add_u64 v_fmac_f64 v_mov_b64
    v_dot4c_i32_i8 v_dot2c_f32_f16
"""
_NOT_CDNA = """
    v_xor3_b32 v_minmax_i32 v_maxmin_i32 v_minmax_u32 v_maxmin_u32 v_minmax_f32 v_maxmin_f32
    v_and_b16 v_or_b16 v_xor_b16 v_cndmask_b16 v_minmax_f16 v_maxmin_f16
"""
ONLY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_NOT_RDNA.split(), CDNA),
    **dict.fromkeys(_NOT_CDNA.split(), RDNA),
    **dict.fromkeys(("v_mad_f32", "v_mac_f32", "v_madmk_f32", "v_madak_f32"), ("gfx90a",)),
    **dict.fromkeys(("v_fmamk_f16", "v_fmaak_f16", "v_dot2_bf16_bf16"), RDNA),
    **dict.fromkeys(("v_lshl_add_u64", "v_mov_b64"), CDNA[1:]),
    **dict.fromkeys(("v_pk_maximum3_f16", "v_pk_minimum3_f16"), ("gfx950",)),
    **dict.fromkeys(("v_prng_b32", "v_cvt_pk_f16_f32"), ("gfx950",)),
    "v_cvt_pk_bf16_f32": ("gfx950",),
    "v_dot2_f32_bf16": ("gfx950", *RDNA),
    "v_dot2c_f32_bf16": ("gfx950",),
    **dict.fromkeys(("v_cvt_pk_i16_f32", "v_cvt_pk_u16_f32"), RDNA),
    **dict.fromkeys(("v_mad_i16", "v_mad_legacy_i16"), CDNA),
    **dict.fromkeys(("v_dot2_i32_i16", "v_dot2_u32_u16"), CDNA),
    **dict.fromkeys(("v_dot4_i32_i8", "v_dot8_i32_i4"), CDNA),
    **{f"v_{one}3_f32": ("gfx950", "gfx1201") for one in ("maximum", "minimum")},
    **{f"v_{one}3_f16": ("gfx1201",) for one in ("maximum", "minimum")},
    **{
        f"v_{one}_f{size}": ("gfx1201",)
        for one in ("maximum", "minimum", "maximumminimum", "minimummaximum")
        for size in (16, 32, 64)
    },
    **dict.fromkeys(("v_pk_maximum_f16", "v_pk_minimum_f16"), ("gfx1201",)),
}
"""Instructions that not every target has."""
NAMES_OF_RDNA = {
    "v_add_u32": "v_add_nc_u32",
    "v_sub_u32": "v_sub_nc_u32",
    "v_subrev_u32": "v_subrev_nc_u32",
    "v_add_i32": "v_add_nc_i32",
    "v_sub_i32": "v_sub_nc_i32",
    "v_add_u16": "v_add_nc_u16",
    "v_sub_u16": "v_sub_nc_u16",
    "v_addc_co_u32": "v_add_co_ci_u32",
    "v_subb_co_u32": "v_sub_co_ci_u32",
    "v_subbrev_co_u32": "v_subrev_co_ci_u32",
    "v_mul_legacy_f32": "v_mul_dx9_zero_f32",
    "v_ffbh_u32": "v_clz_i32_u32",
    "v_ffbl_b32": "v_ctz_i32_b32",
    "v_ffbh_i32": "v_cls_i32",
    "v_cvt_flr_i32_f32": "v_cvt_floor_i32_f32",
    "v_cvt_rpi_i32_f32": "v_cvt_nearest_i32_f32",
    "v_cvt_pkrtz_f16_f32": "v_cvt_pk_rtz_f16_f32",
}
NAMES_OF_RDNA_4 = {
    **NAMES_OF_RDNA,
    "v_mad_u64_u32": "v_mad_co_u64_u32",
    "v_mad_i64_i32": "v_mad_co_i64_i32",
    **{
        f"v_{one}_f{size}": f"v_{one}_num_f{size}"
        for one in ("min", "max")
        for size in (16, 32, 64)
    },
    **{f"v_{one}3_f{size}": f"v_{one}3_num_f{size}" for one in ("min", "max") for size in (16, 32)},
    **{f"v_med3_f{size}": f"v_med3_num_f{size}" for size in (16, 32)},
    **{
        f"v_{one}_f{size}": f"v_{one}_num_f{size}"
        for one in ("minmax", "maxmin")
        for size in (16, 32)
    },
    **{f"v_pk_{one}_f16": f"v_pk_{one}_num_f16" for one in ("min", "max")},
}
WIDE = "UID"
FIRST_RESULT, FIRST_SOURCE = 32, 10


def name_on(target: str, name: str) -> str:
    """The instruction's name on a target."""
    if target == "gfx1201":
        return NAMES_OF_RDNA_4.get(name, name)
    return NAMES_OF_RDNA.get(name, name) if target == "gfx1100" else name


def has(target: str, name: str) -> bool:
    return target in ONLY.get(name, TARGETS)


@dataclass(frozen=True)
class Laid:
    """An instruction's operands in registers: its text, the inputs by register, the results'."""

    text: str
    inputs: dict[int, list[int]]
    results: list[tuple[str, int]]
    """Letter and first register of each result; a mask is read as 0 or 1 of each lane."""
    values: list[list[int]]
    """Bits of each source, by source and lane."""


def laid(name: str, form: str, target: str, seed: str, suffix: str = "") -> Laid:
    """Lay out an instruction with random inputs."""
    chance, lanes = random.Random(seed), 64 if target in CDNA else 32
    kinds, sources = form.split(":")
    pair = (lambda first: f"s[{first}:{first + 1}]") if lanes == 64 else (lambda first: f"s{first}")
    before, after, words, results, values = [], [], [], [], []
    inputs: dict[int, list[int]] = {}
    at = FIRST_RESULT
    for letter in kinds:
        if letter == "m":
            words.append(pair(20))
            after.append(f"v_cndmask_b32_e64 v{at}, 0, 1, {pair(20)}")
        else:
            words.append(f"v[{at}:{at + 1}]" if letter in WIDE else f"v{at}")
        results.append((letter, at))
        at += 2
    register = FIRST_SOURCE
    for letter in sources:
        if letter == "m":
            value = [chance.getrandbits(1) for _ in range(lanes)]
            inputs[register] = value
            before.append(f"v_cmp_ne_u32_e64 {pair(22)}, 0, v{register}")
            words.append(pair(22))
        else:
            kind = kinds[0] if letter == "q" else letter
            value = [bits_for(kind, chance) for _ in range(lanes)]
            first = FIRST_RESULT if letter == "q" else register
            inputs[first] = [one & 0xFFFFFFFF for one in value]
            if WIDTHS[kind] == 16:  # the other half must not matter
                inputs[first] = [one | chance.getrandbits(16) << 16 for one in value]
            if kind in WIDE:
                inputs[first + 1] = [one >> 32 for one in value]
            if letter != "q":
                words.append(f"v[{first}:{first + 1}]" if kind in WIDE else f"v{first}")
        values.append(value)
        register += 2
    line = f"{name_on(target, name)} {', '.join(words)}{suffix}"
    return Laid("\n".join([*before, line, *after]), inputs, results, values)


def ran(one: Laid, target: str) -> list[list[int]]:
    """Run it; return the bits of each result, by result and lane."""
    wanted = [place for letter, at in one.results for place in (at, at + 1)[: 1 + (letter in WIDE)]]
    found = run_words(one.text, one.inputs, wanted, target=target)
    return [
        [
            low | (found[at + 1][lane] << 32 if letter in WIDE else 0)
            for lane, low in enumerate(found[at])
        ]
        for letter, at in one.results
    ]
