"""Findings of a comparison of numerics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

Part = Literal["weights", "forward", "backward", "parameters", "losses", "not_finite"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DivergentOp:
    """The first op inside a module that computes something else."""

    op: str
    index: int
    """Its place among the module's ops."""
    expected: str
    """The baseline's op at this place; empty if the baseline has no more ops."""
    error: float | None
    """Relative to the baseline's output; None where the two ops are not the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NonFiniteOp:
    """The first op that made a NaN, or an infinity out of finite numbers."""

    side: str
    op: str
    kind: str
    module: str
    part: str
    step: int
    inputs: tuple[str, ...]
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """The first place where a side leaves what its dtype explains."""

    side: str
    """`A` or `B`."""
    part: Part
    module: str
    """Name in the model; a parameter's or a step's where the part says so."""
    kind: str
    """Class of the module."""
    error: float
    """Relative to the reference, in norm."""
    allowed_error: float
    baseline_error: float
    """The error of the same dtype without the change."""
    scale: float
    """Projection on the reference, minus one."""
    detail: str
    op: DivergentOp | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NumericsReport:
    """The answer: no divergence, or the first."""

    titles: tuple[str, str]
    divergence: Divergence | None
    not_finite: NonFiniteOp | None
    oracle: str
    """`fp64`, or `fp32` where the model cannot run in fp64."""
    compared: int
    """Number of tensors that were compared."""
    losses: tuple[tuple[float, ...], tuple[float, ...]]
    """Loss of each step, of A and B."""
    largest: tuple[tuple[str, float], ...] = ()
    """Modules at which B's own error grows most, and by how much."""
    warnings: tuple[str, ...] = ()
    folder: str = ""
    """Where the script that reproduces it lies; empty if there is none."""
    reproduces: bool | None = None
    """True if the script was seen to reproduce it."""
    turn: str = ""
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return 1 if self.divergence is not None or self.not_finite is not None else 0

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "exit_code": self.exit_code}
