"""Answers from paired readings: faster, slower, equivalent or undecided, for each metric.

A ratio is always baseline over new where less is better, and new over baseline where more is
better: above 1, the new side is the better one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ratchet.base.errors import MeasureError
from ratchet.base.measure import (
    Answer,
    FloatArray,
    Floor,
    Ratio,
    Values,
    answer_of,
    noise_of,
    why_undecided,
)
from ratchet.base.measure.estimate import finite_exp, interval, paired_logs, ratio_of

BASELINE, NEW, TWIN = "a", "b", "twin"
"""The arms of a comparison; the twin is a second copy of the baseline."""
FLOOR_CONFIDENCE = 0.95
RESAMPLES = 1000
FINE = 1.01  # A floor within this needs no more pairs to call two sides equivalent
TOO_MANY_PAIRS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One measured quantity."""

    name: str
    unit: str = ""
    higher_is_better: bool = False
    decides: bool = False  # Metrics that do not decide are reported beside those that do


TIME = Metric(name="time", unit="s", decides=True)
CPU_TIME = Metric(name="cpu_time", unit="s")
PEAK_MEMORY = Metric(name="peak_memory", unit="bytes")


@dataclass(slots=True)
class Readings:
    """Raw values by metric, arm, and (launch, round)."""

    values: dict[str, dict[str, dict[tuple[int, int], float]]] = field(default_factory=dict)

    def add(self, metric: str, arm: str, launch: int, round_: int, value: float) -> None:
        self.values.setdefault(metric, {}).setdefault(arm, {})[launch, round_] = value

    def of(self, metric: str, arm: str) -> Values:
        return self.values.get(metric, {}).get(arm, {})

    def median(self, metric: str, arm: str) -> float:
        return float(np.median(list(self.of(metric, arm).values())))

    def log_ratios(self, metric: str, baselines: Sequence[str], new: str) -> list[FloatArray]:
        """Return log(baseline / new) of the pairs of each launch (`paired_logs`).

        MeasureError for a value of 0 or less.
        """
        copies = [self.of(metric, one) for one in baselines if self.of(metric, one)]
        second = self.of(metric, new)
        if (least := min((v for one in (*copies, second) for v in one.values()), default=1)) <= 0:
            raise MeasureError(
                f"metric {metric!r} was {least:g}: a ratio needs values above 0; print another "
                "metric, or add a constant"
            )
        return paired_logs(copies, second)

    def as_json(self) -> list[dict[str, object]]:
        return [
            {"metric": metric, "arm": arm, "launch": launch, "round": round_, "value": value}
            for metric, arms in self.values.items()
            for arm, values in arms.items()
            for (launch, round_), value in values.items()
        ]


class MetricAnswer(Ratio, frozen=True, kw_only=True, omit_defaults=False):
    """One metric's ratio and answer; `not_slower` is known even where the answer is undecided."""

    metric: Metric
    baseline: float  # Median
    new: float
    answer: Answer
    floor: Floor
    not_slower: bool  # The whole interval lies on the good side of the budget
    more_pairs: int | None
    """Further pairs that would about decide; None if decided, or if it can hardly be decided."""

    @property
    def settled(self) -> bool:
        """Return True if more pairs would hardly change the answer."""
        fine = self.answer == "equivalent" and self.floor.high <= FINE
        return self.answer in ("faster", "slower") or fine


def decide(
    readings: Readings, metric: Metric, *, allowed: float, confidence: float
) -> MetricAnswer | None:
    """Answer for one metric; None if there are no two pairs of it.

    `allowed` is the regression budget: 0.02 allows the new side to be 2 % slower.
    """
    launches = readings.log_ratios(metric.name, (BASELINE, TWIN), NEW)
    twins = readings.log_ratios(metric.name, (BASELINE,), TWIN)
    pairs = sum(len(one) for one in launches)
    if pairs < 2 or sum(len(one) for one in twins) < 2:
        return None
    sign = -1.0 if metric.higher_is_better else 1.0
    centre, half = interval([sign * one for one in launches], confidence, RESAMPLES)
    ratio, low, high = (finite_exp(centre + step) for step in (0.0, -half, half))
    _, low_aa, high_aa = ratio_of(twins, FLOOR_CONFIDENCE, RESAMPLES)
    floor = Floor.of(low_aa, high_aa, sum(len(one) for one in twins))
    limit = 1 / (1 + allowed)
    answer = _answer(ratio, low, high, floor, allowed)
    not_slower = answer in ("faster", "equivalent") or (allowed > 0 and low > limit)
    decided = answer == "slower" or not_slower
    return MetricAnswer(
        metric=metric,
        baseline=readings.median(metric.name, BASELINE),
        new=readings.median(metric.name, NEW),
        ratio=ratio,
        low=low,
        high=high,
        floor=floor,
        answer=answer,
        not_slower=not_slower,
        pairs=pairs,
        launches=len(launches),
        confidence=confidence,
        more_pairs=None if decided else _more_pairs(pairs, centre, half, floor, allowed),
        why=_why(ratio, low, high, floor, allowed) if answer == "undecided" else "",
    )


def decide_all(
    readings: Readings, metrics: Iterable[Metric], *, allowed: float, confidence: float
) -> list[MetricAnswer]:
    """Return the answers of the metrics that have pairs, those that decide first."""
    found = [decide(readings, one, allowed=allowed, confidence=confidence) for one in metrics]
    return sorted((one for one in found if one is not None), key=lambda one: not one.metric.decides)


def exit_code(answers: Sequence[MetricAnswer]) -> int:
    """Return 1 if a deciding metric is slower, 3 if one is undecided, else 0."""
    deciding = [one for one in answers if one.metric.decides]
    if any(one.answer == "slower" for one in deciding):
        return 1
    return 0 if deciding and all(one.not_slower for one in deciding) else 3


def _answer(ratio: float, low: float, high: float, floor: Floor, allowed: float) -> Answer:
    """Return the answer; with a budget, `slower` needs the whole interval to lie beyond it."""
    if allowed <= 0:
        return answer_of(ratio, low, high, floor)
    limit = 1 / (1 + allowed)
    if high < limit and not floor.contains(ratio, ratio):
        return "slower"
    if limit <= low and high <= 1 + allowed:
        return "equivalent" if low <= 1 else answer_of(ratio, low, high, floor)
    return "faster" if low > 1 and not floor.contains(ratio, ratio) else "undecided"


def _why(ratio: float, low: float, high: float, floor: Floor, allowed: float) -> str:
    """Return the cause of an undecided answer; with a budget, its edge takes the place of 1."""
    noise = noise_of(low, high, floor)
    limit = 1 / (1 + allowed)
    if not noise and allowed > 0 and low < limit <= high:
        return f"the interval holds the budget's edge ({low:.3f} to {high:.3f}, edge {limit:.3f})"
    return noise or why_undecided(ratio, low, high, floor)


def _more_pairs(pairs: int, centre: float, half: float, floor: Floor, allowed: float) -> int | None:
    distance = abs(centre + math.log1p(allowed)) if allowed > 0 else abs(centre)
    width = half if allowed > 0 else max(half, math.log(floor.high))
    return more_pairs(pairs, width, distance)


def more_pairs(pairs: int, half: float, distance: float) -> int | None:
    """Return the pairs still missing, as an interval shrinks with the root of their number.

    `half` is its half width, `distance` how far its centre is from the edge that it holds, both as
    logarithms. None if no number of pairs that anybody runs would do.
    """
    if distance <= 0:
        return None
    needed = pairs * (half / distance) ** 2
    return max(2, math.ceil(needed - pairs)) if needed < TOO_MANY_PAIRS else None
