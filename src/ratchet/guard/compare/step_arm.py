"""The process that runs one side's training step, to be timed or profiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ratchet.base.serialise import document_of
from ratchet.workloads.names import LoadOptions

if TYPE_CHECKING:
    from ratchet.workloads.step import TrainingStep
    from ratchet.workloads.workload import Workload

FACTORY = "ratchet.guard.compare.step_arm:make_step"
BATCHES = 8
"""Distinct batches that the step cycles through."""


def make_step(
    *,
    workload: str,
    options: LoadOptions,
    changes: Mapping[str, object],
    recipe: str | None,
) -> ComparedStep:
    """Build the workload, and its step as written, with `changes` to its config, or by a recipe."""
    from ratchet.workloads.check import load_checked

    built, warnings = load_checked(workload, **options)
    return ComparedStep(built, build(built, changes, recipe), warnings)


def build(workload: Workload, changes: Mapping[str, object], recipe: str | None) -> TrainingStep:
    """Return the step of a workload."""
    from ratchet.optimize.recipe.apply import apply
    from ratchet.optimize.recipe.compiled_step import build as build_step
    from ratchet.workloads.config import StepConfig

    if recipe is not None:
        return apply(workload, recipe, strict=True)
    written = document_of(workload.as_written())
    return build_step(workload, msgspec.convert({**written, **changes}, StepConfig))


class ComparedStep:
    """A training step behind the judge's protocol for arms."""

    calls = ("profile",)

    def __init__(self, workload: Workload, step: TrainingStep, warnings: Sequence[str]) -> None:
        from ratchet.workloads.blame import batch_of

        self._workload, self._step, self._warnings = workload, step, list(warnings)
        self._batches = [batch_of(workload, index) for index in range(BATCHES)]
        self._next = 0

    def step(self, iterations: int) -> None:
        """Run whole training steps, and wait for the device."""
        for _ in range(iterations):
            self._step(self._batches[self._next % BATCHES])
            self._next += 1
        if self._workload.device != "cpu":
            import torch

            torch.cuda.synchronize(self._workload.device)

    def describe(self) -> dict[str, object]:
        """Return peak memory so far, and the size of a batch (JSON)."""
        from ratchet.workloads.bench import peak_memory_bytes
        from ratchet.workloads.counting import count

        counted = count(self._workload, self._batches[0])
        return {
            "peak_memory_bytes": peak_memory_bytes(self._workload.device),
            "per_batch": counted.per_step,
            "unit": counted.unit,
            "warnings": self._warnings,
        }

    def profile(self, path: str, steps: int = 3) -> dict[str, object]:
        """Write a Chrome trace of some steps to `path` (JSON)."""
        from ratchet.optimize.step.describe import record_steps

        device = self._workload.device
        return record_steps(self._step, self._batches, steps, device, Path(path), modules=True)
