"""Functions of generated Triton kernels. A source takes the parts that it calls, as text.

Each part begins with a line of its name and the parts that it needs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

E4M3_BEYOND = 0x7F  # a source gets the code of the torch that runs (`snippets.parts_of`)


#: max
@triton.jit
def r_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


#: min
@triton.jit
def r_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


#: relu
@triton.jit
def r_relu(x):
    return tl.where(x <= 0, 0, x).to(x.dtype)


#: reciprocal
@triton.jit
def r_reciprocal(x):
    return 1.0 / x


#: sign
@triton.jit
def r_sign(x):
    return ((x > 0).to(tl.int32) - (x < 0).to(tl.int32)).to(x.dtype)


#: trunc
@triton.jit
def r_trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


#: round
@triton.jit
def r_round(x):
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5)
    return low + tl.where((rest > 0.5) | ((rest == 0.5) & (odd == 1.0)), 1.0, 0.0).to(x.dtype)


#: expm1
# Taylor's polynomial near 0; in float64 the exponential, corrected for its rounding (W. Kahan).
@triton.jit
def r_expm1(x):
    power = tl.exp(x)
    if x.dtype == tl.float64:
        away = power - 1.0
        odd = (away == 0.0) | (away == -1.0) | (tl.abs(away) == float("inf"))
        corrected = away * x / tl.where(odd, 1.0, tl.log(power))
        result = tl.where(away == 0.0, x, tl.where(odd, away, corrected))
    else:
        p = 1.98412698e-4 + 2.48015873e-5 * x
        p = 1.38888889e-3 + p * x
        p = 8.33333333e-3 + p * x
        p = 4.16666667e-2 + p * x
        p = 1.66666667e-1 + p * x
        p = 0.5 + p * x
        result = tl.where(tl.abs(x) < 0.5, x + p * x * x, power - 1.0)
    return result


#: log1p
# By s = x / (2 + x) near 0; in float64 the logarithm, corrected for the rounding of 1 + x.
@triton.jit
def r_log1p(x):
    if x.dtype == tl.float64:
        away = (1.0 + x) - 1.0
        plain = (away == 0.0) | (x == float("inf"))
        result = tl.where(plain, x, tl.log(1.0 + x) * (x / tl.where(plain, 1.0, away)))
    else:
        near = tl.abs(x) < 0.3
        s = tl.where(near, x / (2.0 + x), 0.0)
        z = s * s
        p = 0.33333333 + z * (0.2 + z * (0.142857143 + z * 0.111111111))
        result = tl.where(near, 2.0 * s + 2.0 * s * z * p, tl.log(1.0 + x))
    return result


#: tanh expm1
# Cephes' polynomial near 0, elsewhere by the exponential.
@triton.jit
def r_tanh(x):
    if x.dtype == tl.float64:
        down = r_expm1(-2.0 * tl.abs(x))
        large = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
        found = tl.where(tl.abs(x) < 0.625, -down / (down + 2.0), large)
        result = tl.where(x < 0, -found, found)
    else:
        z = x * x
        p = 2.06390887954e-2 - 5.70498872745e-3 * z
        p = -5.37397155531e-2 + p * z
        p = 1.33314422036e-1 + p * z
        p = -3.33332819422e-1 + p * z
        large = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
        result = tl.where(tl.abs(x) < 0.625, x + p * z * x, tl.where(x < 0, -large, large))
    return result


#: sinh expm1
@triton.jit
def r_sinh(x):
    a = tl.abs(x)
    up = r_expm1(a)
    large = tl.where(
        a > 60.0, 0.5 * tl.exp(0.5 * a) * tl.exp(0.5 * a), 0.5 * (up + up / (up + 1.0))
    )
    return tl.where(x < 0, -large, large)


#: cosh
@triton.jit
def r_cosh(x):
    half = tl.exp(0.5 * tl.abs(x))
    return 0.5 * half * half + 0.5 / half / half


#: asinh log1p
@triton.jit
def r_asinh(x):
    a = tl.abs(x)
    near = r_log1p(a + a * a / (tl.sqrt(a * a + 1.0) + 1.0))
    found = tl.where(a > 1e9, tl.log(a) + 0.6931471805599453, near)
    return tl.where(x < 0, -found, found)


#: atan
# Turned by a quarter or half of pi to below tan(pi/8), then a polynomial or a quotient (Cephes).
@triton.jit
def r_atan(x):
    a = tl.abs(x)
    high = a > 2.414213562373095
    middle = (a > 0.4142135623730951) & (a <= 2.414213562373095)
    r = tl.where(high, -1.0 / tl.where(high, a, 1.0), tl.where(middle, (a - 1.0) / (a + 1.0), a))
    z = r * r
    if x.dtype == tl.float64:
        p = -1.615753718733365076637e1 - 8.750608600031904122785e-1 * z
        p = -7.500855792314704667340e1 + p * z
        p = -1.228866684490136173410e2 + p * z
        p = -6.485021904942025371773e1 + p * z
        q = 2.485846490142306297962e1 + z
        q = 1.650270098316988542046e2 + q * z
        q = 4.328810604912902668951e2 + q * z
        q = 4.853903996359136964868e2 + q * z
        q = 1.945506571482613964425e2 + q * z
        p = p / q
    else:
        p = -1.38776856032e-1 + 8.05374449538e-2 * z
        p = 1.99777106478e-1 + p * z
        p = -3.33329491539e-1 + p * z
    quarters = tl.where(high, 2, tl.where(middle, 1, 0)).to(x.dtype)
    found = quarters * 0.7853981633974483 + (r + r * z * p)
    return tl.where(x < 0, -found, found)


#: atan2 atan
# The angle of a point: that of its smaller coordinate over the larger, turned. -0 is a side of 0.
@triton.jit
def r_atan2(y, x):
    if x.dtype == tl.float64:
        left, below = x.to(tl.int64, bitcast=True) < 0, y.to(tl.int64, bitcast=True) < 0
    else:
        left, below = x.to(tl.int32, bitcast=True) < 0, y.to(tl.int32, bitcast=True) < 0
    a, b = tl.abs(x), tl.abs(y)
    steep = b > a
    large = tl.where(steep, b, a)
    alike = (a == b) & ((a == 0) | (a == float("inf")))
    share = tl.where(steep, a, b) / tl.where(alike, 1.0, large)
    share = tl.where(alike, tl.where(a == 0, 0, 1).to(x.dtype), share)
    found = r_atan(share)
    found = tl.where(steep, 1.5707963267948966 - found, found)
    found = tl.where(left, 3.141592653589793 - found, found)
    return tl.where(below, -found, found)


#: erfc
# Through float64: what is left of a float32 erf far from 0 has no digits.
@triton.jit
def r_erfc(x):
    return (1.0 - tl.erf(tl.cast(x, tl.float64))).to(x.dtype)


#: whole_pow
@triton.jit
def r_whole_pow(x, y):
    found = x * 0 + y * 0 + 1
    for _ in range(63):
        found = tl.where((y > 0) & (y % 2 == 1), found * x, found)
        x = x * x
        y = y // 2
    return found


#: pow
# By float64's logarithm, which a float32 result does not lose a digit by.
@triton.jit
def r_pow(x, y):
    wide, by = tl.cast(x, tl.float64), tl.cast(y, tl.float64)
    size = tl.exp2(by * tl.log2(tl.abs(wide)))
    whole = tl.floor(by) == by
    odd = whole & (by - 2.0 * tl.floor(by * 0.5) == 1.0)
    signed = tl.where(odd, -size, tl.where(whole, size, float("nan")))
    found = tl.where(wide < 0, signed, size)
    return tl.where((by == 0.0) | (wide == 1.0), 1.0, found).to(x.dtype)


#: fmod
@triton.jit
def r_fmod(x, y):
    wide, by = tl.cast(x, tl.float64), tl.cast(y, tl.float64)
    by = tl.abs(by)
    left = tl.abs(wide)
    rest = left - tl.floor(left / by) * by
    rest = tl.where(rest < 0, rest + by, tl.where(rest >= by, rest - by, rest))
    rest = tl.where((by == float("inf")) & (left < by), left, rest)
    return tl.where(wide < 0, -rest, rest).to(x.dtype)


#: remainder fmod
@triton.jit
def r_remainder(x, y):
    rest = r_fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


#: whole_fmod
@triton.jit
def r_whole_fmod(x, y):
    return tl.where(y == 0, 0, x % tl.where(y == 0, 1, y)).to(x.dtype)


#: whole_remainder whole_fmod
@triton.jit
def r_whole_remainder(x, y):
    rest = r_whole_fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


#: trunc_div
@triton.jit
def r_trunc_div(x, y):
    return tl.where(y == 0, 0, x // tl.where(y == 0, 1, y)).to(x.dtype)


#: floor_div trunc_div whole_fmod
@triton.jit
def r_floor_div(x, y):
    found = r_trunc_div(x, y)
    return tl.where((r_whole_fmod(x, y) != 0) & ((x < 0) != (y < 0)), found - 1, found)


#: from_e4m3
@triton.jit
def r_from_e4m3(h):
    code = h.to(tl.int32)
    rest = code & 0x7F
    size = (rest << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
    size = tl.where(rest == 0x7F, float("nan"), size)
    return tl.where(code >= 0x80, -size, size)


#: to_e4m3
# Below 2^-6 the codes are evenly spaced: adding 2^14 rounds to them.
@triton.jit
def r_to_e4m3(x):
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    rest = bits & 0x7FFFFFFF
    small = (rest.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    large = (rest - 0x3C000000 + 0x7FFFF + ((rest >> 20) & 1)) >> 20
    code = tl.where(rest > 0x43E80000, E4M3_BEYOND, tl.where(rest < 0x3C800000, small, large))
    code = tl.where(rest > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


#: from_e5m2
@triton.jit
def r_from_e5m2(h):
    return (h.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


#: to_e5m2
@triton.jit
def r_to_e5m2(x):
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    rest = bits & 0x7FFFFFFF
    small = (rest.to(tl.float32, bitcast=True) + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    large = (rest - 0x38000000 + 0xFFFFF + ((rest >> 21) & 1)) >> 21
    code = tl.where(rest >= 0x47800000, 0x7C, tl.where(rest < 0x38800000, small, large))
    code = tl.where(rest > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


#: times
@triton.jit
def r_times(a, b):
    return a * b


#: top
# NaN wins, as in torch.
@triton.jit
def r_top(x, AXIS: tl.constexpr):
    lost = tl.max((x != x).to(tl.int32), AXIS, keep_dims=True)
    best = tl.max(tl.where(x != x, float("-inf"), x), AXIS, keep_dims=True)
    return tl.where(lost > 0, float("nan"), best)


#: bottom
@triton.jit
def r_bottom(x, AXIS: tl.constexpr):
    lost = tl.max((x != x).to(tl.int32), AXIS, keep_dims=True)
    best = tl.min(tl.where(x != x, float("inf"), x), AXIS, keep_dims=True)
    return tl.where(lost > 0, float("nan"), best)


#: join
# Two sums of exponentials, each relative to its largest exponent.
@triton.jit
def r_join(most, total, other, more):
    best = tl.maximum(most, other, propagate_nan=tl.PropagateNan.ALL)
    ground = tl.where(tl.abs(best) == float("inf"), 0.0, best)
    left = tl.where(most == float("-inf"), 0.0, total * tl.exp(most - ground))
    right = tl.where(other == float("-inf"), 0.0, more * tl.exp(other - ground))
    return best, left + right
