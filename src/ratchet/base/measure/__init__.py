"""Paired timing: launches, rounds, looks and intervals; samples in, ratios out.

Here: an arm, which runs iterations and reports their time; the samples that come of it; and a
`Ratio`, the one form of a measured answer. `rounds` runs arms against each other, `contest` plans
and compares, `estimate` and `metrics` answer, and `sitting` pools what one sitting timed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from ratchet.base.errors import MeasureError
from ratchet.base.show.words import show_interval, tells

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FloatArray: TypeAlias = "NDArray[np.float64]"
Values = Mapping[tuple[int, int], float]  # One arm's values, by (launch, round)
Answer = Literal["faster", "slower", "equivalent", "undecided"]

WIDEST = 1.1
"""An interval that reaches further than this factor from its middle, or an A/A floor that reaches
further from 1, is too wide to tell anything. `equivalent` needs an interval between 1 / WIDEST and
WIDEST: most of what Ratchet keeps wins 3 to 50 %, and floors on shared machines that work as they
should reach 1.01 to 1.1, so a narrower width would refuse most answers there, and a wider one would
call a gain of a tenth no difference."""
_WIDE = 2 * math.log(WIDEST) * (1 + 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Time of a whole batch of iterations, in seconds."""

    wall_time_s: float
    cpu_time_s: float


class ArmLeft(Exception):
    """Raised by an arm that takes part in no further round."""


class Arm(Protocol):
    """One side of a comparison, warm and ready to run."""

    @property
    def name(self) -> str: ...

    def run(self, iterations: int) -> Timing:
        """Run `iterations` iterations and return their total time."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The time of one iteration (the batch's total over its iterations), in seconds."""

    arm: str
    launch: int  # Number of the process start: 0, 1, ...
    round: int
    position: int  # Place of this arm within its round: 0 ran first
    iterations: int
    wall_time_s: float
    cpu_time_s: float


def checked(sample: Sample) -> Sample:
    """Return the sample; MeasureError if its wall time is not a positive number."""
    if not (math.isfinite(sample.wall_time_s) and sample.wall_time_s > 0):
        raise MeasureError(
            f"arm {sample.arm!r} reported {sample.wall_time_s} s in launch {sample.launch}, "
            f"round {sample.round}: a time must be finite and above 0; run more iterations a round"
        )
    return sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """Range of ratios between two copies of one arm (A/A), symmetric about 1 in the logarithm."""

    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, low: float, high: float, pairs: int) -> Floor:
        """Return the floor that the interval of two copies' ratio gives: its far end, both ways."""
        reach = max(high, 1 / low)
        return cls(low=1 / reach, high=reach, pairs=pairs)

    @property
    def words(self) -> str:
        digits = ".2g" if self.high > 100 else ".2f"
        return f"{self.low:{digits}} to {self.high:{digits}}"

    def contains(self, low: float, high: float) -> bool:
        return self.low <= low and high <= self.high


class Ratio(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Baseline over new, of times or of what else is better if it is less: above 1 is better.

    Every result that compares two sides holds this type. One with several ratios has a field for
    each. One whose document has the keys `ratio`, `low` and `high` beside its own extends it
    (`metrics.MetricAnswer`). What was not measured is None, not a ratio of zeros. Documents omit
    what is at its default, so a `Ratio` of four fields is a document of four keys.
    """

    ratio: float
    low: float
    high: float
    answer: Answer | None = None
    """None if nothing was decided by it: a screening, or a mean of several."""
    confidence: float | None = None  # Level of the interval from `low` to `high`
    floor: Floor | None = None  # The A/A floor, where it is known
    pairs: int = 0
    launches: int = 0
    """With 1, the interval ignores how much one start of the processes differs from the next: it
    holds for that launch alone."""
    why: str = ""  # The cause of an `undecided` answer; empty for every other

    @property
    def noise(self) -> str:
        """Return what shows that noise kept an answer from being found, or an empty text."""
        return noise_of(self.low, self.high, self.floor) if self.answer == "undecided" else ""


def answer_of(ratio: float, low: float, high: float, floor: Floor | None) -> Answer:
    """Return the answer that an interval gives against the A/A floor."""
    if floor is not None and floor.contains(low, high):
        return "equivalent" if max(high, 1 / low) <= WIDEST else "undecided"
    if floor is not None and floor.contains(ratio, ratio):
        return "undecided"
    if low > 1:
        return "faster"
    if high < 1:
        return "slower"
    return "undecided"


def noise_of(low: float, high: float, floor: Floor | None) -> str:
    """Return what shows that a sitting was too noisy for an answer, or an empty text.

    An undecided answer says nothing about the arms then, and another sitting may decide.
    """
    width = math.log(high) - math.log(max(low, 1e-300))
    shown = [f"interval {span(low, high)}"] if width > _WIDE else []
    if floor is not None and (shown or floor.high > WIDEST):
        shown.append(f"A/A {floor.words}")
    return f"the machine was too noisy ({', '.join(shown)})" if shown else ""


def why_undecided(ratio: float, low: float, high: float, floor: Floor | None) -> str:
    """Return the cause of an undecided answer, from the interval and the floor that gave it."""
    noise = noise_of(low, high, floor)
    if noise:
        return noise
    if floor is not None and floor.contains(ratio, ratio):
        return f"the difference is within the noise (A/A {floor.words})"
    return f"the interval holds 1 ({span(low, high)})"


def span(low: float, high: float) -> str:
    """Return an interval of ratios in words; the ends of one that tells nothing are not shown."""
    return show_interval(low, high) if tells(low, high) else "unknown, too few samples"
