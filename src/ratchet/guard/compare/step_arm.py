"""The process that runs one side's training step, to be timed or profiled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ratchet.base.serialise import document_of
from ratchet.train.turn.arm import StepArm
from ratchet.train.workloads.names import LoadOptions

if TYPE_CHECKING:
    from ratchet.train.workloads.step import TrainingStep
    from ratchet.train.workloads.workload import Workload

FACTORY = "ratchet.guard.compare.step_arm:make_step"


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

        counted = count(self._workload, self._batches[0])
        return {**super().describe(), "per_batch": counted.per_step, "unit": counted.unit}

    def profile(self, path: str, steps: int = 3) -> dict[str, object]:
        """Write a Chrome trace of some steps to `path` (JSON)."""
        from ratchet.train.recipe.describe import record_steps

        device = self._workload.device
        return record_steps(self._step, self._batches, steps, device, Path(path), modules=True)
