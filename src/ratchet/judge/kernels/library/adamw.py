"""AdamW as one pass over memory: clipping, decay, moments, update and zeroing.

`step_adamw` steps a torch.optim.AdamW with its own groups and its own state, so hooks, schedules
and checkpoints see the optimizer that they know.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.custom_op import NO_TENSOR
from ratchet.judge.kernels.library.sources import LibraryKernel, Variant
from ratchet.judge.problems.suites.shipped import adamw as reference
from ratchet.judge.problems.suites.shipped.adamw import ENTRIES, adamw_problems

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Sharding: TypeAlias = "tuple[tuple[DeviceMesh, int], ...]"
"""The meshes and dimensions that a gradient is sharded over."""
TENSORS_PER_PARAMETER: Final = 5
CLIP_EPS: Final = 1e-6  # The constant of torch.nn.utils.clip_grad_norm_

Afterwards = Literal["keep", "zero", "drop"]
"""The gradients' fate: they stay, are zeroed in the same pass, or become None."""
_OF_TORCH: Final = ("amsgrad", "maximize", "differentiable", "capturable")
"""Settings of a group that only torch's own update knows."""


class Copies(Protocol):
    """bf16 copies of parameters that forward reads in their place."""

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
    if any(group.get(setting) for setting in _OF_TORCH):
        return []
    return [one for one in group["params"] if _is_taken(one, _read_by(one, copies).grad)]


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
        if registry.call("adamw_step", tensors, scalars) is None:
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
        for tensor, value in zip(own, reference.adamw_step(*own, scalars), strict=True):
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


def local_of(tensor: Tensor) -> Tensor:
    """Return a DTensor's local shard without a copy; any other tensor unchanged."""
    if _is_dtensor(tensor):
        shard: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
        return shard
    return tensor


def global_norm(gradients: Sequence[Tensor]) -> float:
    """Return the 2-norm of all `gradients`; sharded ones are summed over their mesh.

    Every process of a mesh must call it with the same parameters.
    """
    total = 0.0
    for sharding, members in _by_sharding(gradients).items():
        part = _square_sum([local_of(member) for member in members])
        for mesh, dimension in sharding:
            torch.distributed.all_reduce(part, group=mesh.get_group(dimension))
        total += float(part)
    return math.sqrt(total)


def _square_sum(gradients: Sequence[Tensor]) -> Tensor:
    out = torch.empty(1, dtype=torch.float32, device=gradients[0].device)
    found = registry.call("gradient_square_sum", gradients, (), (out,))
    return (
        found[0] if found is not None else reference.gradient_square_sum(*gradients, ())[0].float()
    )


def _by_sharding(gradients: Sequence[Tensor]) -> dict[Sharding, list[Tensor]]:
    """Group gradients by the mesh dimensions that they are sharded over; () for whole ones."""
    found: dict[Sharding, list[Tensor]] = {}
    for gradient in gradients:
        found.setdefault(_sharding(gradient), []).append(gradient)
    return found


def _sharding(gradient: Tensor) -> Sharding:
    if not _is_dtensor(gradient):
        return ()
    mesh, placements = gradient.device_mesh, gradient.placements  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise KernelError(
            f"a gradient is placed {placements}, not yet summed: redistribute it before the step"
        )
    return tuple((mesh, axis) for axis, placed in enumerate(placements) if placed.is_shard())


def _is_dtensor(tensor: Tensor) -> bool:
    # No import, since that is slow: a caller with a DTensor has imported its module.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


ADAMW = LibraryKernel(
    name="adamw",
    module=__name__,
    problems=adamw_problems,
    summary="AdamW with clipping, decay, zeroing and the bf16 copy in one pass over memory",
    source_of_idea="arXiv:1711.05101; one pass as in apex's FusedAdam and torch's fused AdamW",
    variants=(
        Variant(language="cpp", file="adamw", entries=ENTRIES["adamw"]),
        Variant(language="triton", file="adamw", entries=ENTRIES["adamw"]),
    ),
    acts_on=("optimizer",),
    examples={},  # a function, not an op
)
