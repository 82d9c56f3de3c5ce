"""AdamW as one pass over memory: clipping, decay, moments, update and zeroing.

`step_adamw` steps a torch.optim.AdamW with its own groups and its own state, so hooks, schedules
and checkpoints see the optimizer that they know.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from ratchet.base.errors import KernelError
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LibraryKernel, references, registry
from ratchet.kernels.library.cases import library_problem
from ratchet.kernels.library.global_norm import global_norm, local_of
from ratchet.kernels.library.registration import NO_TENSOR
from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.kernels.library.sources import make_kernels
from ratchet.problems.problem import Case, Problem, TensorSpec

ENTRIES = ("gradient_square_sum", "adamw_step")
TENSORS_PER_PARAMETER: Final = 5
CLIP_EPS: Final = 1e-6
"""The constant of torch.nn.utils.clip_grad_norm_."""

Afterwards = Literal["keep", "zero", "drop"]
"""What becomes of the gradients: they stay, are zeroed in the same pass, or become None."""
_OF_TORCH: Final = ("amsgrad", "maximize", "differentiable", "capturable")
"""Settings of a group that only torch's own update knows."""


class Copies(Protocol):
    """bf16 copies of parameters that forward reads in their place (`ratchet.workloads.copies`)."""

    def read_by(self, parameter: nn.Parameter) -> nn.Parameter: ...

    def rounded(self, parameters: Iterable[nn.Parameter]) -> None: ...

    def hand_over(self) -> None: ...


@torch.no_grad()
def step_adamw(
    optimizer: torch.optim.AdamW,
    *,
    clip_norm: float | None = None,
    gradients: Afterwards = "keep",
    copies: Copies | None = None,
) -> None:
    """Update the parameters of a torch.optim.AdamW once, by the kernel where that is possible.

    The gradients' global 2-norm is clipped to `clip_norm` first, as by
    torch.nn.utils.clip_grad_norm_. The state has torch's layout (step, exp_avg, exp_avg_sq). The
    kernel takes dense fp32 parameters; torch's own update takes the others, and all of them in a
    group with amsgrad, maximize, differentiable or capturable. Parameters may be DTensors (FSDP2):
    the update works on local shards, and the norm spans the mesh. With `copies`, the gradient of a
    parameter that has a copy is the copy's, and the new value is rounded into the copy.
    """
    held = [one for group in optimizer.param_groups for one in group["params"]]
    work = [(group, _taken(group, copies)) for group in optimizer.param_groups]
    taken = {id(parameter) for _, own in work for parameter in own}
    if copies is not None and any(
        id(p) not in taken and _read_by(p, copies).grad is not None for p in held
    ):
        copies.hand_over()  # torch's update reads the parameters' own gradients
    found = [read for p in held if (read := _read_by(p, copies)).grad is not None]
    others = [p for p in held if p.grad is not None and id(p) not in taken]
    coefficient = 1.0
    if clip_norm is not None and others:
        nn.utils.clip_grad_norm_(found, clip_norm)
    elif clip_norm is not None and found:
        coefficient = _coefficient(found, clip_norm)
    for group, own in work:
        _update(optimizer, group, own, coefficient, copies, zero=gradients == "zero")
    if others:
        _step_by_torch(optimizer, others)
    if gradients == "drop":
        for read in found:
            read.grad = None
    elif gradients == "zero":
        for parameter in others:  # the kernel has zeroed the rest
            cast(Tensor, parameter.grad).zero_()


class AdamWUpdate:
    """The whole update of a training step by `step_adamw`: clip, step, clear the gradients."""

    def __init__(
        self,
        optimizer: torch.optim.AdamW,
        clip_norm: float | None,
        gradients: Afterwards,
        copies: Copies | None,
    ) -> None:
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        self.gradients = gradients
        self.copies = copies

    def step(self) -> None:
        """Clip, update, clear the gradients."""
        step_adamw(
            self.optimizer,
            clip_norm=self.clip_norm,
            gradients=self.gradients,
            copies=self.copies,
        )


def is_scaled(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a GradScaler leaves unscaling to the optimizer (torch's fused ones)."""
    return any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf"))


def step_by_torch(optimizer: torch.optim.Optimizer) -> None:
    """Run the optimizer's own step, without its hooks."""
    inspect.unwrap(type(optimizer).step)(optimizer)


def _taken(group: Mapping[str, Any], copies: Copies | None) -> list[nn.Parameter]:
    """Return the parameters of a group that the kernel updates now."""
    if not _is_for_kernel(group):
        return []
    return [one for one in group["params"] if _is_taken(one, _read_by(one, copies).grad)]


def _is_for_kernel(group: Mapping[str, Any]) -> bool:
    return not any(group.get(setting) for setting in _OF_TORCH)


def _read_by(parameter: nn.Parameter, copies: Copies | None) -> nn.Parameter:
    """Return the parameter or its copy, whichever has the gradient."""
    if copies is None or parameter.grad is not None:
        return parameter
    return copies.read_by(parameter)


def _is_taken(parameter: nn.Parameter, grad: Tensor | None) -> bool:
    return (
        grad is not None
        and parameter.dtype == torch.float32
        and grad.dtype in (torch.float32, torch.bfloat16)
        and grad.layout == torch.strided
    )


def _step_by_torch(optimizer: torch.optim.AdamW, others: Collection[nn.Parameter]) -> None:
    """Let torch update `others` alone, whichever groups they are in."""
    wanted = {id(parameter) for parameter in others}
    everyone = [group["params"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) in wanted]
        step_by_torch(optimizer)
    finally:
        for group, parameters in zip(optimizer.param_groups, everyone, strict=True):
            group["params"] = parameters


def _coefficient(parameters: list[nn.Parameter], clip_norm: float) -> float:
    norm = global_norm([cast(Tensor, parameter.grad) for parameter in parameters])
    # A NaN norm reaches the weights, as with torch's own clipping.
    wanted = clip_norm / (norm + CLIP_EPS)
    return wanted if not wanted > 1.0 else 1.0


def _update(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameters: Iterable[nn.Parameter],
    coefficient: float,
    copies: Copies | None,
    *,
    zero: bool,
) -> None:
    by_step: dict[float, list[Tensor]] = {}
    for parameter in parameters:
        state = _state_of(optimizer, parameter)
        state["step"] += 1
        own = _tensors(parameter, copies, state)
        by_step.setdefault(float(state["step"]), []).extend(own)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    lr, eps, decay = (float(group[key]) for key in ("lr", "eps", "weight_decay"))
    for step, tensors in by_step.items():
        scalars = (lr, beta1, beta2, eps, decay, step, coefficient, float(zero))
        if not registry.call("adamw_step", tensors, scalars):
            _composite(tensors, scalars)
    if copies is not None:
        copies.rounded(parameters)


def _state_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """Return a parameter's state; on its first step it starts as torch.optim.AdamW's does."""
    state: dict[str, Any] = optimizer.state[parameter]
    if "exp_avg" not in state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


def _tensors(
    parameter: nn.Parameter, copies: Copies | None, state: Mapping[str, Any]
) -> tuple[Tensor, ...]:
    """Return the five local tensors of a parameter, in the order of the C interface."""
    weight = local_of(parameter.detach())
    moments = local_of(state["exp_avg"]), local_of(state["exp_avg_sq"])
    grad = _lying_like(weight, _read_by(parameter, copies))
    read = parameter if copies is None else copies.read_by(parameter)
    return grad, *moments, weight, NO_TENSOR if read is parameter else read.detach()


def _lying_like(weight: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return the local gradient, in the weight's memory layout."""
    assert parameter.grad is not None
    grad = local_of(parameter.grad)
    if grad.stride() == weight.stride():
        return grad
    moved = torch.empty_like(weight, dtype=grad.dtype).copy_(grad)
    if grad is parameter.grad:
        parameter.grad = moved
    return moved


def _composite(tensors: list[Tensor], scalars: tuple[float, ...]) -> None:
    """Run the same update in plain torch, for inputs that no kernel takes."""
    for first in range(0, len(tensors), TENSORS_PER_PARAMETER):
        own = tensors[first : first + TENSORS_PER_PARAMETER]
        for tensor, value in zip(own, references.adamw_step(*own, scalars), strict=True):
            if value is not tensor:
                tensor.copy_(value)


def check_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.AdamW:
    """Return the optimizer if it is torch's AdamW itself; a KernelError if it is anything else."""
    if type(optimizer) is not torch.optim.AdamW:
        raise KernelError(
            f"the AdamW kernel cannot step a {type(optimizer).__name__}: use torch.optim.AdamW, or "
            "leave the optimizer as written"
        )
    return optimizer


def kernels(isa: str) -> tuple[Kernel, ...]:
    """Return the norm and the update for `isa`."""
    return make_kernels("adamw", "adamw.cpp", ENTRIES, isa)


SCALARS: Final = (1e-3, 0.9, 0.95, 1e-8, 0.1, 3.0, 0.5, 1.0)


def problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return the norm over a few gradients, and the update with and without a bf16 copy."""
    norm_cases = [
        Case(name=name, inputs=_gradients(shapes, name, timed), timed=timed, hidden=name == "tiny")
        for name, timed in (("normal", True), ("outliers", False), ("tiny", False))
    ]
    return (
        library_problem("gradient_square_sum", norm_cases),
        library_problem("adamw_step", _update_cases(shapes)),
    )


def _gradients(shapes: WorkloadShapes, distribution: str, timed: bool) -> tuple[TensorSpec, ...]:
    wanted = shapes.parameters if timed else ((77, 13), (5,))
    return tuple(
        TensorSpec(shape=shape, dtype="float32", distribution=distribution) for shape in wanted
    )


def _update_cases(shapes: WorkloadShapes) -> list[Case]:
    ragged = ((77, 13), (5,))
    cases = [_update_case("fp32", shapes.parameters, "normal", "float32", False, timed=True)]
    cases += [
        _update_case(f"fp32-{name}", ragged, name, "float32", False)
        for name in ("outliers", "zeros", "tiny", "large")
    ]
    cases.append(_update_case("bf16-copy", ragged, "normal", "bfloat16", True))
    cases.append(_update_case("bf16-hidden", ragged, "heavy_tailed", "float32", True, hidden=True))
    return cases


def _update_case(
    name: str,
    wanted: tuple[tuple[int, ...], ...],
    distribution: str,
    grad_dtype: str,
    copy: bool,
    *,
    timed: bool = False,
    hidden: bool = False,
) -> Case:
    specs: list[TensorSpec] = []
    for shape in wanted:
        plain = TensorSpec(shape=shape, dtype="float32", in_place=True)
        copied = TensorSpec(shape=shape if copy else (0,), dtype="bfloat16", in_place=True)
        grad = replace(plain, dtype=grad_dtype, distribution=distribution)
        specs += [grad, plain, replace(plain, distribution="positive"), plain, copied]
    return Case(name=name, inputs=tuple(specs), scalars=SCALARS, timed=timed, hidden=hidden)


LIBRARY_KERNEL = LibraryKernel(
    name="adamw",
    summary="AdamW with clipping, decay, zeroing and the bf16 copy in one pass over memory",
    source_of_idea="arXiv:1711.05101; one pass as in apex's FusedAdam and torch's fused AdamW",
    kernels=kernels,
    problems=problems,
)
