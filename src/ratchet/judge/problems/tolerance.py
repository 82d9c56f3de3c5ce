"""Tolerance of a kernel's output against the float64 oracle. Imports torch lazily."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SEQUENTIAL: Final = 1.5
"""Error allowed to one accumulator over n additions, in eps sqrt(n) of the output's scale.

This is 3 sqrt(n) units of rounding u = eps / 2. Rounding errors are nearly independent, so they
grow with the root (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, A2815; lambda = 3). Measured on
a million sums of 16 to 4096 values (normal, exponential, uniform, squares, products): 0.12 in the
root mean square, at most 0.77 in 99.99 % and 0.95 in all; a running sum of normal values reaches
1.25.
"""
MOST_TERMS: Final = 4096
"""Longest sum for which the bound grows: a loss over millions of elements would keep few digits.
Measured sums of 16,384 such terms still pass; one accumulator for many more is wrong."""
MOST_AMPLIFIED: Final = 512.0
"""Largest widening of the bound for an ill-conditioned function. Keys that lie 8 off 0 amplify
their errors 1000 times in attention's gradient. float32 sums must still be within 0.6 % of the
scale in norm. Inputs with fewer bits are amplified as much: TF32's lie 25 times outside the
bound."""
MOST_AMPLIFIED_ALONE: Final = 16 * MOST_AMPLIFIED
"""The same for a single element, while the norm keeps to the narrower bound. A SiLU's slope turns
within a few units of 0: among gates of 200,000, one near 0 makes its row of a gradient 31,000 times
as sensitive. There a right kernel was off by 0.8 % of the scale, and torch by 0.1 %."""
WELL_CONDITIONED: Final = 2.0
"""Condition up to which a function counts as well-conditioned (a product has this one)."""
UNKNOWN_LOSS: Final = (0.5, 16.0)
"""Substitute for an unknown condition: the reference's own loss over this many eps, up to this many
times."""
PART: Final = 1 << 15
"""Elements that are compared at a time: they fit in a second-level cache, and torch starts no
thread for so few."""
LEAST_OFF: Final = 2  # Number of codes that may always be off, if a problem allows any
STAGNANT: Final = (6.0, 128.0)
"""Loss of a reference's own sums, in eps of float32 in the root mean square, from which they count
as stagnant, and above which they are not in float32."""
LANES: Final = 32.0
"""Widening for stagnant sums, in which small terms vanish beside a large one. A loop without
torch's lanes (8 in AVX2, 16 in AVX-512) then loses that many times more, and twice that in one draw
of a hundred. Over 1,500 draws of a softmax of squares in rows of 4,099, a sum in one accumulator is
at most at 0.66 of the bound with AVX-512 and 0.43 with AVX2; at half this widening 3 % failed with
AVX-512."""
ALONE: Final = 4.0
"""Widening for a single element. Independent roundings grow with the root of the lanes, so one
element may lose 4 times as much; so it may if the kernel's formula cancels. Measured against 3
times the reference's loss: 1.5 on softmax's gradient of heavy-tailed rows, 1.4 on tanh-GELU's by
way of s (1 - s). If the norm is under a quarter of its bound, an element may also exceed its own
bound 4 times: attention's gradient of heavy-tailed values, computed from the log of each row's sum
as in flash attention, was at 1.2 with a norm at 0.05 to 0.18. Inputs with TF32's bits show in the
norm as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputCheck:
    """Result of one output's comparison; errors are relative to the bound (1.0 passes)."""

    passed: bool
    element_ratio: float  # At most, where every element meets the least of all bounds
    norm_ratio: float
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Error of the reference in its own dtype over many draws, relative to its output's scale.

    The scale is the root mean square of an output. A single draw of a few elements says little.
    """

    largest: float = 0.0
    typical: float = 0.0  # The root mean square
    terms: float = 1.0  # Number of elements of an input that an element of the output depends on
    condition: float = 1.0  # Amplification of a small change of the inputs
    single: float = 1.0  # The same for the element that moves furthest, if that is more

    def sequential(self, eps: float, lost: float, *, single: bool = False) -> float:
        """Return the error allowed to a plain sum in one accumulator, in the same units.

        torch adds up pairwise and in lanes and loses almost nothing, but a textbook loop is right
        too. So is a kernel that amplifies its roundings as much as the function amplifies its
        inputs'. The reference's own formula may amplify them less: a stored log of a sum loses eps
        times itself, while subtracting the maximum first does not. If the condition is unknown,
        `lost` stands for it, in the root mean square. `single` is for one element: with
        heavy-tailed values, one element amplifies errors more than the output as a whole. Work on
        each element by itself rounds once on its way, too: GPUs take exp(x) as exp2(x log2 e).
        """
        if math.isfinite(self.condition):
            condition = max(self.condition, self.single) if single else self.condition
            most = MOST_AMPLIFIED_ALONE if single else MOST_AMPLIFIED
            amplified = min(condition / WELL_CONDITIONED, most)
        else:
            well, most = UNKNOWN_LOSS
            amplified = min(lost / (well * eps), most)
        additions = max(0.0, min(self.terms, MOST_TERMS) - 1.0)
        roundings = max(SEQUENTIAL * math.sqrt(additions), float(amplified > 1.0))
        return eps * roundings * max(1.0, amplified)


NO_LOSS = Loss()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """The bound on errors, per element and in norm.

    It is the largest of three: `reference_factor` times the error of the reference in its own dtype
    against float64; `ulps` units in the last place of the output dtype at the output's scale; and
    the error allowed to a plain sum in float32 (in float64 for float64 outputs).
    """

    exact: bool = False  # A pure copy: every bit must agree
    reference_factor: float = 3.0
    ulps: float = 2.0
    code_slack: int = 0
    """Integers and fp8 are codes and must equal the reference's. If byte codes are rounded from
    reals, a value half-way between two codes may take the neighbour: 1 allows that for a few."""
    code_share: float = 1e-3
    """Share of an output's codes that may be off (two if that is fewer). Multiplying instead of
    dividing moves 1.4e-6 of the int8 codes of normal float32 values. Many bfloat16 values lie
    exactly half-way: there it moves 6e-4 (e4m3: 9e-4), and 3.3e-2 at the least lucky scale."""

    def check(self, got: Tensor, own: Tensor, oracle: Tensor, usual: Loss = NO_LOSS) -> OutputCheck:
        """Compare one output: `own` is the reference in its own dtype, `oracle` in float64.

        `usual` is the reference's error over other draws, if known.
        """
        import torch

        if not same_form(got, own):
            return checked(
                False,
                f"shape {tuple(got.shape)} {got.dtype}, wanted {tuple(own.shape)} {own.dtype}",
            )
        rounded = own.dtype.is_floating_point or own.dtype in (torch.int8, torch.uint8)
        if self.exact or not rounded:
            if torch.equal(_bits(got), _bits(own)):
                return checked(True, "equal bit for bit")
            places = (_bits(got) != _bits(own)).nonzero()
            return checked(
                False,
                f"{len(places):,} of {own.numel():,} elements differ, the first at "
                f"{places[0].tolist()}, but every bit must agree",
            )
        if coded(own.dtype):
            return self._check_codes(got, own, oracle)
        return self._check_floats(got, own, oracle, usual)

    def check_all(
        self,
        got: Sequence[Tensor],
        own: Sequence[Tensor],
        oracle: Sequence[Tensor],
        usual: Sequence[Loss] | None = None,
    ) -> list[OutputCheck]:
        """Compare every output in order; `usual` has one loss per output."""
        losses = usual if usual is not None else [NO_LOSS] * len(got)
        return [self.check(*four) for four in zip(got, own, oracle, losses, strict=True)]

    def _check_codes(self, got: Tensor, own: Tensor, oracle: Tensor) -> OutputCheck:
        """Compare codes with the reference's or, with a slack, with its float64 ones."""
        if not own.numel():
            return checked(True, "empty")
        if not _same_specials(_specials(got), _specials(own)):
            return checked(
                False, "inf or NaN where the reference has another value, or the reverse"
            )
        steps = (_places(got) - _places(own)).abs()
        if self.code_slack and oracle.dtype == own.dtype:
            steps = steps.minimum((_places(got) - _places(oracle)).abs())
        most, off = int(steps.max()), int((steps > 0).sum())
        allowed = max(LEAST_OFF, int(self.code_share * own.numel())) if self.code_slack else 0
        ratio = max(most / max(1, self.code_slack), off / max(1, allowed))
        words = (
            f"{off} of {own.numel()} codes are off (at most {allowed} may be), by {most} at most"
        )
        passed = most <= self.code_slack and off <= allowed
        return OutputCheck(passed=passed, element_ratio=ratio, norm_ratio=ratio, detail=words)

    def _check_floats(self, got: Tensor, own: Tensor, oracle: Tensor, usual: Loss) -> OutputCheck:
        import torch

        if not own.numel():
            return checked(True, "empty")
        error, lost = _distances((got, own), oracle)
        if not math.isfinite(lost.largest):
            finite = torch.isfinite(own) & torch.isfinite(oracle)
            if not _same_specials(got[~finite], own[~finite]):
                return checked(
                    False, "inf or NaN where the reference has another value, or the reverse"
                )
            if not bool(finite.all()):
                return self._check_floats(got[finite], own[finite], oracle[finite], usual)
        if not math.isfinite(error.largest):
            return checked(False, "inf or NaN where the reference is finite")
        return self._ratios(got, oracle, error, lost, own.dtype, usual)

    def _ratios(
        self,
        got: Tensor,
        oracle: Tensor,
        error: _Distance,
        lost: _Distance,
        dtype: torch.dtype,
        usual: Loss,
    ) -> OutputCheck:
        import torch

        info, count = torch.finfo(dtype), oracle.numel()
        eps, floor = float(info.eps), float(info.tiny)
        scale = error.exact_norm / math.sqrt(count)
        # Half precision sums in float32, so 2 units of its own are far more than enough.
        adder = min(eps, float(torch.finfo(torch.float32).eps))
        here = max(usual.typical, lost.norm / error.exact_norm if scale else 0.0)
        ulp = max(self.ulps * eps, usual.sequential(adder, here))
        single = max(ulp, usual.sequential(adder, here, single=True))
        low, high = STAGNANT
        stagnant = usual.terms > 1 and low * adder < here < high * adder
        factor = max(self.reference_factor, LANES) if stagnant else self.reference_factor
        # A formula's terms may cancel in one element; the norm still bounds the rest.
        alone = here < high * adder
        widest = max(factor, self.reference_factor * ALONE) if alone else factor
        least = widest * max(lost.largest, usual.largest * scale)
        element = error.largest / least if error.largest < least else 0.0
        if not element:  # the bound of each element decides
            for one, exact in _parts(got, oracle):
                allowed = exact.abs().clamp_(min=scale).mul_(single).add_(floor).clamp_(min=least)
                element = max(element, float(one.sub(exact).abs_().div_(allowed).max()))
        # The norm of few elements varies, so three standard deviations come on top.
        usual_norm = usual.typical * scale * (count**0.5 + 3.0)
        allowed_norm = max(
            factor * max(lost.norm, usual_norm), ulp * error.exact_norm + floor * count**0.5
        )
        norm = error.norm / allowed_norm
        if alone and norm <= 1 / ALONE:
            element /= ALONE
        return OutputCheck(
            passed=element <= 1.0 and norm <= 1.0,
            element_ratio=element,
            norm_ratio=norm,
            detail=f"largest error {error.largest:.3g}, {_times(element)} times the bound; "
            f"in norm {_times(norm)}",
        )


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 1e4 else f"{factor:.3g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Distance:
    """Distance of an answer from the exact one: its largest element, and norms."""

    largest: float
    norm: float
    exact_norm: float


def _distances(answers: Sequence[Tensor], oracle: Tensor) -> list[_Distance]:
    """Compare answers with the exact one in a single pass over it."""
    from torch.linalg import vector_norm

    exact_norms: list[float] = []
    norms: list[list[float]] = [[] for _ in answers]
    largest = [0.0] * len(answers)
    for *ones, exact in _parts(*answers, oracle):
        exact_norms.append(float(vector_norm(exact)))
        for at, one in enumerate(ones):
            off = one.sub(exact)
            norms[at].append(float(vector_norm(off)))
            most = float(vector_norm(off, math.inf))
            if not largest[at] >= most and not math.isnan(largest[at]):
                largest[at] = most
    exact_norm = math.hypot(*exact_norms)
    return [
        _Distance(largest=most, norm=math.hypot(*parts), exact_norm=exact_norm)
        for most, parts in zip(largest, norms, strict=True)
    ]


def _parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield a part of each at a time that fits in the caches, the last in float64."""
    import torch

    flat = [one.expand_as(tensors[0]).reshape(-1) for one in tensors]  # none is shorter
    for start in range(0, flat[0].numel(), PART):
        *ones, exact = (one[start : start + PART] for one in flat)
        yield *ones, exact.to(torch.float64)


def widen(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, as the oracle's inputs are; integers and flags unchanged."""
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def loss_over(draws: Sequence[tuple[Tensor, Tensor]]) -> Loss:
    """Return the loss of one output of the reference over draws of (its own dtype, float64)."""
    import torch

    largest, squares, count = 0.0, 0.0, 0
    for own, oracle in draws:
        if coded(own.dtype):
            continue
        finite = torch.isfinite(own) & torch.isfinite(oracle)
        if not bool(finite.all()):
            own, oracle = own[finite], oracle[finite]
        if own.numel():
            (lost,) = _distances((own,), oracle)
            tiny = math.sqrt(own.numel()) * torch.finfo(torch.float64).tiny
            scale = max(lost.exact_norm, tiny) / math.sqrt(own.numel())
            largest = max(largest, lost.largest / scale)
            squares += (lost.norm / scale) ** 2
            count += own.numel()
    return Loss(largest=largest, typical=math.sqrt(squares / count)) if count else NO_LOSS


def checked(passed: bool, detail: str) -> OutputCheck:
    """Return a result of yes or no."""
    ratio = 0.0 if passed else float("inf")
    return OutputCheck(passed=passed, element_ratio=ratio, norm_ratio=ratio, detail=detail)


def coded(dtype: torch.dtype) -> bool:
    """Return whether values are compared as codes: integers, bools and fp8."""
    return not dtype.is_floating_point or dtype.itemsize == 1


def same_form(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal bit for bit; torch's `equal` rejects fp8 and calls NaN
    unequal to itself."""
    import torch

    return one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))


def _places(codes: Tensor) -> Tensor:
    """Return codes as int16 whose neighbours differ by one; fp8 in the order of its values."""
    import torch

    if not codes.dtype.is_floating_point:
        return codes.short()
    bits = codes.contiguous().view(torch.uint8).short()
    return torch.where(bits < 128, bits, 128 - bits).masked_fill(codes.isnan(), 0)


def _specials(codes: Tensor) -> Tensor:
    """Return codes as float32, with zeros for finite values."""
    import torch

    wide = codes.float()
    return torch.where(torch.isfinite(wide), torch.zeros_like(wide), wide)


def _bits(tensor: Tensor) -> Tensor:
    import torch

    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(same_size[tensor.element_size()])


def _same_specials(got: Tensor, own: Tensor) -> bool:
    import torch

    both_nan = got.isnan() & own.isnan()
    return bool(torch.all(both_nan | (got == own)))
