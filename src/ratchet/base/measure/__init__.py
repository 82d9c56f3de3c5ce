"""Paired timing: launches, rounds, looks and intervals; samples in, answers out.

Here: the protocol of an arm, which runs iterations and reports their time, and the samples that
come of it. `rounds` runs arms against each other, `contest` plans and compares, `estimate` and
`metrics` answer, and `sitting` pools what one sitting timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ratchet.base import Json
from ratchet.base.errors import MeasureError


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


FloatArray = NDArray[np.float64]
Values = Mapping[tuple[int, int], float]
"""One arm's values, by (launch, round)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The time of one iteration (the batch's total over its iterations), in seconds."""

    arm: str
    launch: int
    """Number of the process start: 0, 1, ..."""
    round: int
    position: int
    """Place of this arm within its round: 0 ran first."""
    iterations: int
    wall_time_s: float
    cpu_time_s: float

    def as_json(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in self.__slots__}


def checked(sample: Sample) -> Sample:
    """Return the sample; MeasureError if its wall time is not a positive number."""
    if not (math.isfinite(sample.wall_time_s) and sample.wall_time_s > 0):
        raise MeasureError(
            f"arm {sample.arm!r} reported {sample.wall_time_s} s in launch {sample.launch}, "
            f"round {sample.round}: a time must be finite and above 0; run more iterations a round"
        )
    return sample


def of_arm(samples: Iterable[Sample], arm: str) -> list[Sample]:
    """Return one arm's samples by launch and round; MeasureError if there are none."""
    own = sorted(
        (checked(s) for s in samples if s.arm == arm), key=lambda s: (s.launch, s.round, s.position)
    )
    if not own:
        raise MeasureError(f"no samples of arm {arm!r}: time it in at least one round")
    return own


def log_ratios(
    samples: Iterable[Sample], *, baseline: str, new: str, twin: str | None = None
) -> list[FloatArray]:
    """Return log(baseline time / new time) of each adjacent pair, one array per launch.

    A pair is the arms' samples of the same launch and round; a round that lacks one is left out.
    `twin` is a second copy of the baseline (`paired_logs`). The order of `samples` does not matter.
    MeasureError if an arm appears twice in a round.
    """
    materialised, copies = list(samples), [baseline, *([] if twin is None else [twin])]
    first = [_by_round(of_arm(materialised, arm)) for arm in copies]
    return paired_logs(first, _by_round(of_arm(materialised, new)))


def paired_logs(copies: Sequence[Values], new: Values) -> list[FloatArray]:
    """Return log(baseline / new) of the pairs of each launch, of values above 0.

    Of several copies of the baseline, their geometric mean counts: with two, a ratio's variance is
    three quarters of that with one. A round without the first copy or the new side is left out.
    """
    launches: dict[int, list[float]] = {}
    for key in sorted(new.keys() & copies[0].keys()) if copies else ():
        logs = [math.log(one[key]) for one in copies if key in one]
        launches.setdefault(key[0], []).append(math.fsum(logs) / len(logs) - math.log(new[key]))
    return [np.asarray(values) for values in launches.values()]


def _by_round(samples: Iterable[Sample]) -> dict[tuple[int, int], float]:
    times: dict[tuple[int, int], float] = {}
    for sample in samples:
        key = (sample.launch, sample.round)
        if key in times:
            raise MeasureError(
                f"arm {sample.arm!r} appears twice in launch {key[0]}, round {key[1]}: "
                "give every arm of a run its own name"
            )
        times[key] = sample.wall_time_s
    return times
