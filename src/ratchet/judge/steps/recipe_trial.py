"""Time whole training steps against each other, in processes of their own, over several launches.

A launch starts every arm anew, one after the other, warms each, then runs rounds in random order
while the idle arms are stopped. Nothing is being set up while anything is being timed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratchet.base.errors import JudgeError
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.measure.arm import Timing
from ratchet.measure.rounds import Enough, run_rounds
from ratchet.measure.samples import Sample, checked


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEvent:
    """Progress: `kind` is starting, ready, warm (of one arm) or round (of all of them)."""

    kind: str
    launch: int
    arm: str = ""
    round: int = -1
    time_s: float = 0.0
    """How long what is reported took; for a round, the sum over its arms of one iteration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The result of a timed run of several arms."""

    samples: list[Sample]
    descriptions: dict[str, dict[str, Any]]
    """What each arm said of itself after the last launch."""
    setup_time_s: dict[str, float]
    """Seconds from the start of an arm's process to the end of its first iteration, in the first
    launch: compilation is in it, with caches as they were found."""
    setup_times_s: dict[str, list[float]]
    """The same, for each launch."""
    launches: int
    seed: int
    concurrent: bool
    """False: the arms did not stand in memory together, and their samples are no adjacent pairs."""


OnEvent = Callable[[TrialEvent], None]


class _Launches:
    """Gathers what the launches of one trial give."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self.samples: list[Sample] = []
        self.descriptions: dict[str, dict[str, Any]] = {}
        self.setup_times_s: dict[str, list[float]] = {}
        self._on_event = on_event

    def report(self, event: TrialEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def warm_up(self, arms: Sequence[ArmProcess], launch: int, warmup: int) -> None:
        """Start the arms at the same time, run their first iterations (which compile), then the
        rest of each one's warm-up by itself."""
        began_s: dict[str, float] = {}
        for arm in arms:
            self.report(TrialEvent(kind="starting", launch=launch, arm=arm.name))
            began_s[arm.name] = time.perf_counter()
            arm.begin_start()
        for arm in arms:
            arm.finish_start()
            arm.begin_run(1)
        for arm in arms:
            arm.finish_run()
            setup_time_s = time.perf_counter() - began_s[arm.name]
            self.setup_times_s.setdefault(arm.name, []).append(setup_time_s)
            self.report(TrialEvent(kind="ready", launch=launch, arm=arm.name, time_s=setup_time_s))
        for arm in arms:
            began = time.perf_counter()
            if warmup > 1:
                arm.run(warmup - 1)
            warm_time_s = time.perf_counter() - began
            self.report(TrialEvent(kind="warm", launch=launch, arm=arm.name, time_s=warm_time_s))


class IdleStopped:
    """An arm whose processes stand still except while it is timed."""

    def __init__(self, arm: ArmProcess) -> None:
        self._arm = arm

    @property
    def name(self) -> str:
        return self._arm.name

    def run(self, iterations: int) -> Timing:
        self._arm.resume()
        timing = self._arm.run(iterations)
        self._arm.pause()
        return timing


def time_arms(
    specs: Sequence[ArmSpec],
    *,
    launches: int,
    rounds: int,
    warmup: int,
    seed: int,
    pause_idle: bool = True,
    concurrent: bool = True,
    start_together: int = 1,
    iterations: int | Mapping[str, int] = 1,
    on_event: OnEvent | None = None,
    enough: Enough = lambda: False,
) -> Trial:
    """Time two or more arms; returns launches x rounds x arms samples, in seconds.

    Where the arms run together, `enough` may end a launch before its last round (`run_rounds`).

    `warmup` counts iterations before the first timed one, at least one. With `concurrent=False`
    (two arms do not fit in memory together) each launch runs the arms one process after another;
    the samples of a round are then not adjacent in time. Otherwise `start_together` arms start at
    a time: a launch is ready sooner, and their `setup_time_s` are those of a busier machine.

    ArmFailure names an arm that died in any launch; a RatchetError of a factory comes as itself.
    JudgeError for a senseless request.
    """
    _check(specs, launches=launches, rounds=rounds, warmup=warmup, start_together=start_together)
    rng = np.random.default_rng(seed)
    gathered = _Launches(on_event)
    for launch in range(launches):
        order = [specs[index] for index in rng.permutation(len(specs))]
        plan = _LaunchPlan(launch=launch, rounds=rounds, warmup=warmup, iterations=iterations)
        if concurrent:
            together = start_together
            _launch_together(
                gathered, order, plan, rng, enough, pause_idle=pause_idle, together=together
            )
        else:
            _launch_apart(gathered, order, plan)
    return Trial(
        samples=gathered.samples,
        descriptions=gathered.descriptions,
        setup_time_s={name: times[0] for name, times in gathered.setup_times_s.items()},
        setup_times_s=gathered.setup_times_s,
        launches=launches,
        seed=seed,
        concurrent=concurrent,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _LaunchPlan:
    """The order of one launch's work."""

    launch: int
    rounds: int
    warmup: int
    iterations: int | Mapping[str, int]

    def iterations_of(self, arm: str) -> int:
        return self.iterations if isinstance(self.iterations, int) else self.iterations[arm]


def _launch_together(
    gathered: _Launches,
    order: Sequence[ArmSpec],
    plan: _LaunchPlan,
    rng: np.random.Generator,
    enough: Enough,
    *,
    pause_idle: bool,
    together: int,
) -> None:
    launch = plan.launch

    def on_round(index: int, samples: Sequence[Sample]) -> None:
        total = sum(sample.wall_time_s for sample in samples)
        gathered.report(TrialEvent(kind="round", launch=launch, round=index, time_s=total))

    with contextlib.ExitStack() as stack:
        arms = [ArmProcess(spec) for spec in order]
        for arm in arms:
            stack.callback(arm.close)
        for first in range(0, len(arms), together):
            group = arms[first : first + together]
            gathered.warm_up(group, launch, plan.warmup)
            for arm in group if pause_idle else ():
                arm.pause()
        timed = [IdleStopped(arm) for arm in arms] if pause_idle else arms
        gathered.samples += run_rounds(
            timed,
            rounds=plan.rounds,
            launch=launch,
            rng=rng,
            iterations=plan.iterations,
            on_round=on_round,
            enough=enough,
        )
        for arm in arms:
            arm.resume()
            gathered.descriptions[arm.name] = arm.describe()


def _launch_apart(gathered: _Launches, order: Sequence[ArmSpec], plan: _LaunchPlan) -> None:
    launch = plan.launch
    for position, spec in enumerate(order):
        arm = ArmProcess(spec)
        with contextlib.closing(arm):
            gathered.warm_up([arm], launch, plan.warmup)
            count = plan.iterations_of(spec.name)
            for index in range(plan.rounds):
                sample = _sample(arm.run(count), spec.name, launch, index, position, count)
                gathered.samples.append(sample)
                gathered.report(
                    TrialEvent(
                        kind="round",
                        launch=launch,
                        arm=spec.name,
                        round=index,
                        time_s=sample.wall_time_s,
                    )
                )
            gathered.descriptions[spec.name] = arm.describe()


def _sample(timing: Timing, arm: str, launch: int, index: int, position: int, count: int) -> Sample:
    return checked(
        Sample(
            arm=arm,
            launch=launch,
            round=index,
            position=position,
            iterations=count,
            wall_time_s=timing.wall_time_s / count,
            cpu_time_s=timing.cpu_time_s / count,
        )
    )


def _check(specs: Sequence[ArmSpec], **counts: int) -> None:
    names = [spec.name for spec in specs]
    if len(names) < 2 or len(set(names)) != len(names):
        raise JudgeError(f"arms {names}: time two or more, each with a name of its own")
    for what, count in counts.items():
        if count < 1:
            raise JudgeError(f"{what}={count}: it must be at least 1")
