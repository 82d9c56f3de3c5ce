"""Time each benchmark of a suite: head against base in pairs, or head against a history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ratchet.base.ledger.books import Better
from ratchet.base.measure import ArmLeft, Timing
from ratchet.base.measure.contest import confidence_of
from ratchet.base.measure.estimate import interval, noise_of, t_quantile
from ratchet.base.measure.rounds import run_rounds
from ratchet.guard.checkouts import Checkouts
from ratchet.guard.command import MeasuredCommand
from ratchet.guard.history.analysis import analyse_one
from ratchet.guard.history.series import HistorySeries
from ratchet.guard.watch.suite_file import WatchedCommand, WatchSuite

WatchAnswer = Literal["slower", "faster", "not slower", "undecided", "no baseline", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedResult:
    """One benchmark's answer."""

    name: str
    unit: str
    better: Better
    answer: WatchAnswer
    why: str
    base: float | None = None
    """Median of the base."""
    head: float | None = None
    worse: float | None = None
    """Loss of the head: 0.02 is 2 % slower, or 2 % less where higher is better."""
    low: float | None = None
    high: float | None = None
    runs: int = 0
    """Pairs, or runs of the head against a history."""
    time_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchReport:
    """The answers of a suite."""

    base: str
    """A revision, or the file of a history."""
    head: str
    margin: float
    """Share by which the head may be slower."""
    confidence: float
    """Level of each interval: 95 % for all of them together."""
    results: tuple[WatchedResult, ...]
    notes: tuple[str, ...]
    advisory: bool

    @property
    def red(self) -> bool:
        """Return whether the gate is closed."""
        bad = any(one.answer in ("slower", "failed") for one in self.results)
        return bad and not self.advisory

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "red": self.red}


LEAST_HISTORY = 5
"""Results of the newest level that a history needs to be a baseline."""
_LEAST_RUNS = 3
Values = Mapping[str, Sequence[float]]
"""Measured values by side."""
OnRun = Callable[[str, int], None]
"""Called with a benchmark's name and how many of its pairs or runs are done; with 0 as it begins.
Also with what is built, and 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchLimits:
    pairs: int | None = None
    """Instead of the suite's."""
    time_s: float = math.inf
    """After this no benchmark starts another pair; the answer does not depend on what was seen."""
    seed: int = 0


def pairs_of(one: WatchedCommand, suite: WatchSuite, pairs: int | None) -> int:
    """Return how many pairs or runs a benchmark has; `pairs` stands in for the suite's."""
    return pairs or one.pairs or suite.pairs


def confidence_for(suite: WatchSuite) -> float:
    """Return the confidence of each interval that makes 95 % for all of the suite."""
    return confidence_of(0.05, among=len(suite.benchmark))


def watch_pairs(
    suite: WatchSuite,
    checkouts: Checkouts,
    base: str,
    head: str,
    limits: WatchLimits,
    on_run: OnRun,
) -> list[WatchedResult]:
    """Time each benchmark at both commits, in pairs (`run_rounds`)."""
    places = {}
    for name, commit in (("base", base), ("head", head)):
        on_run(f"building the {name}", 0)
        places[name] = checkouts.get(commit)
    folders = {name: place.folder for name, place in places.items()}
    broken = {name: place.why for name, place in places.items() if place.why}

    def answer(one: WatchedCommand, values: Values, why: Mapping[str, str]) -> WatchedResult:
        if "base" not in why:
            return _compared(one, suite, values["base"], values["head"])
        value = float(np.median(values["head"]))
        return _without(one, "no baseline", f"the base cannot run it: {why['base']}", value)

    return _watched(suite, folders, broken, limits, on_run, answer)


def watch_history(
    suite: WatchSuite,
    folder: Path,
    history: Sequence[HistorySeries],
    device: str,
    limits: WatchLimits,
    on_run: OnRun,
) -> list[WatchedResult]:
    """Run each benchmark in a folder, and compare with the newest level of its history.

    Only results of the same machine are a baseline.
    """

    def answer(one: WatchedCommand, values: Values, why: Mapping[str, str]) -> WatchedResult:
        own = [series for series in history if series.benchmark == one.name]
        return _predicted(one, suite, own, device, values["head"])

    return _watched(suite, {"head": folder}, {}, limits, on_run, answer)


def _watched(
    suite: WatchSuite,
    folders: Mapping[str, Path],
    broken: Mapping[str, str],
    limits: WatchLimits,
    on_run: OnRun,
    answer: Callable[[WatchedCommand, Values, Mapping[str, str]], WatchedResult],
) -> list[WatchedResult]:
    """Run each benchmark in the folders, in pairs; answer unless the head cannot run it."""
    deadline = time.monotonic() + limits.time_s
    results = []
    for one in suite.benchmark:
        started_s = time.monotonic()
        on_run(one.name, 0)
        arms = {
            name: _SideArm(name, one.measured(), folder, broken.get(name, ""))
            for name, folder in folders.items()
        }

        def on_round(index: int, _: object, name: str = one.name) -> None:
            on_run(name, index + 1)

        def leave(index: int, _: object, arms: Mapping[str, _SideArm] = arms) -> list[str]:
            late = index >= _LEAST_RUNS and time.monotonic() > deadline
            return [name for name, arm in arms.items() if arm.why or arms["head"].why or late]

        run_rounds(
            list(arms.values()),
            rounds=pairs_of(one, suite, limits.pairs),
            launch=0,
            rng=np.random.default_rng([limits.seed, *one.name.encode()]),
            on_round=on_round,
            leave=leave,
            fewest_arms=1,
        )
        why = {name: arm.why for name, arm in arms.items() if arm.why}
        values = {name: arm.values for name, arm in arms.items()}
        failed = "head" in why
        found = _without(one, "failed", why["head"]) if failed else answer(one, values, why)
        results.append(replace(found, time_s=time.monotonic() - started_s))
    return results


class _SideArm:
    """A benchmark's command in one folder; it leaves the pairs once it fails."""

    def __init__(self, name: str, command: MeasuredCommand, folder: Path, why: str) -> None:
        self.name, self.why = name, why
        """`why` it cannot be run; empty if it can."""
        self._command, self._folder = command, folder
        self.values: list[float] = []

    def run(self, iterations: int) -> Timing:
        began_s = time.perf_counter()
        run = self._command.run(self._folder)
        if run.value is None:
            self.why = run.why
            raise ArmLeft
        self.values.append(run.value)
        return Timing(wall_time_s=time.perf_counter() - began_s, cpu_time_s=0.0)


def _compared(
    one: WatchedCommand, suite: WatchSuite, base: Sequence[float], head: Sequence[float]
) -> WatchedResult:
    # Each run is a process of its own, so pairs are what varies: they count as one launch.
    logs = np.log(np.asarray(head)) - np.log(np.asarray(base))
    centre, reach = interval([logs], confidence_for(suite))
    return _answered(one, suite, float(np.median(base)), head, centre, reach)


def _predicted(
    one: WatchedCommand,
    suite: WatchSuite,
    history: Sequence[HistorySeries],
    device: str,
    head: Sequence[float],
) -> WatchedResult:
    """Compare with what a history of one level says of its next result."""
    here = [series for series in history if series.device == device]
    level = _newest_level(here[0]) if here else []
    value = float(np.median(head))
    if len(level) < LEAST_HISTORY:
        said = (
            "no results in the history"
            if not history
            else "its results are from another machine"
            if not here
            else f"{len(level)} results at its newest level; it needs {LEAST_HISTORY}"
        )
        return _without(one, "no baseline", said, value)
    logs = np.log(np.asarray(level))
    centre, count = float(np.median(logs)), len(logs)
    # The median absolute deviation, scaled to a normal distribution's standard deviation.
    spread = max(1.4826 * float(np.median(np.abs(logs - centre))), 1e-9)
    reach = t_quantile(count - 1, (1 + confidence_for(suite)) / 2)
    reach *= spread * math.sqrt(1 + math.pi / 2 / count)
    return _answered(one, suite, math.exp(centre), head, math.log(value) - centre, reach)


def _answered(
    one: WatchedCommand,
    suite: WatchSuite,
    base: float,
    head: Sequence[float],
    change: float,
    reach: float,
) -> WatchedResult:
    """Answer from the change's logarithm, and how far its interval reaches on each side."""
    sign = 1 if one.better == "lower" else -1
    worse, low, high = (
        math.expm1(min(sign * change + step, 700.0)) for step in (0.0, -reach, reach)
    )
    margin = suite.margin
    answer: WatchAnswer = (
        "slower"
        if low > margin
        else "faster"
        if high < 0
        else "not slower"
        if high <= margin
        else "undecided"
    )
    return WatchedResult(
        name=one.name,
        unit=one.unit,
        better=one.better,
        answer=answer,
        why=_why_undecided(low, high, margin) if answer == "undecided" else "",
        base=base,
        head=float(np.median(head)),
        worse=worse,
        low=low,
        high=high,
        runs=len(head),
    )


def _why_undecided(low: float, high: float, margin: float) -> str:
    """Return the cause of an undecided answer from the interval of the change, and the remedy."""
    noise = noise_of(1 + low, 1 + high, None)
    cause = noise or f"the interval holds what is allowed ({100 * margin:.3g}%)"
    return f"{cause}: add pairs"


def _newest_level(series: HistorySeries) -> list[float]:
    """Return the positive values since the last shift or new environment."""
    analysed = analyse_one(series)
    starts = [shift.index for shift in analysed.shifts] + list(analysed.new_environments)
    values = series.values[max(starts, default=0) :]
    return [float(value) for value in values if value > 0]


def _without(
    one: WatchedCommand, answer: WatchAnswer, why: str, head: float | None = None
) -> WatchedResult:
    return WatchedResult(
        name=one.name, unit=one.unit, better=one.better, answer=answer, why=why, head=head
    )
