"""Whole-number instructions against Python's integers, at edges and at random, on each CDNA target.

The expected values share nothing with the emulator's own table of operations.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from small_assembly import run

BITS, WIDE = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
EDGES = [
    0,
    1,
    2,
    31,
    32,
    33,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    BITS - 1,
    BITS,
]
Oracle = Callable[[int, int, int], int]


def signed(value: int, bits: int = 32) -> int:
    """The value of a word with a sign."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def low24(value: int) -> int:
    return signed(value & 0xFFFFFF, 24)


def leading_signs(value: int) -> int:
    """Where the first bit unlike the sign is, from the top; -1 if there is none."""
    other = [place for place in range(32) if value >> (31 - place) & 1 != value >> 31]
    return other[0] if other else BITS


WORDS: dict[str, Oracle] = {
    "v_add_u32_e32 v4, v1, v2": lambda a, b, c: a + b,
    "v_sub_u32_e32 v4, v1, v2": lambda a, b, c: a - b,
    "v_subrev_u32_e32 v4, v1, v2": lambda a, b, c: b - a,
    "v_mul_lo_u32 v4, v1, v2": lambda a, b, c: a * b,
    "v_mul_hi_u32 v4, v1, v2": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32 v4, v1, v2": lambda a, b, c: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24_e32 v4, v1, v2": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24_e32 v4, v1, v2": lambda a, b, c: low24(a) * low24(b),
    "v_mad_u32_u24 v4, v1, v2, v3": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24 v4, v1, v2, v3": lambda a, b, c: low24(a) * low24(b) + c,
    "v_min_i32_e32 v4, v1, v2": lambda a, b, c: min(signed(a), signed(b)),
    "v_max_i32_e32 v4, v1, v2": lambda a, b, c: max(signed(a), signed(b)),
    "v_min_u32_e32 v4, v1, v2": lambda a, b, c: min(a, b),
    "v_max_u32_e32 v4, v1, v2": lambda a, b, c: max(a, b),
    "v_min3_i32 v4, v1, v2, v3": lambda a, b, c: min(map(signed, (a, b, c))),
    "v_max3_u32 v4, v1, v2, v3": lambda a, b, c: max(a, b, c),
    "v_med3_i32 v4, v1, v2, v3": lambda a, b, c: sorted(map(signed, (a, b, c)))[1],
    "v_lshlrev_b32_e32 v4, v1, v2": lambda a, b, c: b << (a & 31),
    "v_lshrrev_b32_e32 v4, v1, v2": lambda a, b, c: b >> (a & 31),
    "v_ashrrev_i32_e32 v4, v1, v2": lambda a, b, c: signed(b) >> (a & 31),
    "v_and_b32_e32 v4, v1, v2": lambda a, b, c: a & b,
    "v_or_b32_e32 v4, v1, v2": lambda a, b, c: a | b,
    "v_xor_b32_e32 v4, v1, v2": lambda a, b, c: a ^ b,
    "v_xnor_b32_e32 v4, v1, v2": lambda a, b, c: ~(a ^ b),
    "v_not_b32_e32 v4, v1": lambda a, b, c: ~a,
    "v_bfrev_b32_e32 v4, v1": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_bcnt_u32_b32 v4, v1, v2": lambda a, b, c: a.bit_count() + b,
    "v_ffbh_u32_e32 v4, v1": lambda a, b, c: 32 - a.bit_length() if a else BITS,
    "v_ffbl_b32_e32 v4, v1": lambda a, b, c: (a & -a).bit_length() - 1 if a else BITS,
    "v_ffbh_i32_e32 v4, v1": lambda a, b, c: leading_signs(a),
    "v_bfe_u32 v4, v1, v2, v3": lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1),
    "v_bfi_b32 v4, v1, v2, v3": lambda a, b, c: (a & b) | (~a & c),
    "v_bfm_b32 v4, v1, v2": lambda a, b, c: ((1 << (a & 31)) - 1) << (b & 31),
    "v_alignbit_b32 v4, v1, v2, v3": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32 v4, v1, v2, v3": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_lshl_add_u32 v4, v1, v2, v3": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32 v4, v1, v2, v3": lambda a, b, c: (a + b & BITS) << (c & 31),
    "v_lshl_or_b32 v4, v1, v2, v3": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32 v4, v1, v2, v3": lambda a, b, c: (a & b) | c,
    "v_or3_b32 v4, v1, v2, v3": lambda a, b, c: a | b | c,
    "v_add3_u32 v4, v1, v2, v3": lambda a, b, c: a + b + c,
    "v_xad_u32 v4, v1, v2, v3": lambda a, b, c: (a ^ b) + c,
    "v_sad_u32 v4, v1, v2, v3": lambda a, b, c: abs(a - b) + c,
}
"""Instructions whose result is one word."""
PAIRS: dict[str, Oracle] = {
    "v_mad_u64_u32 v[4:5], s[8:9], v1, v2, v[6:7]": lambda a, b, c: a * b + c,
    "v_mad_i64_i32 v[4:5], s[8:9], v1, v2, v[6:7]": lambda a, b, c: signed(a) * signed(b) + c,
    "v_lshlrev_b64 v[4:5], v1, v[6:7]": lambda a, b, c: c << (a & 63),
    "v_lshrrev_b64 v[4:5], v1, v[6:7]": lambda a, b, c: c >> (a & 63),
    "v_ashrrev_i64 v[4:5], v1, v[6:7]": lambda a, b, c: signed(c, 64) >> (a & 63),
}
"""Instructions with a result of two words; `c` is the pair of v2, low, and v3, high."""
CARRIES: dict[str, Oracle] = {
    "v_add_co_u32_e32 v4, vcc, v1, v2": lambda a, b, c: a + b >> 32 & 1,
    "v_sub_co_u32_e32 v4, vcc, v1, v2": lambda a, b, c: int(a < b),
    "v_subrev_co_u32_e32 v4, vcc, v1, v2": lambda a, b, c: int(b < a),
    "v_mad_u64_u32 v[6:7], vcc, v1, v2, v[6:7]": lambda a, b, c: a * b + c >> 64 & 1,
    "v_mad_i64_i32 v[6:7], vcc, v1, v2, v[6:7]": lambda a, b, c: int(
        not -(1 << 63) <= signed(a) * signed(b) + signed(c, 64) < 1 << 63
    ),
}
"""Instructions that leave a carry, a borrow or an overflow in VCC."""


def inputs(seed: str) -> tuple[list[int], list[int], list[int]]:
    """Three words for each of 64 lanes: edges beside edges, and random ones."""
    source = random.Random(seed)

    def word() -> int:
        return source.choice(EDGES) if source.random() < 0.5 else source.getrandbits(32)

    return tuple([word() for _ in range(64)] for _ in range(3))  # type: ignore[return-value]


@pytest.mark.compiler
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("line", WORDS)
def test_a_word(line: str, target: str) -> None:
    a, b, c = inputs(line)
    found, _, _ = run(line, a, b, c, target=target)
    wanted = [WORDS[line](*lane) & BITS for lane in zip(a, b, c, strict=True)]
    assert found == wanted


def pairs(low: list[int], high: list[int]) -> list[int]:
    return [x | y << 32 for x, y in zip(low, high, strict=True)]


PAIR = "v_mov_b32_e32 v6, v2\nv_mov_b32_e32 v7, v3\n"


@pytest.mark.compiler
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("line", PAIRS)
def test_two_words(line: str, target: str) -> None:
    a, b, c = inputs(line)
    low, high, _ = run(PAIR + line, a, b, c, target=target)
    wide = zip(a, b, pairs(b, c), strict=True)
    assert pairs(low, high) == [PAIRS[line](*lane) & WIDE for lane in wide]


@pytest.mark.compiler
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("line", CARRIES)
def test_a_carry(line: str, target: str) -> None:
    a, b, c = inputs(line)
    told = "\nv_cndmask_b32_e64 v5, 0, 1, vcc"
    _, found, _ = run(PAIR + line + told, a, b, c, target=target)
    wide = zip(a, b, pairs(b, c), strict=True)
    assert found == [CARRIES[line](*lane) for lane in wide]
