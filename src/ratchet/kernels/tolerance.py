"""How far a kernel's output may lie from the float64 oracle. Imports torch lazily."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SEQUENTIAL: Final = 1.5
"""What one accumulator may lose over n additions, in eps sqrt(n) of the output's scale.

3 sqrt(n) units of rounding u = eps / 2: rounding errors are nearly independent, so they grow with
the root (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, A2815; lambda = 3). Measured on a million
sums of 16 to 4096 values (normal, exponential, uniform, squares, products): 0.12 in the root mean
square, at most 0.77 in 99.99 % and 0.95 in all; a running sum of normal values reaches 1.25.
"""
MOST_TERMS: Final = 4096
"""Longer sums are allowed no more: a loss over millions of elements would have few digits left.
Measured sums of 16,384 such terms pass all the same; one accumulator for many more is wrong."""
MOST_AMPLIFIED: Final = 512.0
"""How many times more may be lost where a function is ill-conditioned. Keys that lie 8 off 0 carry
an error of theirs 1000 times further to an attention's gradient. float32 sums are still held to
0.6 % of the scale in norm, and inputs of fewer bits are carried as far: TF32's lie 25 times
outside."""
WELL_CONDITIONED: Final = 2.0
"""A function that changes by this share of its inputs' change is (a product)."""
UNKNOWN_LOSS: Final = (0.5, 16.0)
"""Where the condition is not known, the reference's own loss over this many eps stands for it, up
to this many times."""
STAGNANT: Final = (6.0, 128.0)
LEAST_OFF: Final = 2
"""Codes that may always be off where a problem allows any."""
LANES: Final = 16.0
"""Where a reference's own sums lose so many eps of float32 in the root mean square, small terms
vanish beside a large one; a loop without torch's 8 or 16 lanes loses up to that many times more.
Measured on softmax of squares: 13. What loses more than 128 eps does not compute in float32."""
ALONE: Final = math.sqrt(LANES)
"""Roundings that are independent grow with the root: one element may lose 4 times as much, and so
it may where a formula of its own cancels. Measured against 3 times the reference's loss: 1.5 on
softmax's gradient of heavy-tailed rows, 1.4 on tanh-GELU's by way of s (1 - s). And where the norm
is under a quarter of its bound, an element may lie 4 times outside of its own: attention's gradient
of heavy-tailed values by way of the log of each row's sum, as flash attention has it, was at 1.2
with a norm at 0.05 to 0.18, and inputs of TF32's bits are in the norm too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputCheck:
    """What one output's comparison said; errors are in units of what is allowed (1.0 passes)."""

    passed: bool
    element_ratio: float
    norm_ratio: float
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What the reference in its own dtype loses over many draws, in units of its output's scale.

    The scale is the root mean square of an output; one draw of a few elements says little.
    """

    largest: float = 0.0
    typical: float = 0.0
    """The root mean square."""
    terms: float = 1.0
    """Elements of an input that an element of the output depends on."""
    condition: float = 1.0
    """By how much a small change of the inputs is amplified."""
    single: float = 1.0
    """And in the element that moves furthest, if that is more."""

    def sequential(self, eps: float, lost: float, *, single: bool = False) -> float:
        """What a plain sum in one accumulator over the terms may lose, in the same units.

        torch adds up pairwise and in lanes, and loses almost nothing; a textbook's loop is right
        too. So is one that carries its roundings as far as the function carries its inputs': the
        reference's own formula may happen to carry them less far, as the log of a sum that is kept
        loses eps times itself and a largest value that is taken off first does not. Without a
        condition it is `lost` that counts, in the root mean square. `single` is for one element: of
        heavy-tailed values one carries errors further than the output as a whole.
        """
        if math.isfinite(self.condition):
            condition = max(self.condition, self.single) if single else self.condition
            amplified = min(condition / WELL_CONDITIONED, MOST_AMPLIFIED)
        else:
            well, most = UNKNOWN_LOSS
            amplified = min(lost / (well * eps), most)
        additions = max(0.0, min(self.terms, MOST_TERMS) - 1.0)
        return SEQUENTIAL * eps * math.sqrt(additions) * max(1.0, amplified)


NO_LOSS = Loss()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """The bound, per element and in norm.

    It is the largest of `reference_factor` times what the reference in its own dtype loses
    against float64, `ulps` units in the last place of the output dtype at the output's scale, and
    what a plain sum in float32 (in float64 for outputs of float64) may lose.
    """

    exact: bool = False
    """A pure copy: every bit must agree."""
    reference_factor: float = 3.0
    ulps: float = 2.0
    code_slack: int = 0
    """Whole numbers and fp8 are codes, and equal the reference's. Where codes of a byte are rounded
    from reals the neighbour is right too when a value lies half-way: 1 allows that, for a few."""
    code_share: float = 1e-3
    """The share of an output's codes that may be off (two where that is fewer). Multiplying where
    the reference divides moves 1.4e-6 of int8 codes of normal float32 values; of bfloat16 values,
    of which many lie exactly half-way, 6e-4 (e4m3: 9e-4), 3.3e-2 at the least lucky scale."""

    def check(self, got: Tensor, own: Tensor, oracle: Tensor, usual: Loss = NO_LOSS) -> OutputCheck:
        """Compare one output: `own` is the reference in its own dtype, `oracle` in float64.

        `usual` is what the reference loses over other draws, where that is known.
        """
        import torch

        if got.shape != own.shape or got.dtype != own.dtype:
            return _failed(
                f"shape {tuple(got.shape)} {got.dtype}, wanted {tuple(own.shape)} {own.dtype}"
            )
        rounded = own.dtype.is_floating_point or own.dtype in (torch.int8, torch.uint8)
        if self.exact or not rounded:
            same = torch.equal(_bits(got), _bits(own))
            return _exactly(same)
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
        """Compare every output in order; `usual` has one loss for each."""
        losses = usual if usual is not None else [NO_LOSS] * len(got)
        return [self.check(*four) for four in zip(got, own, oracle, losses, strict=True)]

    def _check_codes(self, got: Tensor, own: Tensor, oracle: Tensor) -> OutputCheck:
        """Codes are right where they are the reference's or, with a slack, its float64 ones."""
        if not own.numel():
            return OutputCheck(passed=True, element_ratio=0.0, norm_ratio=0.0, detail="empty")
        if not _same_specials(_specials(got), _specials(own)):
            return _failed("inf or NaN where the reference has another value, or the reverse")
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

        finite = torch.isfinite(own) & torch.isfinite(oracle)
        if not _same_specials(got[~finite], own[~finite]):
            return _failed("inf or NaN where the reference has another value, or the reverse")
        exact = oracle[finite].to(torch.float64)
        error = (got[finite].to(torch.float64) - exact).abs()
        lost = (own[finite].to(torch.float64) - exact).abs()
        if exact.numel() == 0:
            return OutputCheck(passed=True, element_ratio=0.0, norm_ratio=0.0, detail="empty")
        if not bool(torch.isfinite(error).all()):
            return _failed("inf or NaN where the reference is finite")
        return self._ratios(error, lost, exact, torch.finfo(own.dtype), usual)

    def _ratios(
        self, error: Tensor, lost: Tensor, exact: Tensor, info: object, usual: Loss
    ) -> OutputCheck:
        import torch

        eps, floor = float(info.eps), float(info.tiny)  # type: ignore[attr-defined]
        scale = float(exact.square().mean().sqrt())
        # Sums of half precision are added up in float32: of its own units 2 are far more.
        adder = min(eps, float(torch.finfo(torch.float32).eps))
        here = max(usual.typical, float(lost.square().mean().sqrt()) / scale if scale else 0.0)
        ulp = max(self.ulps * eps, usual.sequential(adder, here))
        single = max(ulp, usual.sequential(adder, here, single=True))
        size = exact.abs().clamp(min=scale)
        low, high = STAGNANT
        stagnant = usual.terms > 1 and low * adder < here < high * adder
        factor = max(self.reference_factor, LANES) if stagnant else self.reference_factor
        # One element may be where terms of a formula cancel; the norm still says what is usual.
        alone = here < high * adder
        widest = max(factor, self.reference_factor * ALONE) if alone else factor
        allowed = (size * single + floor).clamp(
            min=widest * max(float(lost.max()), usual.largest * scale)
        )
        element = float((error / allowed).max())
        # The norm of few elements varies: three standard deviations of it are allowed on top.
        usual_norm = usual.typical * scale * (exact.numel() ** 0.5 + 3.0)
        allowed_norm = max(
            factor * max(float(lost.norm()), usual_norm),
            ulp * float(exact.norm()) + floor * exact.numel() ** 0.5,
        )
        norm = float(error.norm()) / allowed_norm
        if alone and norm <= 1 / ALONE:
            element /= ALONE
        return OutputCheck(
            passed=element <= 1.0 and norm <= 1.0,
            element_ratio=element,
            norm_ratio=norm,
            detail=f"largest error {float(error.max()):.3g}, {element:.2f} of what is allowed; "
            f"in norm {norm:.2f}",
        )


def loss_over(draws: Sequence[tuple[Tensor, Tensor]]) -> Loss:
    """What one output of the reference loses over draws of (its own dtype, float64)."""
    import torch

    parts = []
    for own, oracle in draws:
        if not coded(own.dtype):
            finite = torch.isfinite(own) & torch.isfinite(oracle)
            exact = oracle[finite].to(torch.float64)
            scale = exact.square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
            parts.append((own[finite].to(torch.float64) - exact).abs() / scale)
    lost = torch.cat(parts) if parts else torch.empty(0)
    if not lost.numel():
        return NO_LOSS
    return Loss(largest=float(lost.max()), typical=float(lost.square().mean().sqrt()))


def checked(passed: bool, detail: str) -> OutputCheck:
    """An answer of yes or no, for a problem's own check."""
    ratio = 0.0 if passed else float("inf")
    return OutputCheck(passed=passed, element_ratio=ratio, norm_ratio=ratio, detail=detail)


def _exactly(same: bool) -> OutputCheck:
    ratio = 0.0 if same else float("inf")
    detail = "equal bit for bit" if same else "differs where every bit must agree"
    return OutputCheck(passed=same, element_ratio=ratio, norm_ratio=ratio, detail=detail)


def _failed(detail: str) -> OutputCheck:
    infinite = float("inf")
    return OutputCheck(passed=False, element_ratio=infinite, norm_ratio=infinite, detail=detail)


def coded(dtype: torch.dtype) -> bool:
    """Whether values are compared as codes: whole numbers, bools and fp8."""
    return not dtype.is_floating_point or dtype.itemsize == 1


def same_form(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape and one dtype."""
    return one.shape == other.shape and one.dtype == other.dtype


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are alike, bit for bit; torch's own `equal` refuses fp8 and tells NaN
    from itself."""
    import torch

    return one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))


def _places(codes: Tensor) -> Tensor:
    """Codes as int16 of which neighbours differ by one; fp8 in the order of its values."""
    import torch

    if not codes.dtype.is_floating_point:
        return codes.short()
    bits = codes.contiguous().view(torch.uint8).short()
    return torch.where(bits < 128, bits, 128 - bits).masked_fill(codes.isnan(), 0)


def _specials(codes: Tensor) -> Tensor:
    """Codes as float32, with zeros for what is finite."""
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
