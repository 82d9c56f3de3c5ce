"""Time whole training steps against each other, in processes of their own, one launch at a time.

A launch starts every arm anew, warms each, then runs rounds in random order while idle arms are
stopped. Nothing is set up while anything is timed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ratchet.base.errors import JudgeError
from ratchet.base.measure import Sample, Timing
from ratchet.base.measure.rounds import Enough, run_rounds
from ratchet.judge.steps.arms import ArmProcess, ArmSpec


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
    """The result of one launch of several arms."""

    samples: list[Sample]
    descriptions: dict[str, dict[str, object]]
    """Each arm's description of itself after its last round."""
    setup_time_s: dict[str, float]
    """Seconds from the start of an arm's process to the end of its first iteration. This includes
    compilation, with caches as found."""


OnEvent = Callable[[TrialEvent], None]


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


class ArmLaunches:
    """Starts arms in new processes, launch by launch, and gathers what they say of themselves."""

    def __init__(self, *, warmup: int, together: int = 1, on_event: OnEvent | None = None) -> None:
        """`warmup` iterations, at least one, come before the first timed one.

        `together` arms start at a time: a launch is ready sooner, but setup times are those of a
        busier machine.
        """
        self.descriptions: dict[str, dict[str, object]] = {}
        self.setup_time_s: dict[str, float] = {}
        """Seconds from the last start of an arm's process to the end of its first iteration."""
        self._warmup, self._together, self._on_event = warmup, together, on_event

    def report(self, event: TrialEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    @contextlib.contextmanager
    def open(self, specs: Sequence[ArmSpec], launch: int) -> Iterator[list[IdleStopped]]:
        """Yield the arms of a launch, started in this order and warm; describe them afterwards."""
        with contextlib.ExitStack() as stack:
            arms = [ArmProcess(spec) for spec in specs]
            for arm in arms:
                stack.callback(arm.close)
            for first in range(0, len(arms), self._together):
                group = arms[first : first + self._together]
                self._warm_up(group, launch)
                for arm in group:
                    arm.pause()
            yield [IdleStopped(arm) for arm in arms]
            for arm in arms:
                arm.resume()
                self.descriptions[arm.name] = arm.describe()

    def _warm_up(self, arms: Sequence[ArmProcess], launch: int) -> None:
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
            spent_s = self.setup_time_s[arm.name] = time.perf_counter() - began_s[arm.name]
            self.report(TrialEvent(kind="ready", launch=launch, arm=arm.name, time_s=spent_s))
        for arm in arms:
            began = time.perf_counter()
            if self._warmup > 1:
                arm.run(self._warmup - 1)
            warm_time_s = time.perf_counter() - began
            self.report(TrialEvent(kind="warm", launch=launch, arm=arm.name, time_s=warm_time_s))


def time_arms(
    specs: Sequence[ArmSpec],
    *,
    rounds: int,
    warmup: int,
    seed: int,
    launch: int = 0,
    concurrent: bool = True,
    start_together: int = 1,
    on_event: OnEvent | None = None,
    enough: Enough = lambda: False,
) -> Trial:
    """Time two or more arms in one launch; return rounds x arms samples, in seconds.

    `warmup` is the number of iterations before the first timed one, at least one. With
    `concurrent=False`, for arms that do not fit in memory together, one process runs after another,
    and the samples of a round are not adjacent in time. Otherwise `start_together` arms start at a
    time (`ArmLaunches`), and `enough` may end the launch before its last round (`run_rounds`).

    Raises:
        ArmFailure: an arm died.
        RatchetError: a factory raised it.
        JudgeError: the arguments make no sense.
    """
    _check(specs, rounds=rounds, warmup=warmup, start_together=start_together)
    rng = np.random.default_rng(seed)
    together = start_together if concurrent else 1
    begun = ArmLaunches(warmup=warmup, together=together, on_event=on_event)
    order = [specs[index] for index in rng.permutation(len(specs))]
    samples: list[Sample] = []
    for position, group in enumerate([order] if concurrent else [[spec] for spec in order]):
        name = "" if concurrent else group[0].name

        def on_round(index: int, taken: Sequence[Sample], name: str = name) -> None:
            time_s = sum(one.wall_time_s for one in taken)
            begun.report(
                TrialEvent(kind="round", launch=launch, arm=name, round=index, time_s=time_s)
            )

        with begun.open(group, launch) as arms:
            taken = run_rounds(
                arms,
                rounds=rounds,
                launch=launch,
                rng=rng,
                on_round=on_round,
                enough=enough if concurrent else lambda: False,
                fewest_arms=len(group),
            )
        samples += [replace(one, position=position + one.position) for one in taken]
    return Trial(
        samples=samples,
        descriptions=begun.descriptions,
        setup_time_s=begun.setup_time_s,
    )


def _check(specs: Sequence[ArmSpec], **counts: int) -> None:
    names = [spec.name for spec in specs]
    if len(names) < 2 or len(set(names)) != len(names):
        raise JudgeError(f"arms {names}: time two or more, each with a name of its own")
    for what, count in counts.items():
        if count < 1:
            raise JudgeError(f"{what}={count}: it must be at least 1")
