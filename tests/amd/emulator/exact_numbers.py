"""Numbers of a GPU in Python: bits to exact values, and exact values rounded once to bits.

Nothing here is shared with the emulator. An operation of floats gives a Fraction where its exact
result is known, and a float for zeros, infinities and NaN.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

Number = int | float | Fraction


@dataclass(frozen=True)
class Format:
    """A binary float: bits in all, bits of precision, least exponent of a normal number."""

    bits: int
    precision: int
    least: int

    @property
    def largest(self) -> Fraction:
        """The largest finite number."""
        return (2 - Fraction(2) ** (1 - self.precision)) * Fraction(2) ** (1 - self.least)

    def value(self, bits: int) -> float:
        """The number of some bits."""
        fraction = bits & ((1 << (self.precision - 1)) - 1)
        exponents = (1 << (self.bits - self.precision)) - 1
        exponent = bits >> (self.precision - 1) & exponents
        sign = -1.0 if bits >> (self.bits - 1) else 1.0
        if exponent == exponents:
            return math.copysign(math.nan, sign) if fraction else sign * math.inf
        if exponent:
            fraction += 1 << (self.precision - 1)
        return sign * math.ldexp(fraction, max(exponent, 1) - 1 + self.least - self.precision + 1)

    def near(self, value: Number) -> float:
        """The nearest number, ties to even; what is too large is an infinity."""
        if isinstance(value, float) and (not math.isfinite(value) or value == 0):
            return value
        exact = Fraction(value)
        size = abs(exact)
        unit = Fraction(2) ** (max(exponent_of(size), self.least) - self.precision + 1)
        near = round(size / unit) * unit
        return (1 if exact > 0 else -1) * (math.inf if near > self.largest else float(near))

    def toward_zero(self, value: Number) -> float:
        """The nearest number that is not larger in size."""
        if isinstance(value, float) and (not math.isfinite(value) or value == 0):
            return value
        exact = Fraction(value)
        size = min(abs(exact), self.largest)
        unit = Fraction(2) ** (max(exponent_of(size), self.least) - self.precision + 1)
        return (1 if exact > 0 else -1) * float(size // unit * unit)

    def bits_of(self, value: float) -> int:
        """The bits of a number of this format."""
        sign = int(math.copysign(1.0, value) < 0) << (self.bits - 1)
        ones = ((1 << (self.bits - self.precision)) - 1) << (self.precision - 1)
        if math.isnan(value):
            return sign | ones | 1 << (self.precision - 2)
        if math.isinf(value):
            return sign | ones
        size = Fraction(abs(value))
        exponent = max(exponent_of(size), self.least) if size else self.least
        units = int(size / Fraction(2) ** (exponent - self.precision + 1))
        return sign | units + ((exponent - self.least) << (self.precision - 1))

    def is_small(self, value: float) -> bool:
        """True for a number between zero and the least normal one."""
        return 0 < abs(value) < 2.0**self.least


def exponent_of(size: Fraction) -> int:
    """The exponent e of a positive number in 2**e to 2**(e + 1)."""
    found = size.numerator.bit_length() - size.denominator.bit_length()
    return found if Fraction(2) ** found <= size else found - 1


F16 = Format(16, 11, -14)
BF16 = Format(16, 8, -126)
F32 = Format(32, 24, -126)
F64 = Format(64, 53, -1022)
FORMATS = {"h": F16, "f": F32, "D": F64, "b": BF16}
"""By the letter of an operand."""
WIDTHS = {"u": 32, "i": 32, "U": 64, "I": 64, "w": 16, "x": 16, "f": 32, "h": 16, "D": 64, "b": 16}


def is_finite(*values: Number) -> bool:
    return all(math.isfinite(one) for one in values)


def added(*values: float) -> Number:
    """The sum, exact where it is not zero."""
    if is_finite(*values) and (exact := sum(map(Fraction, values))):
        return exact
    found = values[0]
    for one in values[1:]:
        found = 0.0 if is_finite(found, one) and found == -one and found else found + one
    return found


def times(a: float, b: float) -> Number:
    """The product, exact where it is not zero."""
    if is_finite(a, b) and a and b:
        return Fraction(a) * Fraction(b)
    return a * b


def fused(a: float, b: float, c: float) -> Number:
    """a b + c with one rounding to come."""
    if is_finite(a, b, c):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if exact:
            return exact
        return a * b + c if c == 0 else 0.0
    if is_finite(a, b):  # c alone decides, also where the product is too large for a float
        return c
    return a * b + c


def signed(value: int, bits: int = 32) -> int:
    """The value of a word with a sign."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def read(bits: int, letter: str) -> Number:
    """The value of an operand of a kind."""
    bits &= (1 << WIDTHS[letter]) - 1
    if letter in FORMATS:
        return FORMATS[letter].value(bits)
    return signed(bits, WIDTHS[letter]) if letter in "iIx" else bits


def written(value: Number, letter: str) -> int:
    """The bits of a result of a kind."""
    if letter in FORMATS:
        form = FORMATS[letter]
        return form.bits_of(form.near(value))
    return int(value) & ((1 << WIDTHS[letter]) - 1)


def same(found: int, wanted: int, letter: str, units: int = 0) -> bool:
    """True for equal bits, for two NaN, and for numbers at most `units` of the last place apart."""
    if found == wanted:
        return True
    if letter not in FORMATS:
        return False
    a, b = (FORMATS[letter].value(one) for one in (found, wanted))
    if math.isnan(a) and math.isnan(b):
        return True
    return bool(units) and (a == b or abs(found - wanted) <= units)


_WORDS = (0, 1, 2, 3, 31, 32, 33, 63, 64, 255, 0x7F, 0x80, 0x7FFF, 0x8000, 0xFFFF, 0x10000)
EDGES = {
    16: (*_WORDS[:13], 0x8000, 0x8001, 0xFFFE, 0xFFFF),
    32: (*_WORDS, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF),
    64: (*_WORDS, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, (1 << 64) - 1),
}
_FLOATS = (0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 0.49999997, 0.1, 65504.0, 65520.0, 2.0**31, 2.0**32, 255.5)


def bits_for(letter: str, chance: random.Random) -> int:
    """Bits of an operand: an edge, a number of ordinary size, or any bits."""
    width = WIDTHS[letter]
    kind = chance.random()
    if letter not in FORMATS:
        return chance.choice(EDGES[width]) if kind < 0.5 else chance.getrandbits(width)
    form = FORMATS[letter]
    if kind < 0.3:
        edge = chance.choice((*_FLOATS, math.inf, math.nan, 2.0**form.least, float(form.largest)))
        bits = form.bits_of(form.near(edge))
        if kind < 0.05:
            bits = 1  # the least number of all
        return bits ^ chance.getrandbits(1) << (width - 1)
    if kind < 0.8:
        value = chance.uniform(-8, 8) * 2.0 ** chance.randint(-8, 8)
        return form.bits_of(form.near(value))
    bits = chance.getrandbits(width)
    is_signalling = math.isnan(form.value(bits))
    return bits | 1 << (form.precision - 2) if is_signalling else bits


def two_over_pi(bits: int) -> int:
    """The first bits of 2 / pi after the point, by Machin's formula."""

    def arc_tangent(x: int) -> int:
        term, total, at = one // x, one // x, 3
        while term:
            term //= -x * x
            total, at = total + term // at, at + 2
        return total

    one = 1 << (bits + 64)
    return 2 * one * one // (16 * arc_tangent(5) - 4 * arc_tangent(239)) >> 64


TWO_OVER_PI = two_over_pi(1201)


def quotient(a: float, b: float) -> Number:
    """a over b."""
    if is_finite(a, b) and a and b:
        return Fraction(a) / Fraction(b)
    if math.isnan(a) or math.isnan(b) or (b == 0 and a == 0):
        return math.nan
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(b):
        return math.nan if math.isinf(a) else sign * 0.0
    return sign * (math.inf if b == 0 else abs(a) and math.inf if math.isinf(a) else 0.0)


def root(a: float) -> float:
    return math.nan if a < 0 else math.sqrt(a) if is_finite(a) else a


def power_of_two(a: float) -> float:
    if math.isnan(a):
        return a
    return math.inf if a > 2000 else 0.0 if a < -2000 else 2.0**a if a < 1024 else math.inf


def logarithm(a: float) -> float:
    if math.isnan(a) or a < 0:
        return math.nan
    return -math.inf if a == 0 else math.inf if math.isinf(a) else math.log2(a)


def turned(function: Callable[[float], float]) -> Callable[[float], float]:
    """Sine or cosine of a number of turns."""
    return lambda a: function(2 * math.pi * math.fmod(a, 1)) if is_finite(a) else math.nan
