"""Vector instructions by the definitions of AMD's instruction set manuals, in Python.

A definition takes a lane's operands as Python numbers and returns the result, exact: an integer
of any size, a Fraction, or a float for zeros, infinities and NaN. Forms are `results:sources`, with
the letters u i U I (32 and 64 bits), w x (16 bits), f D h (floats), m (a bit of a mask), and q
where the result's register is a source too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from exact_numbers import (
    BF16,
    F16,
    F32,
    F64,
    TWO_OVER_PI,
    Format,
    Number,
    added,
    fused,
    is_finite,
    logarithm,
    power_of_two,
    quotient,
    root,
    signed,
    times,
    turned,
)

Definition = tuple[str, Callable[..., Any]]
BITS = 0xFFFFFFFF


def rounded(function: Callable[[float], int]) -> Callable[[float], Number]:
    """A rounding to integers; zeros keep their sign."""

    def of(a: float) -> Number:
        if not is_finite(a):
            return a
        return math.copysign(float(function(a)), a)

    return of


def to_integer(least: int, most: int) -> Callable[[float], int]:
    """Truncation that stops at the ends of the range; NaN is 0."""

    def of(a: float) -> int:
        if math.isnan(a):
            return 0
        if math.isinf(a):
            return most if a > 0 else least
        return max(least, min(most, math.trunc(a)))

    return of


to_i16 = to_integer(-32768, 32767)
to_i32 = to_integer(-(1 << 31), (1 << 31) - 1)


def lesser(a: float, b: float) -> float:
    """The lesser number; a NaN is no number, and -0 is less than 0."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return min(a, b, key=lambda one: (one, math.copysign(1, one)))


def greater(a: float, b: float) -> float:
    """The greater number, likewise."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return max(a, b, key=lambda one: (one, math.copysign(1, one)))


def middle(a: float, b: float, c: float) -> float:
    """The middle of three; the least one if there is a NaN."""
    if any(map(math.isnan, (a, b, c))):
        return lesser(lesser(a, b), c)
    return sorted((a, b, c), key=lambda one: (one, math.copysign(1, one)))[1]


def or_nan(choose: Callable[..., float]) -> Callable[..., float]:
    """A minimum or maximum that a NaN passes through."""

    def of(*given: float) -> float:
        if any(map(math.isnan, given)):
            return math.nan
        found = given[0]
        for one in given[1:]:
            found = choose(found, one)
        return found

    return of


def scaled(a: float, exponent: int) -> Number:
    """a times two to the power of an exponent."""
    if not is_finite(a) or a == 0:
        return a
    return Fraction(a) * Fraction(2) ** max(-3000, min(3000, exponent))


def exponent_of(a: float) -> int:
    """The exponent that leaves a mantissa of 1/2 to 1."""
    return math.frexp(a)[1] if is_finite(a) else 0


def mantissa_of(a: float) -> float:
    return math.frexp(a)[0] if is_finite(a) else a


def angle_segment(a: float, segment: int) -> Number:
    """53 bits of 2 / pi, further down for a larger angle."""
    exponent = 2047 if not is_finite(a) else max(0, math.frexp(a)[1] + 1022) if a else 0
    shift = 53 * (segment & 31) + max(0, exponent - 1077)
    found = (TWO_OVER_PI << shift) >> (1201 - 53) & (1 << 53) - 1
    return Fraction(found) * Fraction(2) ** (-53 - shift + 128 * (exponent >= 1968)) or 0.0


def fraction_of(form: Format) -> Callable[[float], Number]:
    """A number less its floor, never 1."""
    most = 1 - Fraction(2) ** -form.precision

    def of(a: float) -> Number:
        return min(Fraction(a) - math.floor(a), most) or 0.0 if is_finite(a) else math.nan

    return of


def bit_count(a: int) -> int:
    return a.bit_count()


def from_the_top(a: int) -> int:
    return 32 - a.bit_length() if a else BITS


def unlike_the_sign(a: int, bits: int = 32) -> int:
    """Where the first bit unlike the sign is, from the top."""
    value = a & ((1 << bits) - 1)
    other = [
        place for place in range(bits) if value >> (bits - 1 - place) & 1 != value >> (bits - 1)
    ]
    return other[0] if other else BITS


def from_the_bottom(a: int) -> int:
    return (a & -a).bit_length() - 1 if a else BITS


def reversed_bits(a: int) -> int:
    return int(f"{a & BITS:032b}"[::-1], 2)


def low24(a: int) -> int:
    return signed(a, 24)


def field(a: int, at: int, width: int) -> int:
    """A field of bits, with a sign."""
    at, width = at & 31, width & 31
    return signed(signed(a) >> at, width) if width else 0


def permuted(a: int, b: int, c: int) -> int:
    """Four bytes that the bytes of c choose from a (high) and b (low)."""
    both = a << 32 | b
    found = 0
    for place in range(4):
        chosen = c >> 8 * place & 255
        if chosen < 8:
            byte = both >> 8 * chosen & 255
        elif chosen < 12:
            byte = 255 * (both >> (16 * (chosen - 8) + 15) & 1)
        else:
            byte = 0 if chosen == 12 else 255
        found |= byte << 8 * place
    return found


def halves(one: int, form: Format = F16) -> tuple[float, float]:
    """Both halves of a word as floats."""
    return form.value(one & 0xFFFF), form.value(one >> 16)


def together(low: int, high: int) -> int:
    return (low & 0xFFFF) | (high & 0xFFFF) << 16


def half_bits(value: Number, form: Format = F16) -> int:
    return form.bits_of(form.near(value))


def clamped(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


def repaired(a: float, b: float, c: float) -> Number:
    """The quotient a of c by b, with the sign and the special values of c / b."""
    exact = quotient(c, b)
    special = not is_finite(b, c) or b == 0 or c == 0
    return exact if special else math.copysign(a, math.copysign(1, b) * math.copysign(1, c))


def products(a: int, b: int, c: float, form: Format = F16) -> Number:
    """The sum of two products of halves and a float."""
    (p, q), (r, s) = halves(a, form), halves(b, form)
    parts = [times(p, r), times(q, s), c]
    if all(map(is_finite, parts)) and (exact := sum(map(Fraction, parts))):
        return exact
    found = float(parts[0]) + float(parts[1]) + c
    return found if not is_finite(*parts) or not any(parts) else 0.0


def twice_rounded(a: float, b: float, c: float) -> Number:
    """a b + c in f32 with two roundings, and zero for denormals everywhere."""
    p, q, r = (flushed(one) for one in (a, b, c))
    product = flushed(F32.near(times(p, q)))
    return flushed(F32.near(added(product, r)))


def flushed(a: float) -> float:
    return math.copysign(0.0, a) if F32.is_small(a) else a


def parts_of(a: int, bits: int, has_sign: bool) -> list[int]:
    """A word's parts of some bits."""
    parts = [a >> at & ((1 << bits) - 1) for at in range(0, 32, bits)]
    return [signed(one, bits) for one in parts] if has_sign else parts


def dotted(a: int, b: int, bits: int, first: bool, second: bool) -> int:
    """The sum of the products of parts, each side with a sign or without."""
    pairs = zip(parts_of(a, bits, first), parts_of(b, bits, second), strict=True)
    return sum(p * q for p, q in pairs)


def apart(a: int, b: int, bits: int) -> int:
    """The sum of the distances of parts."""
    pairs = zip(parts_of(a, bits, False), parts_of(b, bits, False), strict=True)
    return sum(abs(p - q) for p, q in pairs)


WORDS: dict[str, Definition] = {
    "v_mov_b32": ("u:u", lambda a: a),
    "v_mov_b64": ("U:U", lambda a: a),
    "v_accvgpr_mov_b32": ("u:u", lambda a: a),
    "v_accvgpr_read_b32": ("u:u", lambda a: a),
    "v_accvgpr_write_b32": ("u:u", lambda a: a),
    "v_not_b32": ("u:u", lambda a: ~a),
    "v_not_b16": ("w:w", lambda a: ~a),
    "v_bfrev_b32": ("u:u", reversed_bits),
    "v_ffbh_u32": ("u:u", from_the_top),
    "v_ffbl_b32": ("u:u", from_the_bottom),
    "v_ffbh_i32": ("u:u", unlike_the_sign),
    "v_prng_b32": ("u:u", lambda a: a << 1 ^ (0xC5 if a >> 31 else 0)),
    "v_cndmask_b32": ("u:uum", lambda a, b, c: b if c else a),
    "v_cndmask_b16": ("w:wwm", lambda a, b, c: b if c else a),
    "v_add_u32": ("u:uu", lambda a, b: a + b),
    "v_sub_u32": ("u:uu", lambda a, b: a - b),
    "v_subrev_u32": ("u:uu", lambda a, b: b - a),
    "v_add_i32": ("u:uu", lambda a, b: a + b),
    "v_sub_i32": ("u:uu", lambda a, b: a - b),
    "v_mul_i32_i24": ("u:uu", lambda a, b: low24(a) * low24(b)),
    "v_mul_u32_u24": ("u:uu", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    "v_mul_hi_u32_u24": ("u:uu", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32),
    "v_min_i32": ("i:ii", min),
    "v_max_i32": ("i:ii", max),
    "v_min_u32": ("u:uu", min),
    "v_max_u32": ("u:uu", max),
    "v_lshlrev_b32": ("u:uu", lambda a, b: b << (a & 31)),
    "v_lshrrev_b32": ("u:uu", lambda a, b: b >> (a & 31)),
    "v_ashrrev_i32": ("i:ui", lambda a, b: b >> (a & 31)),
    "v_and_b32": ("u:uu", lambda a, b: a & b),
    "v_or_b32": ("u:uu", lambda a, b: a | b),
    "v_xor_b32": ("u:uu", lambda a, b: a ^ b),
    "v_xnor_b32": ("u:uu", lambda a, b: ~(a ^ b)),
    "v_mul_lo_u32": ("u:uu", lambda a, b: a * b),
    "v_mul_hi_u32": ("u:uu", lambda a, b: a * b >> 32),
    "v_mul_hi_i32": ("i:ii", lambda a, b: a * b >> 32),
    "v_mad_i32_i24": ("u:uuu", lambda a, b, c: low24(a) * low24(b) + c),
    "v_mad_u32_u24": ("u:uuu", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
    "v_mad_u32_u16": ("u:wwu", lambda a, b, c: a * b + c),
    "v_mad_i32_i16": ("i:xxi", lambda a, b, c: a * b + c),
    "v_bfe_u32": ("u:uuu", lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1)),
    "v_bfe_i32": ("i:uuu", field),
    "v_bfi_b32": ("u:uuu", lambda a, b, c: (a & b) | (~a & c)),
    "v_bfm_b32": ("u:uu", lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    "v_alignbit_b32": ("u:uuu", lambda a, b, c: (a << 32 | b) >> (c & 31)),
    "v_alignbyte_b32": ("u:uuu", lambda a, b, c: (a << 32 | b) >> 8 * (c & 3)),
    "v_perm_b32": ("u:uuu", permuted),
    "v_add3_u32": ("u:uuu", lambda a, b, c: a + b + c),
    "v_lshl_add_u32": ("u:uuu", lambda a, b, c: (a << (b & 31)) + c),
    "v_add_lshl_u32": ("u:uuu", lambda a, b, c: (a + b) << (c & 31)),
    "v_lshl_or_b32": ("u:uuu", lambda a, b, c: a << (b & 31) | c),
    "v_and_or_b32": ("u:uuu", lambda a, b, c: (a & b) | c),
    "v_or3_b32": ("u:uuu", lambda a, b, c: a | b | c),
    "v_xad_u32": ("u:uuu", lambda a, b, c: (a ^ b) + c),
    "v_xor3_b32": ("u:uuu", lambda a, b, c: a ^ b ^ c),
    "v_sad_u32": ("u:uuu", lambda a, b, c: abs(a - b) + c),
    "v_min3_i32": ("i:iii", min),
    "v_max3_i32": ("i:iii", max),
    "v_med3_i32": ("i:iii", lambda *given: sorted(given)[1]),
    "v_min3_u32": ("u:uuu", min),
    "v_max3_u32": ("u:uuu", max),
    "v_med3_u32": ("u:uuu", lambda *given: sorted(given)[1]),
    "v_minmax_i32": ("i:iii", lambda a, b, c: max(min(a, b), c)),
    "v_maxmin_i32": ("i:iii", lambda a, b, c: min(max(a, b), c)),
    "v_minmax_u32": ("u:uuu", lambda a, b, c: max(min(a, b), c)),
    "v_maxmin_u32": ("u:uuu", lambda a, b, c: min(max(a, b), c)),
    "v_bcnt_u32_b32": ("u:uu", lambda a, b: bit_count(a) + b),
    "v_cvt_pk_u16_u32": ("u:uu", lambda a, b: together(min(a, 65535), min(b, 65535))),
    "v_pack_b32_f16": ("u:ww", together),
    "v_dot4c_i32_i8": ("i:uuq", lambda a, b, d: dotted(a, b, 8, True, True) + d),
    "v_mul_hi_i32_i24": ("i:uu", lambda a, b: low24(a) * low24(b) >> 32),
    "v_dot2_i32_i16": ("u:uuu", lambda a, b, c: dotted(a, b, 16, True, True) + c),
    "v_dot2_u32_u16": ("u:uuu", lambda a, b, c: dotted(a, b, 16, False, False) + c),
    "v_dot4_i32_i8": ("u:uuu", lambda a, b, c: dotted(a, b, 8, True, True) + c),
    "v_dot4_u32_u8": ("u:uuu", lambda a, b, c: dotted(a, b, 8, False, False) + c),
    "v_dot8_i32_i4": ("u:uuu", lambda a, b, c: dotted(a, b, 4, True, True) + c),
    "v_dot8_u32_u4": ("u:uuu", lambda a, b, c: dotted(a, b, 4, False, False) + c),
    "v_sad_u8": ("u:uuu", lambda a, b, c: apart(a, b, 8) + c),
    "v_sad_hi_u8": ("u:uuu", lambda a, b, c: (apart(a, b, 8) << 16) + c),
    "v_sad_u16": ("u:uuu", lambda a, b, c: apart(a, b, 16) + c),
    "v_lshl_add_u64": ("U:UuU", lambda a, b, c: (a << (b & 7)) + c),
    "v_lshlrev_b64": ("U:uU", lambda a, b: b << (a & 63)),
    "v_lshrrev_b64": ("U:uU", lambda a, b: b >> (a & 63)),
    "v_ashrrev_i64": ("I:uI", lambda a, b: b >> (a & 63)),
    "v_add_u16": ("w:ww", lambda a, b: a + b),
    "v_sub_u16": ("w:ww", lambda a, b: a - b),
    "v_subrev_u16": ("w:ww", lambda a, b: b - a),
    "v_mul_lo_u16": ("w:ww", lambda a, b: a * b),
    "v_mad_u16": ("w:www", lambda a, b, c: a * b + c),
    "v_mad_legacy_u16": ("w:www", lambda a, b, c: a * b + c),
    "v_mad_i16": ("w:xxx", lambda a, b, c: a * b + c),
    "v_mad_legacy_i16": ("w:xxx", lambda a, b, c: a * b + c),
    "v_med3_i16": ("x:xxx", lambda *given: sorted(given)[1]),
    "v_med3_u16": ("w:www", lambda *given: sorted(given)[1]),
    "v_lshlrev_b16": ("w:ww", lambda a, b: b << (a & 15)),
    "v_lshrrev_b16": ("w:ww", lambda a, b: b >> (a & 15)),
    "v_ashrrev_i16": ("x:wx", lambda a, b: b >> (a & 15)),
    "v_max_u16": ("w:ww", max),
    "v_max_i16": ("x:xx", max),
    "v_min_u16": ("w:ww", min),
    "v_min_i16": ("x:xx", min),
    "v_min3_i16": ("x:xxx", min),
    "v_max3_i16": ("x:xxx", max),
    "v_min3_u16": ("w:www", min),
    "v_max3_u16": ("w:www", max),
    "v_and_b16": ("w:ww", lambda a, b: a & b),
    "v_or_b16": ("w:ww", lambda a, b: a | b),
    "v_xor_b16": ("w:ww", lambda a, b: a ^ b),
    "v_mad_u64_u32": ("Um:uuU", lambda a, b, c: (a * b + c, a * b + c >> 64)),
    "v_mad_i64_i32": ("Im:iiI", lambda a, b, c: (a * b + c, signed(a * b + c, 64) != a * b + c)),
    "v_add_co_u32": ("um:uu", lambda a, b: (a + b, a + b > BITS)),
    "v_sub_co_u32": ("um:uu", lambda a, b: (a - b, a < b)),
    "v_subrev_co_u32": ("um:uu", lambda a, b: (b - a, b < a)),
    "v_addc_co_u32": ("um:uum", lambda a, b, c: (a + b + c, a + b + c > BITS)),
    "v_subb_co_u32": ("um:uum", lambda a, b, c: (a - b - c, a - b - c < 0)),
    "v_subbrev_co_u32": ("um:uum", lambda a, b, c: (b - a - c, b - a - c < 0)),
}
"""Whole numbers, fields of bits, shifts, choices."""
CLAMPED: dict[str, Definition] = {
    "v_add_u32": ("u:uu", lambda a, b: clamped(a + b, 0, BITS)),
    "v_sub_u32": ("u:uu", lambda a, b: clamped(a - b, 0, BITS)),
    "v_subrev_u32": ("u:uu", lambda a, b: clamped(b - a, 0, BITS)),
    "v_add_i32": ("i:ii", lambda a, b: clamped(a + b, -(1 << 31), (1 << 31) - 1)),
    "v_sub_i32": ("i:ii", lambda a, b: clamped(a - b, -(1 << 31), (1 << 31) - 1)),
    "v_add_u16": ("w:ww", lambda a, b: clamped(a + b, 0, 65535)),
    "v_sub_u16": ("w:ww", lambda a, b: clamped(a - b, 0, 65535)),
}
"""The same with `clamp`."""
CONVERSIONS: dict[str, Definition] = {
    "v_cvt_i32_i16": ("i:x", lambda a: a),
    "v_cvt_u32_u16": ("u:w", lambda a: a),
    "v_cvt_f32_i32": ("f:i", lambda a: a or 0.0),
    "v_cvt_f32_u32": ("f:u", lambda a: a or 0.0),
    "v_cvt_f64_i32": ("D:i", lambda a: a or 0.0),
    "v_cvt_f64_u32": ("D:u", lambda a: a or 0.0),
    "v_cvt_f16_u16": ("h:w", lambda a: a or 0.0),
    "v_cvt_f16_i16": ("h:x", lambda a: a or 0.0),
    "v_cvt_i32_f32": ("i:f", to_i32),
    "v_cvt_u32_f32": ("u:f", to_integer(0, BITS)),
    "v_cvt_i32_f64": ("i:D", to_i32),
    "v_cvt_u32_f64": ("u:D", to_integer(0, BITS)),
    "v_cvt_u16_f16": ("w:h", to_integer(0, 65535)),
    "v_cvt_i16_f16": ("x:h", to_integer(-32768, 32767)),
    "v_cvt_flr_i32_f32": (
        "i:f",
        lambda a: to_i32(float(math.floor(a)) if is_finite(a) else a),
    ),
    "v_cvt_rpi_i32_f32": (
        "i:f",
        lambda a: to_i32(float(math.floor(F32.near(a + 0.5))) if is_finite(a) else a),
    ),
    "v_cvt_f32_f64": ("f:D", lambda a: a),
    "v_cvt_f64_f32": ("D:f", lambda a: a),
    "v_cvt_f16_f32": ("h:f", lambda a: a),
    "v_cvt_f32_f16": ("f:h", lambda a: a),
    "v_cvt_f32_ubyte0": ("f:u", lambda a: float(a & 255)),
    "v_cvt_f32_ubyte1": ("f:u", lambda a: float(a >> 8 & 255)),
    "v_cvt_f32_ubyte2": ("f:u", lambda a: float(a >> 16 & 255)),
    "v_cvt_f32_ubyte3": ("f:u", lambda a: float(a >> 24)),
    "v_cvt_pkrtz_f16_f32": (
        "u:ff",
        lambda a, b: together(F16.bits_of(F16.toward_zero(a)), F16.bits_of(F16.toward_zero(b))),
    ),
    "v_cvt_pk_i16_i32": ("u:ii", lambda a, b: together(to_i16(a), to_i16(b))),
    "v_cvt_pk_i16_f32": ("u:ff", lambda a, b: together(to_i16(a), to_i16(b))),
    "v_cvt_pk_u16_f32": (
        "u:ff",
        lambda a, b: together(to_integer(0, 65535)(a), to_integer(0, 65535)(b)),
    ),
    "v_cvt_pk_f16_f32": ("u:ff", lambda a, b: together(half_bits(a), half_bits(b))),
    "v_cvt_pk_bf16_f32": ("u:ff", lambda a, b: together(half_bits(a, BF16), half_bits(b, BF16))),
}
"""Between kinds of numbers; those of 8-bit floats have tests of their own."""


def _of_each_size(letter: str, size: str) -> dict[str, Definition]:
    one, two, three = (f"{letter}:{letter * count}" for count in (1, 2, 3))
    return {
        f"v_add_f{size}": (two, added),
        f"v_mul_f{size}": (two, times),
        f"v_min_f{size}": (two, lesser),
        f"v_max_f{size}": (two, greater),
        f"v_fma_f{size}": (three, fused),
        f"v_fmac_f{size}": (f"{letter}:{letter * 2}q", fused),
        f"v_trunc_f{size}": (one, rounded(math.trunc)),
        f"v_ceil_f{size}": (one, rounded(math.ceil)),
        f"v_floor_f{size}": (one, rounded(math.floor)),
        f"v_rndne_f{size}": (one, rounded(round)),
    }


def _of_32_and_16(letter: str, size: str) -> dict[str, Definition]:
    two, three = (f"{letter}:{letter * count}" for count in (2, 3))
    return {
        f"v_sub_f{size}": (two, lambda a, b: added(a, -b)),
        f"v_subrev_f{size}": (two, lambda a, b: added(b, -a)),
        f"v_min3_f{size}": (three, lambda a, b, c: lesser(lesser(a, b), c)),
        f"v_max3_f{size}": (three, lambda a, b, c: greater(greater(a, b), c)),
        f"v_med3_f{size}": (three, middle),
        f"v_maximum_f{size}": (two, or_nan(greater)),
        f"v_minimum_f{size}": (two, or_nan(lesser)),
        f"v_maximum3_f{size}": (three, or_nan(greater)),
        f"v_minimum3_f{size}": (three, or_nan(lesser)),
        f"v_minmax_f{size}": (three, lambda a, b, c: greater(lesser(a, b), c)),
        f"v_maxmin_f{size}": (three, lambda a, b, c: lesser(greater(a, b), c)),
        f"v_maximumminimum_f{size}": (
            three,
            lambda a, b, c: or_nan(lesser)(or_nan(greater)(a, b), c),
        ),
        f"v_minimummaximum_f{size}": (
            three,
            lambda a, b, c: or_nan(greater)(or_nan(lesser)(a, b), c),
        ),
    }


FLOATS: dict[str, Definition] = {
    **_of_each_size("f", "32"),
    **_of_each_size("D", "64"),
    **_of_each_size("h", "16"),
    **_of_32_and_16("f", "32"),
    **_of_32_and_16("h", "16"),
    "v_mul_legacy_f32": ("f:ff", lambda a, b: 0.0 if a == 0 or b == 0 else times(a, b)),
    "v_trig_preop_f64": ("D:Du", angle_segment),
    "v_maximum_f64": ("D:DD", or_nan(greater)),
    "v_minimum_f64": ("D:DD", or_nan(lesser)),
    "v_div_fixup_f16": ("h:hhh", repaired),
    "v_div_fixup_f32": ("f:fff", repaired),
    "v_div_fixup_f64": ("D:DDD", repaired),
    "v_fract_f32": ("f:f", fraction_of(F32)),
    "v_fract_f64": ("D:D", fraction_of(F64)),
    "v_fract_f16": ("h:h", fraction_of(F16)),
    "v_frexp_exp_i16_f16": ("x:h", exponent_of),
    "v_frexp_mant_f16": ("h:h", mantissa_of),
    "v_dot2_f32_bf16": ("f:uuf", lambda a, b, c: products(a, b, c, BF16)),
    "v_dot2c_f32_bf16": ("f:uuq", lambda a, b, d: products(a, b, d, BF16)),
    "v_ldexp_f32": ("f:fi", scaled),
    "v_ldexp_f64": ("D:Di", scaled),
    "v_ldexp_f16": ("h:hx", scaled),
    "v_frexp_exp_i32_f32": ("i:f", exponent_of),
    "v_frexp_exp_i32_f64": ("i:D", exponent_of),
    "v_frexp_mant_f32": ("f:f", mantissa_of),
    "v_frexp_mant_f64": ("D:D", mantissa_of),
    "v_mad_f32": ("f:fff", twice_rounded),
    "v_mac_f32": ("f:ffq", twice_rounded),
    "v_dot2_f32_f16": ("f:uuf", products),
    "v_dot2c_f32_f16": ("f:uuq", products),
    "v_dot2_bf16_bf16": ("b:uub", lambda a, b, c: F32.near(products(a, b, c, BF16))),
}
"""Floats whose result is the nearest number."""
NEAR: dict[str, Definition] = {
    "v_rcp_f32": ("f:f", lambda a: quotient(1.0, a)),
    "v_rcp_iflag_f32": ("f:f", lambda a: quotient(1.0, a)),
    "v_rcp_f64": ("D:D", lambda a: quotient(1.0, a)),
    "v_rcp_f16": ("h:h", lambda a: quotient(1.0, a)),
    "v_sqrt_f32": ("f:f", root),
    "v_sqrt_f64": ("D:D", root),
    "v_sqrt_f16": ("h:h", root),
    "v_rsq_f32": ("f:f", lambda a: quotient(1.0, root(a))),
    "v_rsq_f64": ("D:D", lambda a: quotient(1.0, root(a))),
    "v_rsq_f16": ("h:h", lambda a: quotient(1.0, root(a))),
    "v_exp_f32": ("f:f", power_of_two),
    "v_exp_f16": ("h:h", power_of_two),
    "v_log_f32": ("f:f", logarithm),
    "v_log_f16": ("h:h", logarithm),
    "v_sin_f32": ("f:f", turned(math.sin)),
    "v_cos_f32": ("f:f", turned(math.cos)),
    "v_sin_f16": ("h:h", turned(math.sin)),
    "v_cos_f16": ("h:h", turned(math.cos)),
}
"""Floats whose last bits the manual leaves open."""


LITERAL: dict[str, tuple[str, bool, Callable[[float, float, float], Number]]] = {
    "v_fmamk_f32": ("f", True, fused),
    "v_fmaak_f32": ("f", False, fused),
    "v_fmamk_f16": ("h", True, fused),
    "v_fmaak_f16": ("h", False, fused),
    "v_madmk_f32": ("f", True, twice_rounded),
    "v_madak_f32": ("f", False, twice_rounded),
}
"""Instructions with a literal: the operands' letter, whether it stands between them, a b + c."""
PACKED: dict[str, Definition] = {
    "v_pk_add_f32": ("f:ff", added),
    "v_pk_mul_f32": ("f:ff", times),
    "v_pk_fma_f32": ("f:fff", fused),
    "v_pk_add_f16": ("h:hh", added),
    "v_pk_mul_f16": ("h:hh", times),
    "v_pk_fma_f16": ("h:hhh", fused),
    "v_pk_min_f16": ("h:hh", lesser),
    "v_pk_max_f16": ("h:hh", greater),
    "v_pk_maximum_f16": ("h:hh", or_nan(greater)),
    "v_pk_minimum_f16": ("h:hh", or_nan(lesser)),
    "v_pk_maximum3_f16": ("h:hhh", or_nan(greater)),
    "v_pk_minimum3_f16": ("h:hhh", or_nan(lesser)),
    "v_pk_add_u16": ("w:ww", lambda a, b: a + b),
    "v_pk_add_i16": ("x:xx", lambda a, b: a + b),
    "v_pk_sub_u16": ("w:ww", lambda a, b: a - b),
    "v_pk_sub_i16": ("x:xx", lambda a, b: a - b),
    "v_pk_mul_lo_u16": ("w:ww", lambda a, b: a * b),
    "v_pk_mad_u16": ("w:www", lambda a, b, c: a * b + c),
    "v_pk_mad_i16": ("x:xxx", lambda a, b, c: a * b + c),
    "v_pk_lshlrev_b16": ("w:ww", lambda a, b: b << (a & 15)),
    "v_pk_lshrrev_b16": ("w:ww", lambda a, b: b >> (a & 15)),
    "v_pk_ashrrev_i16": ("x:wx", lambda a, b: b >> (a & 15)),
    "v_pk_max_i16": ("x:xx", max),
    "v_pk_min_i16": ("x:xx", min),
    "v_pk_max_u16": ("w:ww", max),
    "v_pk_min_u16": ("w:ww", min),
}
"""Instructions that do the same on the low and the high half."""
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
"""Comparisons of every kind; one of floats with a NaN is false."""
COMPARED_FLOATS: dict[str, Callable[[Any, Any], bool]] = {
    "lg": lambda a, b: a < b or a > b,
    "o": lambda a, b: not (math.isnan(a) or math.isnan(b)),
    "u": lambda a, b: math.isnan(a) or math.isnan(b),
    "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (a < b or a > b),
    "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b,
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: not a < b,
}
KINDS = {
    "f16": "h", "f32": "f", "f64": "D", "i16": "x", "u16": "w",
    "i32": "i", "u32": "u", "i64": "I", "u64": "U",
}  # fmt: skip
"""Letters of operands by the ending of a comparison."""


def class_of(bits: int, form: Format) -> int:
    """The bit of `v_cmp_class` that a float's kind has."""
    value = form.value(bits)
    if math.isnan(value):
        return bits >> (form.precision - 2) & 1
    at = 0 if math.isinf(value) else 3 if value == 0 else 2 if form.is_small(value) else 1
    return 2 + at if math.copysign(1, value) < 0 else 9 - at
