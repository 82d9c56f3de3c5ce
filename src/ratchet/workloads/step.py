"""One training step of a workload, configured by a StepConfig."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from ratchet.errors import WorkloadError
from ratchet.workloads import process
from ratchet.workloads.blame import blamed_step
from ratchet.workloads.checkpointing import apply_checkpointing
from ratchet.workloads.config import StepConfig
from ratchet.workloads.lowered import mixed_precision
from ratchet.workloads.recompilation import BoundedCompile
from ratchet.workloads.workload import Workload

ATTENTION_BACKENDS = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "math": [SDPBackend.MATH],
}


class WeightUpdate(Protocol):
    """The result of an optimizer factory: `step` clips, updates weights and zeroes gradients."""

    def step(self) -> Any: ...


class TrainingStep:
    """Forward, backward and update of a workload's model, in place.

    Parameters and their gradients are the same objects in every precision, compiled or not.
    `parameters` are the model's, by name. With `config.optimizer == "kernel"`, `optimizer_factory`
    receives this step and returns an object whose `step()` is the whole update.
    """

    def __init__(
        self,
        workload: Workload,
        config: StepConfig,
        *,
        compile_options: Mapping[str, Any] | None = None,
        optimizer_factory: Callable[[TrainingStep], WeightUpdate] | None = None,
    ) -> None:
        if compile_options and config.compile_mode is None:
            raise ValueError("compile_options need a compile_mode")
        if (config.optimizer == "kernel") != (optimizer_factory is not None):
            raise ValueError("optimizer 'kernel' and optimizer_factory go together")
        process.enter(config)
        self.workload = workload
        self.config = config
        self.model = workload.model.train()
        apply_checkpointing(self.model, config.checkpointing)
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.loss = compiled_loss(workload, config, compile_options)
        self.optimizer: Optimizer | WeightUpdate
        self.optimizer = optimizer_factory(self) if optimizer_factory else self._own_optimizer()

    def __call__(self, batch: Any) -> Tensor:
        """Run one whole step and return the detached loss, a scalar."""
        loss = self.forward_backward(batch)
        self.update()
        return loss

    def forward_backward(self, batch: Any) -> Tensor:
        """Return the detached loss and leave the gradients in the parameters."""
        with blamed_step(self.workload), self._attention():
            loss = self.loss(self.model, batch)
            torch.autograd.backward(loss)
        return loss.detach()

    def update(self) -> None:
        """Clip the gradients, step the optimizer, and drop the gradients."""
        with blamed_step(self.workload):
            self._update()

    def _update(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            self.optimizer.step()
            return
        if self.workload.clip_norm is not None:
            clip_grad_norm_(self.parameters.values(), self.workload.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.config.preallocate)

    def gradients(self) -> dict[str, Tensor]:
        """Return gradients by parameter name after `forward_backward`; zeros where missing."""
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.parameters.items()
        }

    def _attention(self) -> Any:
        backends = ATTENTION_BACKENDS.get(self.config.attention)
        return sdpa_kernel(backends) if backends else nullcontext()

    def _own_optimizer(self) -> Optimizer:
        optimizer = self.workload.optimizer(self.parameters.values())
        if self.config.optimizer in ("foreach", "fused"):
            select_implementation(optimizer, self.config.optimizer)
        return optimizer


def compiled_loss(
    workload: Workload, config: StepConfig, options: Mapping[str, Any] | None = None
) -> Callable[[nn.Module, Any], Tensor]:
    """Return the workload's loss at the config's precision, compiled if the config asks for it."""
    device_type = workload.device.split(":")[0]

    computed: Callable[[nn.Module, Any], Tensor] = workload.loss
    if config.compile_mode is not None:
        # torch.compile takes a mode or options, not both; a mode is shorthand for options.
        compile_options = {**mode_options(config.compile_mode), **(options or {})}
        computed = BoundedCompile(workload.loss, compile_options)
    if config.precision == "fp32":
        return computed

    def loss(model: nn.Module, batch: Any) -> Tensor:
        # Outside of the graph: torch's cache of differentiated graphs takes none that enters it.
        with mixed_precision(config.precision, device_type):
            return computed(model, batch)

    return loss


def mode_options(mode: str) -> dict[str, Any]:
    """Return the inductor options that a torch.compile mode stands for."""
    with warnings.catch_warnings():
        # Importing inductor touches torch.jit, which torch itself has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        import torch._inductor.compile_fx
    return dict(torch._inductor.list_mode_options(mode))


def select_implementation(optimizer: Optimizer, kind: str) -> None:
    """Switch a torch optimizer to its `foreach` or `fused` implementation.

    Raises WorkloadError if the optimizer has no such implementation.
    """
    other = "fused" if kind == "foreach" else "foreach"
    for settings in (optimizer.defaults, *optimizer.param_groups):
        if kind not in settings:
            raise WorkloadError(
                f"optimizer {type(optimizer).__name__} has no {kind} implementation; "
                "use optimizer as_written"
            )
        settings[kind], settings[other] = True, False
    if kind == "foreach":
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
