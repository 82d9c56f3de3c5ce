"""Time whole training steps against each other, in processes of their own, over several launches.

A launch starts every arm anew, warms each, then runs rounds in random order while idle arms are
stopped. Nothing is set up while anything is timed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.base.errors import JudgeError
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.measure.arm import Timing
from ratchet.measure.rounds import Enough, run_rounds, timed_sample
from ratchet.measure.samples import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEvent:
    """Progress: `kind` is starting, ready, warm (of one arm) or round (of all arms)."""

    kind: str
    launch: int
    arm: str = ""
    round: int = -1
    time_s: float = 0.0
    """Seconds of what is reported; for a round, the sum over its arms of one iteration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The result of a timed run of several arms."""

    samples: list[Sample]
    descriptions: dict[str, dict[str, object]]
    """Each arm's description of itself after the last launch."""
    setup_time_s: dict[str, float]
    """Seconds from the start of an arm's process to the end of its first iteration, in the first
    launch. This includes compilation, with caches as found."""
    setup_times_s: dict[str, list[float]]
    """The same for each launch."""
    launches: int
    seed: int
    concurrent: bool
    """False if the arms did not fit in memory together: their samples are no adjacent pairs."""


OnEvent = Callable[[TrialEvent], None]


class _Launches:
    """Gathers the results of one trial's launches."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self.samples: list[Sample] = []
        self.descriptions: dict[str, dict[str, object]] = {}
        self.setup_times_s: dict[str, list[float]] = {}
        self._on_event = on_event

    def report(self, event: TrialEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def warm_up(self, arms: Sequence[ArmProcess], launch: int, warmup: int) -> None:
        """Start the arms together, run their first iterations (which compile), then each one's
        remaining warm-up by itself."""
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
    """An arm whose processes are stopped except while it is timed."""

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
    concurrent: bool = True,
    start_together: int = 1,
    on_event: OnEvent | None = None,
    enough: Enough = lambda: False,
) -> Trial:
    """Time two or more arms; return launches x rounds x arms samples, in seconds.

    `warmup` is the number of iterations before the first timed one, at least one. With
    `concurrent=False`, for arms that do not fit in memory together, each launch runs the arms one
    process after another, and the samples of a round are not adjacent in time. Otherwise
    `start_together` arms start at a time: a launch is ready sooner, but `setup_time_s` is that of a
    busier machine. `enough` may then end a launch before its last round (`run_rounds`).

    Raises:
        ArmFailure: an arm died.
        RatchetError: a factory raised it.
        JudgeError: the arguments make no sense.
    """
    _check(specs, launches=launches, rounds=rounds, warmup=warmup, start_together=start_together)
    rng = np.random.default_rng(seed)
    gathered = _Launches(on_event)
    for launch in range(launches):
        order = [specs[index] for index in rng.permutation(len(specs))]
        plan = _LaunchPlan(launch=launch, rounds=rounds, warmup=warmup)
        if concurrent:
            _launch_together(gathered, order, plan, rng, enough, together=start_together)
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
    """The parameters of one launch."""

    launch: int
    rounds: int
    warmup: int


def _launch_together(
    gathered: _Launches,
    order: Sequence[ArmSpec],
    plan: _LaunchPlan,
    rng: np.random.Generator,
    enough: Enough,
    *,
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
            for arm in group:
                arm.pause()
        gathered.samples += run_rounds(
            [IdleStopped(arm) for arm in arms],
            rounds=plan.rounds,
            launch=launch,
            rng=rng,
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
            for index in range(plan.rounds):
                sample = timed_sample(
                    arm.run(1),
                    arm=spec.name,
                    launch=launch,
                    round=index,
                    position=position,
                    iterations=1,
                )
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


def _check(specs: Sequence[ArmSpec], **counts: int) -> None:
    names = [spec.name for spec in specs]
    if len(names) < 2 or len(set(names)) != len(names):
        raise JudgeError(f"arms {names}: time two or more, each with a name of its own")
    for what, count in counts.items():
        if count < 1:
            raise JudgeError(f"{what}={count}: it must be at least 1")
