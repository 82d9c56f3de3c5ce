"""Two workloads as the sides of a comparison, and the process that runs a side's step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ratchet.base import address
from ratchet.base.measure import Arm, Sample
from ratchet.base.measure.contest import batch_iterations
from ratchet.base.measure.metrics import BASELINE, CPU_TIME, NEW, PEAK_MEMORY, TIME, TWIN, Readings
from ratchet.base.serialise import document_of
from ratchet.judge.steps.arms import ArmLaunches, ArmSpec
from ratchet.train.turn.arm import StepArm
from ratchet.train.workloads.names import LoadOptions

if TYPE_CHECKING:
    from ratchet.train.workloads.step import TrainingStep
    from ratchet.train.workloads.workload import Workload


def make_step(
    *,
    workload: str,
    options: LoadOptions,
    changes: Mapping[str, object],
    recipe: str | None,
) -> ComparedStep:
    """Build the workload, and its step as written, with `changes` to its config, or by a recipe."""
    from ratchet.train.workloads.check import load_checked

    built, _ = load_checked(workload, **options)
    step = build(built, changes, recipe)
    return ComparedStep(built, step.config, step=step)


FACTORY = address(make_step)


def build(workload: Workload, changes: Mapping[str, object], recipe: str | None) -> TrainingStep:
    from ratchet.train.recipe.apply import apply
    from ratchet.train.recipe.compiled_step import build as build_step
    from ratchet.train.workloads.config import StepConfig

    if recipe is not None:
        return apply(workload, recipe, strict=True)
    written = document_of(workload.as_written())
    return build_step(workload, msgspec.convert({**written, **changes}, StepConfig))


class ComparedStep(StepArm):
    """A step to compare, with the size of its batches, and a trace that names modules."""

    calls = ("profile",)

    def describe(self) -> dict[str, object]:
        """Return what an arm does, and the size of a batch (JSON)."""
        from ratchet.train.workloads.workload import count

        per_step, unit = count(self._workload, self._batches[0])
        return {**super().describe(), "per_batch": per_step, "unit": unit}

    def profile(self, path: str, steps: int = 3) -> dict[str, object]:
        """Write a Chrome trace of some steps to `path` (JSON)."""
        from ratchet.train.recipe.facts import record_steps

        device = self._workload.device
        return record_steps(self._step, self._batches, steps, device, Path(path), modules=True)


WARMUP = 2
MEMORY_ROUND = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSide:
    title: str
    workload: str
    options: LoadOptions = field(default_factory=LoadOptions)
    """Keyword arguments of `workloads.load`."""
    changes: Mapping[str, object] = field(default_factory=dict)
    recipe: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = ""  # Another interpreter, which has Ratchet installed

    def arguments(self) -> dict[str, object]:
        """Return the keyword arguments of the program that builds this side's step."""
        return {
            "workload": self.workload,
            "options": dict(self.options),
            "changes": dict(self.changes),
            "recipe": self.recipe,
        }

    def spec(
        self, name: str, factory: str = FACTORY, arguments: Mapping[str, object] | None = None
    ) -> ArmSpec:
        """Return the process that runs this side, or what else `factory` makes of `arguments`."""
        return ArmSpec(
            name=name,
            factory=factory,
            arguments=self.arguments() if arguments is None else dict(arguments),
            environment=self.environment,
            python=self.python,
        )


class WorkloadContest:
    """Two workloads, or one in two modes; each launch starts three processes."""

    metrics = (TIME, CPU_TIME, PEAK_MEMORY)
    notes = ()

    def first_round_s(self) -> None:
        return None

    def __init__(self, a: WorkloadSide, b: WorkloadSide, *, seed: int = 0) -> None:
        self.sides = (a, b)
        specs = {BASELINE: a, NEW: b, TWIN: a}
        self._specs = [side.spec(name) for name, side in specs.items()]
        self._rng = np.random.default_rng(seed)
        self._iterations: dict[str, int] = {}
        self._launches = ArmLaunches(warmup=WARMUP, together=len(specs))
        self.descriptions = self._launches.descriptions
        self.peaks: list[tuple[str, int, float]] = []

    @property
    def titles(self) -> tuple[str, str]:
        return self.sides[0].title, self.sides[1].title

    @contextlib.contextmanager
    def open(self, launch: int, limit_s: float) -> Iterator[Sequence[Arm]]:
        del limit_s  # an arm has time limits of its own
        order = [self._specs[at] for at in self._rng.permutation(len(self._specs))]
        with self._launches.open(order, launch) as arms:
            for arm in arms:
                if arm.name not in self._iterations:
                    self._iterations[arm.name] = batch_iterations(arm.run(1).wall_time_s)
            self._iterations[TWIN] = self._iterations[BASELINE]
            yield arms
        from ratchet.train.recipe.facts import ArmFacts  # torch

        for name, said in self.descriptions.items():
            peak_bytes = msgspec.convert(said, ArmFacts).peak_memory_bytes
            self.peaks.append((name, launch, float(peak_bytes)))

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
