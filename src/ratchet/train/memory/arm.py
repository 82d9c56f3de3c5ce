"""A process that runs a workload's step and measures what torch allocates in it."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ratchet.base import address
from ratchet.base.errors import DeviceError, WorkloadError
from ratchet.base.serialise import document_of
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.train.graph.steps import build_step
from ratchet.train.memory.measured import (
    BEGIN_BACKWARD,
    BEGIN_UPDATE,
    END,
    MeasuredStep,
    block_marks,
    mark,
    parts_at_peak,
    record,
    stretches,
)
from ratchet.train.workloads.blame import SMALLER, batch_of
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.deferred_logits import find_head
from ratchet.train.workloads.device import require
from ratchet.train.workloads.fake import saved_bytes
from ratchet.train.workloads.names import LoadOptions
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.updates import why_not_fused, why_not_in_backward
from ratchet.train.workloads.workload import Batch, Workload, samples_of


@dataclass(frozen=True, kw_only=True, slots=True)
class StepShape:
    """Facts of a workload that a plan must know."""

    written: StepConfig
    device: str
    blocks: tuple[str, ...]  # The classes of its blocks
    block_bytes: int  # Bytes of the largest block's weights
    samples: int
    own_step: bool
    has_head: bool
    why_not_fused: str
    why_not_in_backward: str


class MemoryArm:
    """A workload whose step is measured in this process."""

    calls = ("measure", "estimate")

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._batches = 0

    def step(self, iterations: int) -> None:
        """Run nothing: this arm is not timed."""

    def describe(self) -> dict[str, object]:
        """Return a StepShape as JSON."""
        workload = self._workload
        blocks = find_blocks(workload.model)
        optimizers = list(workload.make_optimizers().values())
        shape = StepShape(
            written=workload.as_written(),
            device=workload.device,
            blocks=tuple(type(block).__name__ for block in blocks),
            block_bytes=max((_bytes(block.parameters()) for block in blocks), default=0),
            samples=samples_of(workload.batch(0)),
            own_step=workload.train_step is not None,
            has_head=find_head(workload.model) is not None,
            why_not_fused=why_not_fused(optimizers, workload.model),
            why_not_in_backward=why_not_in_backward(workload),
        )
        found: dict[str, object] = document_of(shape)
        return found

    def measure(self, config: object) -> dict[str, object]:
        """Run a step of a StepConfig after a warm-up and return a MeasuredStep as JSON."""
        asked = msgspec.convert(config, StepConfig)
        compiled = asked.compile_mode is not None
        if compiled and self._workload.train_step is not None:
            raise WorkloadError(
                f"workload {self._workload.name!r} has a train_step of its own, which is measured "
                "as it is written; leave out --compile"
            )
        plain = asked.logits == "whole" and asked.micro_batches == 1
        if plain and not set(asked.checkpointing.removeprefix("plan:")) - set("none"):
            # Before the system would end this process for its memory.
            workload = replace(self._workload, checkpointing="none")
            saved = saved_bytes(workload, workload.batch(0)) or 0
            needed_bytes = saved + _bytes(workload.trained().values())
            device = torch.device(workload.device)
            require(needed_bytes, device, f"a step of {workload.name!r}", SMALLER)
        if compiled:
            torch._dynamo.reset()  # a graph of another choice is not to be taken for this one's
        step = build_step(self._workload, asked)
        try:
            found = self._measured(step, compiled)
        finally:
            step.close()
        gc.collect()
        return asdict(found)

    def estimate(self) -> int | None:
        """Return MemTracker's estimate of the eager step as written."""
        return estimate_bytes(self._workload)

    def _measured(self, step: TrainingStep, compiled: bool) -> MeasuredStep:
        step(self._next_batch())  # makes the optimizer's state and compiles
        batch, held = self._next_batch(), set[int]()
        states = _bytes(step.model.parameters(), step.model.buffers()), _bytes(_states(step))
        blocks = [] if compiled else find_blocks(step.model)
        with block_marks(blocks):
            trace = record(lambda: _run(step, batch, held), torch.device(self._workload.device))
        return MeasuredStep(
            checkpointing=step.config.checkpointing,
            compiled=compiled,
            peak_bytes=trace.peak_bytes,
            parts=parts_at_peak(trace, states, held),
            stretches=tuple(stretches(trace)),
        )

    def _next_batch(self) -> Batch:
        self._batches += 1
        return batch_of(self._workload, self._batches - 1)


def _run(step: TrainingStep, batch: Batch, held: set[int]) -> None:
    """Run one step with marks; the addresses of its gradients go into `held`."""

    def began(*_: object) -> None:
        mark(BEGIN_UPDATE)
        held.update(
            one.grad.untyped_storage().data_ptr()
            for one in step.parameters.values()
            if one.grad is not None
        )

    first, early = step.optimizer, step.config.update_in_backward
    watched = first if isinstance(first, Optimizer) and not early else None
    hook = watched.register_step_pre_hook(began) if watched is not None else None
    try:
        if step.own is None:
            written = step.loss

            def loss(model: nn.Module, batch: Batch) -> Tensor:
                found = written(model, batch)
                mark(BEGIN_BACKWARD)
                return found

            step.loss = loss
        step(batch)
        mark(END)
    finally:
        if hook is not None:
            hook.remove()


def _states(step: TrainingStep) -> Iterable[Tensor]:
    for one in step.optimizers.values():
        if isinstance(one, Optimizer):
            leaves = pytree.tree_leaves([dict(state) for state in one.state.values()])
            yield from (leaf for leaf in leaves if isinstance(leaf, Tensor))


def _bytes(*given: Iterable[Tensor]) -> int:
    """Return the bytes of tensors, each storage once."""
    storages = [one.untyped_storage() for some in given for one in some]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def make_memory_arm(*, workload: str, options: LoadOptions) -> MemoryArm:
    """Load the workload in this process. Unlike `load_checked`, it takes steps that do not fit."""
    from ratchet.train.workloads.load import load

    return MemoryArm(load(workload, **options))


def memory_arm(workload: str, options: LoadOptions) -> ArmProcess:
    # A launch that waits for its kernel makes the host's times those of the device.
    return ArmProcess(
        ArmSpec(
            name=workload,
            factory=address(make_memory_arm),
            arguments={"workload": workload, "options": options},
            environment={"CUDA_LAUNCH_BLOCKING": "1"},
            start_timeout_s=3600.0,
            call_timeout_s=3600.0,
        )
    )


def shape_of(arm: ArmProcess) -> StepShape:
    """Return what a plan must know of the arm's workload."""
    return msgspec.convert(arm.describe(), StepShape)


def measure(arm: ArmProcess, config: StepConfig) -> MeasuredStep | None:
    """Return the measured step; None if the device has no room for it."""
    try:
        found = arm.call("measure", config=document_of(config))
    except DeviceError:
        return None
    return msgspec.convert(found, MeasuredStep)


def estimate_bytes(workload: Workload) -> int | None:
    """Return the estimated peak of the step as written; None if it needs values to run.

    torch's own MemTracker follows every op of the eager step on tensors without values. It sees no
    memory inside of an op and no compiled graphs.
    """
    batch = batch_of(workload, 0)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _tracked(workload, batch, mode)
    # A model that reads values raises anything here; the measured step then tells.
    except Exception:
        return None


def _tracked(workload: Workload, batch: object, mode: FakeTensorMode) -> int | None:
    from torch.distributed._tools.mem_tracker import MemTracker

    fake = replace(workload, model=_without_values(workload.model, mode))
    given = pytree.tree_map_only(Tensor, mode.from_tensor, batch)
    step = TrainingStep(fake, fake.as_written())
    tracker = MemTracker()
    tensors = [one for one in pytree.tree_leaves(given) if isinstance(one, Tensor)]
    tracker.track_external(fake.model, *tensors)
    with tracker:
        step(given)  # makes the optimizer's state
        tracker.reset_mod_stats()
        step(given)
    peaks = tracker.get_tracker_snapshot("peak")
    return max((int(parts["Total"]) for parts in peaks.values()), default=0) or None


def _without_values(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of the model whose parameters and buffers have no values."""
    fakes: dict[int, object] = {}
    for parameter in model.parameters():
        fake = mode.from_tensor(parameter.detach())
        fakes[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        fakes[id(buffer)] = mode.from_tensor(buffer)
    with torch.no_grad():
        return copy.deepcopy(model, fakes)
