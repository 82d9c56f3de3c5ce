"""Every pair that one sitting timed, pooled: what a ratio is, and how far processes differ.

A process keeps the luck of its start: the layout of its memory, the pages that it got. So two
processes of one way of running differ, and two launches say little about by how much. Here the
scatter is pooled over all ways that were timed: a process p of way w in launch l runs at

    y_p = launch_l + way_w + start_p,        start_p ~ N(0, scatter)

in logarithms of time, and ordinary least squares gives the ways, the scatter and its degrees of
freedom (Searle, "Linear Models", 1971, chapter 5). Two processes of one way add a degree of freedom
in every launch. The pairs of a round fix y_p but for a constant of the launch. Processes that were
timed beside a common one belong to one launch, whenever that was.

A claim needs `DECIDES` at each look. With it, 2,500 simulated sittings of equal ways whose starts
differ by 20 % gave a false proof in at most 1 of 100, looked at after each of up to five launches
(tests/base/measure/test_sitting.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from ratchet.base.errors import MeasureError
from ratchet.base.measure import Answer, FloatArray, Floor, Ratio, Sample, answer_of
from ratchet.base.measure.estimate import finite_exp, log_ratios, t_quantile

DECIDES: Final = 0.993
"""Confidence of the interval that must exclude 1 for `faster` or `slower`; looks are several."""
SHOWN: Final = 0.95  # Confidence of the interval that is reported
FEWEST_LAUNCHES: Final = 2
"""One launch cannot tell a way from the luck of its start, whatever is known of the machine."""
LEAST_REACH: Final = 1.01
"""The floor reaches at least so far: a gain under 1 % is none, however still the machine was."""
MOST_PRIOR: Final = 0.5
"""Degrees of freedom that earlier sittings on this machine count for at most.

With 4, quiet ones (starts 3 % apart) made 2.3 % false proofs in a noisy one (20 %); so 1.0 %.
"""
OF_A_MEDIAN: Final = math.pi / 2  # Variance of a median over that of a mean, for many normal values
OF_A_RANGE: Final = 1.349  # Interquartile range of a normal distribution, in standard deviations


@dataclass(frozen=True, kw_only=True, slots=True)
class StartScatter:
    """The scatter of processes of one way, in logarithms of time."""

    variance: float
    freedom: float

    def with_prior(self, prior: StartScatter | None) -> StartScatter:
        """Add what earlier sittings know. It never makes the variance less than this one's own.

        It counts for less if this sitting is noisier than those were.
        """
        if prior is None or prior.freedom <= 0:
            return self
        alike = min(1.0, prior.variance / self.variance) if self.variance > 0 else 1.0
        known = alike * min(prior.freedom, MOST_PRIOR)
        freedom = self.freedom + known
        pooled = (self.variance * self.freedom + prior.variance * known) / freedom
        return StartScatter(variance=max(self.variance, pooled), freedom=freedom)

    def half_width(self, share: float, confidence: float) -> float:
        """Return the half width of an interval whose variance is `share` of the scatter's."""
        if self.freedom <= 0:
            return math.inf
        quantile = t_quantile(self.freedom, (1 + confidence) / 2)
        return quantile * math.sqrt(self.variance * share)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedTogether:
    """Rounds in which these processes ran one right after another."""

    samples: tuple[Sample, ...]
    processes: Mapping[str, str]  # A name of its own for each process, by the name of its arm
    ways: Mapping[str, str]  # The way that each process runs, by the name of its arm


@dataclass(frozen=True, kw_only=True, slots=True)
class _Edge:
    """The median log-ratio of two processes, and its standard error by the pairs' scatter."""

    first: str
    second: str
    difference: float
    error: float
    pairs: int


class Sitting:
    """The times of any number of launches; it answers about any two ways."""

    def __init__(
        self, timed: Iterable[TimedTogether] = (), prior: StartScatter | None = None
    ) -> None:
        self.timed: list[TimedTogether] = []
        self.prior = prior
        self._edges: list[_Edge] = []
        self._way_of: dict[str, str] = {}
        self._fit: _Fit | None = None
        for one in timed:
            self.add(one)

    def add(self, timed: TimedTogether) -> None:
        self.timed.append(timed)
        self._edges += _edges_of(timed)
        self._way_of |= {process: timed.ways[arm] for arm, process in timed.processes.items()}
        self._fit = None

    def launches_of(self, *ways: str) -> int:
        """Return the number of launches that timed all of these ways."""
        found = defaultdict(set)
        for process, launch in self._fitted().launch_of.items():
            found[launch].add(self._way_of[process])
        return sum(set(ways) <= here for here in found.values())

    def starts_of(self, *ways: str) -> int:
        """Return the number of launches that timed the least often timed of these ways."""
        return min(self.launches_of(way) for way in ways)

    def scatter(self) -> StartScatter:
        """Return how far processes of one way differed, without what was known before."""
        return self._fitted().scatter

    def _fitted(self) -> _Fit:
        """Return the fit of all rounds so far."""
        if self._fit is None:
            self._fit = _fitted(self._edges, self._way_of)
        return self._fit

    def compare(self, baseline: str, new: str) -> Ratio:
        """Compare two ways: `ratio` is the baseline's time over the new one's.

        A decided answer needs two starts of each way, not always in the same launches. Raises
        MeasureError if no chain of pairs joins them.
        """
        fit = self._fitted()
        difference, share = fit.contrast(baseline, new)
        scatter = fit.scatter.with_prior(self.prior)
        launches = self.launches_of(baseline, new)
        reach = max(LEAST_REACH, finite_exp(scatter.half_width(2 / max(1, launches), SHOWN)))
        floor = Floor(low=1 / reach, high=reach, pairs=self._pairs(baseline, new))
        shown, decides = (scatter.half_width(share, level) for level in (SHOWN, DECIDES))
        ratio, low, high = map(finite_exp, (difference, difference - shown, difference + shown))
        answer: Answer = "undecided"
        if self.starts_of(baseline, new) >= FEWEST_LAUNCHES:
            least, most = finite_exp(difference - decides), finite_exp(difference + decides)
            same = floor.contains(low, high)
            answer = answer_of(ratio, *((low, high) if same else (least, most)), floor)
        return Ratio(
            ratio=ratio,
            low=low,
            high=high,
            answer=answer,
            pairs=floor.pairs,
            launches=launches,
            confidence=SHOWN,
            floor=floor,
        )

    def _pairs(self, first: str, second: str) -> int:
        wanted, ways = {first, second}, self._way_of
        return sum(
            one.pairs for one in self._edges if {ways[one.first], ways[one.second]} == wanted
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """Least squares of the processes' levels on launches and ways."""

    launch_of: Mapping[str, str]  # Each process's launch
    ways: Sequence[str]
    levels: FloatArray  # Levels of the ways, in logarithms of time
    covariance: FloatArray  # Covariance of the ways' levels, in units of the scatter
    scatter: StartScatter
    joined: Mapping[str, str]  # Ways with the same value are joined by a chain of pairs

    def contrast(self, baseline: str, new: str) -> tuple[float, float]:
        """Return log(baseline / new), and its variance in units of the scatter."""
        if baseline not in self.ways or new not in self.ways:
            missing = baseline if baseline not in self.ways else new
            raise MeasureError(f"{missing!r} was not timed: time it in at least one round")
        if self.joined[baseline] != self.joined[new]:
            raise MeasureError(f"{baseline!r} and {new!r} were never timed beside a common way")
        first, second = self.ways.index(baseline), self.ways.index(new)
        share = self.covariance[first, first] + self.covariance[second, second]
        share -= 2 * self.covariance[first, second]
        return float(self.levels[first] - self.levels[second]), max(0.0, float(share))


def _fitted(edges: Sequence[_Edge], way_of: Mapping[str, str]) -> _Fit:
    # A launch is named after one of its processes.
    launch_of = _components((edge.first, edge.second) for edge in edges)
    processes, launches = list(launch_of), sorted(set(launch_of.values()))
    ways = sorted({way_of[process] for process in processes})
    levels = _levels(edges, processes)
    design = np.zeros((len(processes), len(launches) + len(ways)))
    for row, process in enumerate(processes):
        design[row, launches.index(launch_of[process])] = 1.0
        design[row, len(launches) + ways.index(way_of[process])] = 1.0
    inverse = np.linalg.pinv(design.T @ design)
    fitted = inverse @ design.T @ levels
    rest = levels - design @ fitted
    freedom = len(processes) - int(np.linalg.matrix_rank(design)) if processes else 0
    within = float(np.mean([edge.error**2 / 2 for edge in edges])) if edges else 0.0
    variance = max(float(rest @ rest) / freedom, within) if freedom else within
    own = slice(len(launches), None)
    return _Fit(
        launch_of=launch_of,
        ways=ways,
        levels=fitted[own],
        covariance=np.asarray(inverse[own, own], dtype=np.float64),
        scatter=StartScatter(variance=variance, freedom=float(freedom)),
        joined=_joined(launch_of, way_of),
    )


def _edges_of(timed: TimedTogether) -> Iterator[_Edge]:
    for first, second in combinations(timed.processes, 2):
        launches = log_ratios(timed.samples, baseline=first, new=second)
        values = np.concatenate(launches) if launches else np.empty(0)
        if len(values):
            low, high = np.quantile(values, (0.25, 0.75))
            spread = float(high - low) / OF_A_RANGE
            yield _Edge(
                first=timed.processes[first],
                second=timed.processes[second],
                difference=float(np.median(values)),
                error=spread * math.sqrt(OF_A_MEDIAN / len(values)),
                pairs=len(values),
            )


def _joined(launch_of: Mapping[str, str], way_of: Mapping[str, str]) -> dict[str, str]:
    """Return by way what it has in common with all ways that a chain of pairs joins it to."""
    found = _components(
        (f"launch {launch}", f"way {way_of[process]}") for process, launch in launch_of.items()
    )
    return {way: found[f"way {way}"] for way in set(way_of.values()) if f"way {way}" in found}


def _components(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a representative of each node's connected component."""
    above: dict[str, str] = {}

    def top(node: str) -> str:
        above.setdefault(node, node)
        while above[node] != node:
            node = above[node]
        return node

    for first, second in pairs:
        above[top(second)] = top(first)
    return {node: top(node) for node in list(above)}


def _levels(edges: Sequence[_Edge], processes: Sequence[str]) -> FloatArray:
    """Return each process's log time, up to a constant of its launch."""
    place = {process: index for index, process in enumerate(processes)}
    rows = np.zeros((len(edges), len(processes)))
    for row, edge in enumerate(edges):
        rows[row, place[edge.first]], rows[row, place[edge.second]] = 1.0, -1.0
    differences = np.asarray([edge.difference for edge in edges])
    return np.linalg.pinv(rows) @ differences if edges else np.zeros(0)
