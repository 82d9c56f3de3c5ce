"""The sides of a comparison, and the arms of one launch of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ratchet.base.errors import GuardError
from ratchet.guard.compare.commands import CommandArm, CommandSide, Ran, check_same_metrics
from ratchet.guard.compare.decide import (
    BASELINE,
    CPU_TIME,
    NEW,
    PEAK_MEMORY,
    TIME,
    TWIN,
    Metric,
    Readings,
)
from ratchet.guard.compare.plan import batch_iterations
from ratchet.guard.compare.step_arm import FACTORY
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.judge.steps.recipe_trial import IdleStopped
from ratchet.measure.arm import Arm
from ratchet.measure.samples import Sample

WARMUP = 2
MEMORY_ROUND = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSide:
    """A workload in one of its modes."""

    title: str
    workload: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `workloads.load`."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    """Another interpreter, which has Ratchet installed."""

    def spec(self, name: str) -> ArmSpec:
        return ArmSpec(
            name=name,
            factory=FACTORY,
            arguments={
                "workload": self.workload,
                "options": dict(self.options),
                "changes": dict(self.changes),
                "recipe": self.recipe,
            },
            environment=self.environment,
            python=self.python,
        )


class Contest(Protocol):
    """Two sides: opens their arms for each launch, and reads what the arms measured."""

    @property
    def titles(self) -> tuple[str, str]: ...

    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    def open(self, launch: int, limit_s: float) -> AbstractContextManager[Sequence[Arm]]:
        """Start the arms a, b and twin, and warm them."""
        ...

    def iterations(self) -> Mapping[str, int]:
        """Return each arm's iterations in a sample."""
        ...

    def read(self, readings: Readings, samples: Sequence[Sample]) -> None:
        """Add one round's values."""
        ...


class CommandContest:
    """Two commands; every run is a process of its own."""

    def __init__(
        self, a: CommandSide, b: CommandSide, *, printed: bool, higher: Sequence[str] = ()
    ) -> None:
        self._sides = {BASELINE: a, NEW: b, TWIN: a}
        self._printed, self._higher = printed, tuple(higher)
        self._arms: dict[str, CommandArm] = {}
        self._names: dict[str, float] | None = None

    @property
    def titles(self) -> tuple[str, str]:
        return self._sides[BASELINE].title, self._sides[NEW].title

    @property
    def metrics(self) -> tuple[Metric, ...]:
        if not self._printed:
            return (TIME, CPU_TIME, PEAK_MEMORY)
        named = tuple(
            Metric(name=name, higher_is_better=name in self._higher, decides=True)
            for name in self._names or ()
        )
        whole = Metric(name=TIME.name, unit=TIME.unit)
        return (*named, whole, CPU_TIME, PEAK_MEMORY)

    @contextlib.contextmanager
    def open(self, launch: int, limit_s: float) -> Iterator[Sequence[Arm]]:
        self._arms = {
            name: CommandArm(name, side, printed=self._printed, limit_s=limit_s)
            for name, side in self._sides.items()
        }
        arms = list(self._arms.values())
        if launch == 0:
            # The first runs fill caches, and tell how long a run takes.
            began_s = time.monotonic()
            for arm in arms[:2]:
                arm.run(1)
                arm.limit_s = max(1.0, limit_s - (time.monotonic() - began_s))
                self._check(arm)
            self._check_named()
        yield arms

    def iterations(self) -> Mapping[str, int]:
        return dict.fromkeys(self._sides, 1)

    def first_round_s(self) -> float:
        """Return the time of a round, as the first runs tell it."""
        times = {name: arm.last.time_s for name, arm in self._arms.items() if arm.last}
        return 2 * times[BASELINE] + times[NEW]

    def read(self, readings: Readings, samples: Sequence[Sample]) -> None:
        for sample in samples:
            ran = self._check(self._arms[sample.arm])
            key = (sample.arm, sample.launch, sample.round)
            readings.add(TIME.name, *key, ran.time_s)
            if ran.cpu_time_s > 0:
                readings.add(CPU_TIME.name, *key, ran.cpu_time_s)
            if ran.peak_memory_bytes > 0:
                readings.add(PEAK_MEMORY.name, *key, ran.peak_memory_bytes)
            for name, value in ran.printed.items():
                readings.add(name, *key, value)

    def _check_named(self) -> None:
        """Raise GuardError if --higher names a metric that the commands do not print."""
        printed = self._names or {}
        for name in self._higher:
            if name not in printed:
                raise GuardError(
                    f"--higher {name!r} is no metric that the commands print: they print "
                    f"{', '.join(printed)}"
                )

    def _check(self, arm: CommandArm) -> Ran:
        assert arm.last is not None
        if self._printed:
            self._names = self._names or dict(arm.last.printed)
            shown = self._sides[arm.name].shown
            check_same_metrics(self._names, arm.last.printed, shown)
        return arm.last


class WorkloadContest:
    """Two workloads, or one in two modes; each launch starts three processes."""

    metrics = (TIME, CPU_TIME, PEAK_MEMORY)

    def __init__(self, a: WorkloadSide, b: WorkloadSide, *, seed: int = 0) -> None:
        self.sides = (a, b)
        specs = {BASELINE: a, NEW: b, TWIN: a}
        self._specs = [side.spec(name) for name, side in specs.items()]
        self._rng = np.random.default_rng(seed)
        self._iterations: dict[str, int] = {}
        self.descriptions: dict[str, dict[str, Any]] = {}
        self.peaks: list[tuple[str, int, float]] = []

    @property
    def titles(self) -> tuple[str, str]:
        return self.sides[0].title, self.sides[1].title

    @contextlib.contextmanager
    def open(self, launch: int, limit_s: float) -> Iterator[Sequence[Arm]]:
        del limit_s  # an arm has time limits of its own
        with contextlib.ExitStack() as stack:
            order = [self._specs[at] for at in self._rng.permutation(len(self._specs))]
            arms = [ArmProcess(spec) for spec in order]
            for arm in arms:
                stack.callback(arm.close)
                arm.begin_start()
            for arm in arms:
                arm.finish_start()
            for arm in arms:
                self._warm(arm)
                arm.pause()
            yield [IdleStopped(arm) for arm in arms]
            for arm in arms:
                arm.resume()
                said = arm.describe()
                self.descriptions[arm.name] = said
                self.peaks.append((arm.name, launch, float(said["peak_memory_bytes"])))

    def _warm(self, arm: ArmProcess) -> None:
        arm.run(WARMUP)
        if arm.name not in self._iterations:
            self._iterations[arm.name] = batch_iterations(arm.run(1).wall_time_s)
        if {BASELINE, TWIN} <= self._iterations.keys():
            self._iterations[TWIN] = self._iterations[BASELINE]

    def iterations(self) -> Mapping[str, int]:
        return self._iterations

    def read(self, readings: Readings, samples: Sequence[Sample]) -> None:
        for one in samples:
            readings.add(TIME.name, one.arm, one.launch, one.round, one.wall_time_s)
            if one.cpu_time_s > 0:
                readings.add(CPU_TIME.name, one.arm, one.launch, one.round, one.cpu_time_s)
        for name, launch, peak in self.peaks:
            readings.add(PEAK_MEMORY.name, name, launch, MEMORY_ROUND, peak)
        self.peaks.clear()
