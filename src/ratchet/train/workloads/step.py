"""One training step of a workload, configured by a StepConfig."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.blame import blamed_on, blamed_step
from ratchet.train.workloads.checkpointing import apply_checkpointing
from ratchet.train.workloads.compiling import (
    BoundedCompile,
    CompileOptions,
    compile_units,
    is_on_ranks,
)
from ratchet.train.workloads.config import AUTOCAST, REPLAYING, StepConfig
from ratchet.train.workloads.deferred_logits import apply_logits
from ratchet.train.workloads.device import current
from ratchet.train.workloads.fp8_products import apply_products
from ratchet.train.workloads.lowered import WeightCopies, mixed_precision
from ratchet.train.workloads.own_step import (
    BatchStep,
    Install,
    autocasts,
    loss_returned,
    own_step,
    updates_undone,
)
from ratchet.train.workloads.updates import (
    UpdateInBackward,
    check_in_backward,
    fuse,
    has_implementation,
)
from ratchet.train.workloads.workload import ALONE, Batch, LossFunction, Workload, split_batch

ATTENTION_BACKENDS = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
    "math": [SDPBackend.MATH],
}


class WeightUpdate(Protocol):
    """The result of an optimizer factory: `step` clips, updates weights and zeroes gradients."""

    def step(self) -> object: ...


class TrainingStep:
    """Forward, backward and update of a workload's model, in place.

    Parameters and their gradients are the same objects in every precision, compiled or not. `fp32`
    makes the weights of a bf16 or fp16 model fp32, and with them its batches: a reference.
    `parameters` are the model's, by name. With `config.optimizer == "kernel"`, `optimizer_factory`
    receives this step and returns an object whose `step()` is the whole update.

    A workload's own `train_step` runs as it is; `install` makes it run as the config says.
    """

    def __init__(
        self,
        workload: Workload,
        config: StepConfig,
        *,
        compile_options: CompileOptions | None = None,
        optimizer_factory: Callable[[TrainingStep], WeightUpdate] | None = None,
        install: Install | None = None,
    ) -> None:
        if compile_options and config.compile_mode is None:
            raise ValueError("compile_options need a compile_mode")
        if config.update_in_backward:
            check_in_backward(workload, config)
        self.workload = workload
        self.config = config
        with current(workload.device):
            self._build(compile_options, optimizer_factory, install)

    def _build(
        self,
        compile_options: CompileOptions | None,
        optimizer_factory: Callable[[TrainingStep], WeightUpdate] | None,
        install: Install | None,
    ) -> None:
        workload, config = self.workload, self.config
        config.enter()
        self.model = workload.model.train()
        apply_checkpointing(self.model, config.checkpointing)
        apply_logits(self.model, config.logits)
        apply_products(self.model, config.products)
        own_precision = workload.as_written().precision
        self._raises = config.precision == "fp32" and own_precision in ("bf16", "fp16")
        if self._raises:
            self.model.float()
        self.optimizers: dict[str, Optimizer | WeightUpdate]
        self.own: BatchStep | None = None
        """The workload's own step as the config runs it; None for a step of a loss."""
        self._kept: dict[str, Tensor] = {}
        self._in_backward: UpdateInBackward | None = None
        self.copies: WeightCopies | None = None
        if workload.train_step is not None:
            self._take_own(install)
            return
        if (config.optimizer == "kernel") != (optimizer_factory is not None):
            raise ValueError("optimizer 'kernel' and optimizer_factory go together")
        self.parameters = workload.trained()
        self.loss = compiled_loss(workload, config, compile_options)
        self.copies = copies_for(workload, config)
        if optimizer_factory is not None:
            self.optimizers = {ALONE: optimizer_factory(self)}
        else:
            made = workload.make_optimizers()
            for one in made.values() if config.optimizer == "fused" else ():
                if len(made) == 1 or has_implementation(one, "fused", self.model):
                    fuse(one)
            self.optimizers = {**made}
        if config.update_in_backward:
            stepped = [one for one in self.optimizers.values() if isinstance(one, Optimizer)]
            self._in_backward = UpdateInBackward(stepped)
        self._schedules = [self._schedule(one) for one in self.optimizers.values()]

    def _take_own(self, install: Install | None) -> None:
        """Take the workload's own step, as `install` makes it run."""
        if self.config.micro_batches > 1:
            raise WorkloadError(
                f"workload {self.workload.name!r} has a train_step of its own, which takes whole "
                "batches: leave micro_batches at 1, and cut them in the train_step"
            )
        self.parameters = self.workload.trained()
        made = self.workload.make_optimizers()
        self.optimizers = {**made}
        with blamed_step(self.workload):
            self.own = own_step(self.workload, made)
        if install is not None:
            self.own = install(self.own, self.model, list(made.values()))
        elif (self.config.compile_mode, self.config.optimizer) != (None, "as_written"):
            raise ValueError("a train_step needs `install` to run differently than written")

    @property
    def optimizer(self) -> Optimizer | WeightUpdate:
        return next(iter(self.optimizers.values()))

    @property
    def own_notes(self) -> list[str]:
        """The notes on how a `train_step` runs by its config."""
        return list(getattr(self.own, "notes", ()))

    def __call__(self, batch: Batch) -> Tensor:
        """Run one whole step and return the detached loss, a scalar.

        A step that accumulates takes the list of its batches and returns the mean of their losses.
        """
        if self.own is not None:
            with self._entered():
                return loss_returned(self.workload, self.own(self._given(batch)))
        with self._in_backward.open() if self._in_backward else nullcontext():
            loss = self.forward_backward(batch)
        self.update()
        return loss

    def forward_backward(self, batch: Batch) -> Tensor:
        """Return the detached loss and leave the gradients in the parameters.

        A `train_step` runs whole, with its update undone; `gradients` then returns what it read.
        """
        if self.own is not None:
            stepped = [one for one in self.optimizers.values() if isinstance(one, Optimizer)]
            with updates_undone(self.parameters, stepped) as self._kept:
                return self(batch)
        batches = batch if self.workload.accumulate > 1 else [batch]
        parts = [part for one in batches for part in split_batch(one, self.config.micro_batches)]
        losses = []
        for place, part in enumerate(parts, start=1):
            if self.workload.sync is not None and len(parts) > 1:
                self.workload.sync(place == len(parts))
            losses.append(self._backward(part, len(parts)))
            if place == 1 < len(parts) and replays(self.workload, self.config):
                # Out of a replayed graph's memory, which the next part writes over.
                for one in self.parameters.values():
                    one.grad = None if one.grad is None else one.grad.clone()
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def _backward(self, batch: Batch, count: int) -> Tensor:
        with self._entered(), self.copies.in_place() if self.copies else nullcontext():
            loss = self.loss(self.model, self._given(batch))
            torch.autograd.backward(loss if count == 1 else loss / count)
        if self.copies and self.config.optimizer != "kernel":
            self.copies.hand_over()
        return loss.detach()

    def close(self) -> None:
        """Take the step's hooks off the parameters, so that another step can train them."""
        if self._in_backward is not None:
            self._in_backward.remove()

    def update(self) -> None:
        """Clip the gradients, step the optimizers and schedules, and drop the gradients."""
        workload = self.workload
        written = [one for one in self.optimizers.values() if isinstance(one, Optimizer)]
        with (
            blamed_on(f"workload {workload.name!r}: its update"),
            blamed_step(workload),
            current(workload.device),
        ):
            if workload.clip_norm is not None and written:  # all gradients at once
                clip_grad_norm_(self.parameters.values(), workload.clip_norm)
            for one in (*self.optimizers.values(), *filter(None, self._schedules)):
                one.step()
            for optimizer in written:
                optimizer.zero_grad(set_to_none=not self.config.preallocate)

    def gradients(self) -> dict[str, Tensor]:
        """Return gradients by parameter name after `forward_backward`; zeros where missing."""
        found = {}
        for name, parameter in self.parameters.items():
            read = self.copies.with_gradient(parameter) if self.copies else parameter
            found[name] = torch.zeros_like(parameter) if read.grad is None else read.grad
        return {name: self._kept.get(name, gradient) for name, gradient in found.items()}

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Run what is enclosed in the config's attention and precision, faults blamed."""
        workload = self.workload
        contexts = [blamed_step(workload), current(workload.device)]
        if backends := ATTENTION_BACKENDS.get(self.config.attention):
            contexts.append(sdpa_kernel(backends))
        if self.own is not None and "fp32" == self.config.precision != workload.precision:
            contexts.append(autocasts(off=True))
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            yield

    def _given(self, batch: Batch) -> Batch:
        return raised(batch) if self._raises else batch

    def _schedule(self, update: object) -> LRScheduler | None:
        make = self.workload.scheduler
        optimizer = update if isinstance(update, Optimizer) else getattr(update, "optimizer", None)
        return make(optimizer) if make is not None and optimizer is not None else None


def raised(batch: Batch) -> Batch:
    """Return a batch whose bf16 and fp16 tensors are fp32."""

    def raise_one(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor

    return pytree.tree_map_only(Tensor, raise_one, batch)


def compiled_loss(
    workload: Workload, config: StepConfig, options: CompileOptions | None = None
) -> LossFunction:
    """Return the workload's loss at the config's precision, compiled if the config asks for it.

    For `bf16_master` it runs inside `copies_for(workload, config).in_place()`, where there are any.
    """
    assert workload.loss is not None, "the workload has a train_step"
    device_type = workload.device.split(":")[0]

    computed: LossFunction = workload.loss
    if config.compile_mode is not None:
        # torch.compile takes a mode or options, not both; a mode is shorthand for options.
        compile_options = {**inductor_options(config), **(options or {})}
        if not compile_units(workload.model, compile_options):
            computed = BoundedCompile(workload.loss, compile_options)
    if config.precision not in AUTOCAST:
        return computed
    precision = config.precision if casts_in_graphs(workload, config) else "bf16_autocast"

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        # Outside of the graph: torch's cache of differentiated graphs takes none that enters it.
        with mixed_precision(precision, device_type):
            return computed(model, batch)

    return loss


def copies_for(workload: Workload, config: StepConfig) -> WeightCopies | None:
    """Return the bf16 copies that the step of a workload with a `loss` runs on; None without.

    A step that accumulates adds its gradients up in fp32, and ranks reduce those of the parameters,
    so such steps cast weights in their graphs.
    """
    if config.precision != "bf16_master" or casts_in_graphs(workload, config):
        return None
    return WeightCopies(workload.model)


def replays(workload: Workload, config: StepConfig) -> bool:
    """Return True if a config's compiled step replays graphs of launches on the workload's GPU."""
    return workload.device != "cpu" and config.compile_mode in REPLAYING


def casts_in_graphs(workload: Workload, config: StepConfig) -> bool:
    """Return True if a step has several backward passes, or ranks that reduce its gradients."""
    return workload.accumulate * config.micro_batches > 1 or is_on_ranks(workload.model)


def inductor_options(config: StepConfig) -> CompileOptions:
    """Return the inductor options of a config that compiles: its mode's, and its tuning."""
    with warnings.catch_warnings():
        # Importing inductor touches torch.jit, which torch itself has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        import torch._inductor.compile_fx
    return torch._inductor.list_mode_options(config.compile_mode) | config.inductor_options()
