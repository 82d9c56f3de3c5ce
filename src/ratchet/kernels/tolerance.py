"""How far a kernel's output may lie from the float64 oracle. Imports torch lazily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputCheck:
    """What one output's comparison said; errors are in units of what is allowed (1.0 passes)."""

    passed: bool
    element_ratio: float
    norm_ratio: float
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """The bound, per element and in norm.

    It is the larger of `reference_factor` times what the reference in its own dtype loses
    against float64, and `ulps` units in the last place of the output dtype at the output's scale.
    """

    exact: bool = False
    """A pure copy: every bit must agree."""
    reference_factor: float = 3.0
    ulps: float = 2.0

    def check(self, got: Tensor, own: Tensor, oracle: Tensor) -> OutputCheck:
        """Compare one output: `own` is the reference in its own dtype, `oracle` in float64."""
        import torch

        if got.shape != own.shape or got.dtype != own.dtype:
            return _failed(
                f"shape {tuple(got.shape)} {got.dtype}, wanted {tuple(own.shape)} {own.dtype}"
            )
        if self.exact or not own.dtype.is_floating_point:
            same = torch.equal(_bits(got), _bits(own))
            return _exactly(same)
        return self._check_floats(got, own, oracle)

    def check_all(
        self, got: Sequence[Tensor], own: Sequence[Tensor], oracle: Sequence[Tensor]
    ) -> list[OutputCheck]:
        """Compare every output in order."""
        return [self.check(*three) for three in zip(got, own, oracle, strict=True)]

    def _check_floats(self, got: Tensor, own: Tensor, oracle: Tensor) -> OutputCheck:
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
        return self._ratios(error, lost, exact, torch.finfo(own.dtype))

    def _ratios(self, error: Tensor, lost: Tensor, exact: Tensor, info: object) -> OutputCheck:
        ulp = self.ulps * float(info.eps)  # type: ignore[attr-defined]
        floor = float(info.tiny)  # type: ignore[attr-defined]
        scale = float(exact.square().mean().sqrt())
        allowed = (exact.abs().clamp(min=scale) * ulp + floor).clamp(
            min=self.reference_factor * float(lost.max())
        )
        element = float((error / allowed).max())
        allowed_norm = max(
            self.reference_factor * float(lost.norm()),
            ulp * float(exact.norm()) + floor * exact.numel() ** 0.5,
        )
        norm = float(error.norm()) / allowed_norm
        return OutputCheck(
            passed=element <= 1.0 and norm <= 1.0,
            element_ratio=element,
            norm_ratio=norm,
            detail=f"largest error {float(error.max()):.3g}, {element:.2f} of what is allowed; "
            f"in norm {norm:.2f}",
        )


def _exactly(same: bool) -> OutputCheck:
    ratio = 0.0 if same else float("inf")
    detail = "equal bit for bit" if same else "differs where every bit must agree"
    return OutputCheck(passed=same, element_ratio=ratio, norm_ratio=ratio, detail=detail)


def _failed(detail: str) -> OutputCheck:
    infinite = float("inf")
    return OutputCheck(passed=False, element_ratio=infinite, norm_ratio=infinite, detail=detail)


def _bits(tensor: Tensor) -> Tensor:
    import torch

    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(same_size[tensor.element_size()])


def _same_specials(got: Tensor, own: Tensor) -> bool:
    import torch

    both_nan = got.isnan() & own.isnan()
    return bool(torch.all(both_nan | (got == own)))
