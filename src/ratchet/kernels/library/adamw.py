"""AdamW as one pass over memory: clipping, decay, moments, update, bf16 copy and zeroing.

`KernelAdamW` replaces torch.optim.AdamW. Its state has the same layout (step, exp_avg, exp_avg_sq),
plus `master` if it keeps fp32 masters of bf16 parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ratchet.errors import KernelError
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LibraryKernel, references, registry
from ratchet.kernels.library.cases import library_problem
from ratchet.kernels.library.global_norm import global_norm, local_of
from ratchet.kernels.library.registration import NO_TENSOR
from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.kernels.library.sources import make_kernels
from ratchet.kernels.problem import Case, Problem, TensorSpec

ENTRIES = ("gradient_square_sum", "adamw_step")
TENSORS_PER_PARAMETER: Final = 5
CLIP_EPS: Final = 1e-6
"""The constant of torch.nn.utils.clip_grad_norm_."""


class KernelAdamW(torch.optim.Optimizer):
    """AdamW (arXiv:1711.05101); `step(clip_norm=1.0)` clips, updates and clears the gradients.

    With `masters`, bf16 parameters are rounded copies of fp32 masters. A master starts from
    `master_values` if that has it (its memory then becomes the master), else from the parameter.
    Moments are always fp32. Parameters may be DTensors (FSDP2): the update works on local shards,
    and the norm spans the mesh.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        masters: bool = False,
        master_values: Mapping[nn.Parameter, Tensor] | None = None,
    ) -> None:
        _check_settings(float(lr), betas, eps, weight_decay)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.masters = masters
        self.grad_norm: float | None = None
        """The global norm before clipping, in the last step that clipped."""
        self._master_values = dict(master_values or {})

    @classmethod
    def taking_over(
        cls,
        optimizer: torch.optim.Optimizer,
        *,
        masters: bool = False,
        master_values: Mapping[nn.Parameter, Tensor] | None = None,
    ) -> KernelAdamW:
        """Return a KernelAdamW with the groups and the state of a torch.optim.AdamW."""
        if not isinstance(optimizer, torch.optim.AdamW):
            raise KernelError(
                f"a {type(optimizer).__name__} cannot be replaced by the AdamW kernel: "
                "use torch.optim.AdamW, or leave the optimizer as written"
            )
        kept = ("params", "lr", "betas", "eps", "weight_decay")
        check_groups(optimizer)
        groups = [{key: group[key] for key in kept} for group in optimizer.param_groups]
        made = cls(groups, masters=masters, master_values=master_values)
        if optimizer.state:
            made.load_state_dict(optimizer.state_dict())
        return made

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: Callable[[], float] | None = None,
        *,
        clip_norm: float | None = None,
        set_to_none: bool = False,
    ) -> float | None:
        """Update the parameters from the gradients, then clear these.

        The gradients' global 2-norm is clipped to `clip_norm` first, as by
        torch.nn.utils.clip_grad_norm_. The same pass zeroes gradients in place; with `set_to_none`
        they are dropped instead, which saves writing them.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [(group, self._with_gradients(group)) for group in self.param_groups]
        coefficient = self._coefficient([p for _, found in work for p in found], clip_norm)
        for group, parameters in work:
            self._update(group, parameters, coefficient, not set_to_none)
        if set_to_none:
            for _, parameters in work:
                for parameter in parameters:
                    parameter.grad = None
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` of this class or of torch.optim.AdamW returned."""
        for group in state_dict["param_groups"]:
            _check_group(group)
        super().load_state_dict(state_dict)
        # torch casts loaded state to the parameter's dtype; moments and masters stay fp32.
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, parameter in zip(saved, own, strict=True):
            values = state_dict["state"].get(index, {})
            for key in ("exp_avg", "exp_avg_sq", "master"):
                if key in values and parameter.dtype != torch.float32:
                    value = values[key].to(device=parameter.device, dtype=torch.float32)
                    self.state[parameter][key] = value.clone()

    def _with_gradients(self, group: dict[str, Any]) -> list[nn.Parameter]:
        found = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in found:
            assert parameter.grad is not None
            if parameter.grad.is_sparse:
                raise KernelError(
                    "the AdamW kernel takes no sparse gradient: set sparse=False on the embedding"
                )
            self._ready(parameter)
        return found

    def _ready(self, parameter: nn.Parameter) -> None:
        """Give a parameter its state on its first step, as torch.optim.AdamW does."""
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
        if self.masters and parameter.dtype == torch.bfloat16 and "master" not in state:
            state["master"] = self._first_master(parameter)

    def _first_master(self, parameter: nn.Parameter) -> Tensor:
        given = self._master_values.pop(parameter, None)
        if given is not None and given.dtype == torch.float32:
            return given.detach()
        return parameter.detach().float()

    def _coefficient(self, parameters: list[nn.Parameter], clip_norm: float | None) -> float:
        if clip_norm is None or not parameters:
            return 1.0
        norm = global_norm([cast(Tensor, parameter.grad) for parameter in parameters])
        self.grad_norm = norm
        # A NaN norm reaches the weights, as with torch's own clipping.
        wanted = clip_norm / (norm + CLIP_EPS)
        return wanted if not wanted > 1.0 else 1.0

    def _update(
        self,
        group: dict[str, Any],
        parameters: Iterable[nn.Parameter],
        coefficient: float,
        zero: bool,
    ) -> None:
        by_step: dict[float, list[Tensor]] = {}
        for parameter in parameters:
            step = self.state[parameter]["step"]
            step += 1
            by_step.setdefault(float(step), []).extend(self._tensors(parameter))
        beta1, beta2 = (float(beta) for beta in group["betas"])
        lr, eps, decay = (float(group[key]) for key in ("lr", "eps", "weight_decay"))
        for step, tensors in by_step.items():
            scalars = (lr, beta1, beta2, eps, decay, step, coefficient, float(zero))
            if not registry.call("adamw_step", tensors, scalars):
                _composite(tensors, scalars)

    def _tensors(self, parameter: nn.Parameter) -> tuple[Tensor, ...]:
        """Return the five local tensors of a parameter, in the order of the C interface."""
        state = self.state[parameter]
        weight = local_of(parameter.detach())
        grad = _lying_like(weight, parameter)
        moments = local_of(state["exp_avg"]), local_of(state["exp_avg_sq"])
        if "master" in state:
            return grad, *moments, local_of(state["master"]), weight
        return grad, *moments, weight, NO_TENSOR


class ClippedAdamW:
    """A KernelAdamW with its clipping: `step()` is the whole update of a training step."""

    def __init__(self, optimizer: KernelAdamW, clip_norm: float | None, set_to_none: bool) -> None:
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        self.set_to_none = set_to_none

    def step(self) -> None:
        """Clip, update, clear the gradients."""
        self.optimizer.step(clip_norm=self.clip_norm, set_to_none=self.set_to_none)


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


def _check_settings(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    in_range = lr >= 0 and eps >= 0 and weight_decay >= 0 and all(0 <= b < 1 for b in betas)
    if not in_range:
        raise KernelError(
            f"AdamW settings lr={lr}, betas={betas}, eps={eps}, weight_decay={weight_decay} are "
            "out of range: lr, eps and weight_decay are at least 0, betas in [0, 1)"
        )


def check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Raise a KernelError if a group uses a setting that the kernel lacks."""
    for group in optimizer.param_groups:
        _check_group(group)


def _check_group(group: Mapping[str, Any]) -> None:
    for setting in ("amsgrad", "maximize", "differentiable"):
        if group.get(setting):
            raise KernelError(
                f"the AdamW kernel does not support {setting}: turn it off, or leave the optimizer "
                "as written"
            )


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
