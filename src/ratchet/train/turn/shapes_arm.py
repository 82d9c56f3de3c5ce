"""The process that looks at a built-in step at a GPU's sizes, on tensors without values.

It answers what `StepArm` answers of such a step, and runs nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import msgspec

from ratchet.base.errors import WorkloadError
from ratchet.base.serialise import document_of
from ratchet.train.workloads.names import LoadOptions

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from ratchet.train.workloads.workload import Workload

FACTORY: Final = "ratchet.train.turn.shapes_arm:make_shapes_arm"


def make_shapes_arm(*, workload: str, options: LoadOptions) -> ShapesArm:
    """Build the workload in this process, as a GPU would run it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from ratchet.train.workloads.load import load_shapes

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return ShapesArm(load_shapes(workload, mode, **options), mode)


class ShapesArm:
    """A training step that is looked at and never run."""

    calls = ("workload", "sites")

    def __init__(self, workload: Workload, mode: FakeTensorMode) -> None:
        self._workload, self._mode = workload, mode

    def step(self, iterations: int) -> None:
        raise WorkloadError("a step without values is never timed")

    def describe(self) -> dict[str, object]:
        return {}

    def workload(self) -> dict[str, object]:
        """Describe the workload and its step (JSON of `StepFacts`).

        Its peak memory is a lower bound: weights, gradients, moments, and what forward keeps.
        """
        from ratchet.train.recipe.describe import describe_workload
        from ratchet.train.workloads.device import state_bytes
        from ratchet.train.workloads.fake import saved_bytes
        from ratchet.train.workloads.step import TrainingStep

        workload = self._workload
        batch = workload.batch(0)
        facts = describe_workload(TrainingStep(workload, workload.as_written()), batch)
        kept = saved_bytes(workload, batch) or 0
        least_bytes = state_bytes(workload.model) + kept
        facts = msgspec.structs.replace(facts, peak_memory_bytes=least_bytes)
        return {**document_of(facts)}

    def sites(self, precision: str) -> list[dict[str, object]]:
        """Return the call sites that the library's kernels could take in a precision (JSON)."""
        from ratchet.train.graph.capture import capture

        config = msgspec.structs.replace(self._workload.as_written(), precision=precision)
        with self._mode, warnings.catch_warnings():
            # Copies in bf16 ask for the address of their weight, to see that it is the same one.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            return [asdict(site) for site in capture(self._workload, config)]
