"""Run a suite: head against base in pairs, or head against a history."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special

from ratchet.guard.checkouts import Checkouts
from ratchet.guard.history.analysis import analyse_one
from ratchet.guard.history.series import HistorySeries
from ratchet.guard.watch.result import WatchAnswer, WatchedResult
from ratchet.guard.watch.suite_file import WatchedCommand, WatchSuite
from ratchet.measure.estimate import compare
from ratchet.measure.samples import Sample

LEAST_HISTORY = 5
"""Results of the newest level that a history needs to be a baseline."""
_LEAST_RUNS = 3
OnRun = Callable[[str, int], None]
"""Called with a benchmark's name and how many of its pairs or runs are done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchLimits:
    """What a run may take."""

    pairs: int | None = None
    """Instead of the suite's."""
    time_s: float = math.inf
    """After this no benchmark starts another pair; the answer does not depend on what was seen."""
    seed: int = 0


def confidence_for(benchmarks: int) -> float:
    """Return the confidence of each interval that makes 95 % for all of them."""
    return 1 - 0.05 / max(1, benchmarks)


def watch_pairs(
    suite: WatchSuite,
    checkouts: Checkouts,
    base: str,
    head: str,
    limits: WatchLimits,
    on_run: OnRun,
) -> list[WatchedResult]:
    """Time each benchmark at both commits, in pairs of random order."""
    folders = {name: checkouts.get(one) for name, one in (("base", base), ("head", head))}
    deadline = time.monotonic() + limits.time_s
    results = []
    for one in suite.benchmark:
        started_s = time.monotonic()
        if folders["head"].why:
            results.append(_without(one, "failed", folders["head"].why))
            continue
        values: dict[str, list[float]] = {"base": [], "head": []}
        why: dict[str, str] = {"base": folders["base"].why}
        rng = random.Random(f"{limits.seed} {one.name}")
        wanted = limits.pairs or one.pairs or suite.pairs
        for count in range(wanted):
            if count >= _LEAST_RUNS and time.monotonic() > deadline:
                break
            for side in rng.sample(["base", "head"], 2):
                if why.get(side):
                    continue
                run = one.measured().run(folders[side].folder)
                if run.value is None:
                    why[side] = run.why
                else:
                    values[side].append(run.value)
            on_run(one.name, count + 1)
            if why.get("head"):
                break
        taken_s = time.monotonic() - started_s
        if why.get("head"):
            results.append(_without(one, "failed", why["head"], time_s=taken_s))
        elif why["base"]:
            head_value = float(np.median(values["head"]))
            said = f"the base cannot run it: {why['base']}"
            results.append(_without(one, "no baseline", said, head=head_value, time_s=taken_s))
        else:
            results.append(_compared(one, suite, values["base"], values["head"], taken_s))
    return results


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
    deadline = time.monotonic() + limits.time_s
    results = []
    for one in suite.benchmark:
        started_s = time.monotonic()
        values: list[float] = []
        why = ""
        for count in range(limits.pairs or one.pairs or suite.pairs):
            if count >= _LEAST_RUNS and time.monotonic() > deadline:
                break
            run = one.measured().run(folder)
            if run.value is None:
                why = run.why
                break
            values.append(run.value)
            on_run(one.name, count + 1)
        taken_s = time.monotonic() - started_s
        if why:
            results.append(_without(one, "failed", why, time_s=taken_s))
            continue
        head = float(np.median(values))
        own = [series for series in history if series.benchmark == one.name]
        here = [series for series in own if series.device == device]
        level = _newest_level(here[0]) if here else []
        if len(level) < LEAST_HISTORY:
            said = (
                "no results in the history"
                if not own
                else "its results are from another machine"
                if not here
                else f"{len(level)} results at its newest level; it needs {LEAST_HISTORY}"
            )
            results.append(_without(one, "no baseline", said, head=head, time_s=taken_s))
        else:
            results.append(_predicted(one, suite, level, head, len(values), taken_s))
    return results


def _compared(
    one: WatchedCommand,
    suite: WatchSuite,
    base: Sequence[float],
    head: Sequence[float],
    time_s: float,
) -> WatchedResult:
    # A rate's inverse is like a time. Each run is a process of its own, so pairs are what varies.
    power = 1 if one.better == "lower" else -1
    samples = [
        Sample(
            arm=arm,
            launch=0,
            round=index,
            position=0,
            iterations=1,
            wall_time_s=value**power,
            cpu_time_s=0.0,
        )
        for arm, values in (("base", base), ("head", head))
        for index, value in enumerate(values)
    ]
    found = compare(
        samples,
        baseline="base",
        new="head",
        floor=None,
        confidence=confidence_for(len(suite.benchmark)),
    )
    return _answered(
        one,
        suite,
        (float(np.median(base)), float(np.median(head))),
        (1 / found.ratio - 1, 1 / found.high - 1, 1 / found.low - 1),
        len(head),
        time_s,
    )


def _predicted(
    one: WatchedCommand,
    suite: WatchSuite,
    level: Sequence[float],
    head: float,
    runs: int,
    time_s: float,
) -> WatchedResult:
    """Compare with what a history of one level says of its next result."""
    logs = np.log(np.asarray(level))
    centre, count = float(np.median(logs)), len(logs)
    # The median absolute deviation, scaled to a normal distribution's standard deviation.
    spread = max(1.4826 * float(np.median(np.abs(logs - centre))), 1e-9)
    confidence = confidence_for(len(suite.benchmark))
    reach = float(special.stdtrit(count - 1, (1 + confidence) / 2))
    reach *= spread * math.sqrt(1 + math.pi / 2 / count)
    power = 1 if one.better == "lower" else -1
    centre_log = power * (math.log(head) - centre)
    worse = tuple(math.expm1(centre_log + sign * reach) for sign in (0, -1, 1))
    medians = (math.exp(centre), head)
    return _answered(one, suite, medians, (worse[0], worse[1], worse[2]), runs, time_s)


def _answered(
    one: WatchedCommand,
    suite: WatchSuite,
    medians: tuple[float, float],
    worse: tuple[float, float, float],
    runs: int,
    time_s: float,
) -> WatchedResult:
    change, low, high = worse
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
        why="",
        base=medians[0],
        head=medians[1],
        worse=change,
        low=low,
        high=high,
        runs=runs,
        time_s=time_s,
    )


def _newest_level(series: HistorySeries) -> list[float]:
    """Return the positive values since the last shift or new environment."""
    analysed = analyse_one(series)
    starts = [shift.index for shift in analysed.shifts] + list(analysed.new_environments)
    values = series.values[max(starts, default=0) :]
    return [float(value) for value in values if value > 0]


def _without(
    one: WatchedCommand,
    answer: WatchAnswer,
    why: str,
    *,
    head: float | None = None,
    time_s: float = 0.0,
) -> WatchedResult:
    return WatchedResult(
        name=one.name,
        unit=one.unit,
        better=one.better,
        answer=answer,
        why=why,
        head=head,
        time_s=time_s,
    )
