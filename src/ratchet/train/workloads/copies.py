"""bf16 copies of a model's fp32 weights, for steps whose whole update Ratchet runs.

The parameters stay fp32 and are what everybody else sees. Forward and backward run on the copies,
which collect the gradients in bf16; the update reads those, steps the parameters and rounds them
into the copies in one pass (Micikevicius et al. 2018, section 3.1). So no step casts a weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ratchet.train.workloads.lowered import is_weight


class WeightCopies:
    """One bf16 copy of each trained fp32 weight of two or more dimensions.

    A copy is made when the weight is first used and made again if the weight has changed since:
    another version or another memory. (An edit in place through `.data` leaves neither; the next
    update brings it into the copy.)
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._copies: dict[nn.Parameter, nn.Parameter] = {}
        self._states: dict[nn.Parameter, tuple[int, int]] = {}
        """Version and address of each weight when its copy was made."""

    def read_by(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return what forward reads for a parameter, and where its gradient arrives."""
        return self._copies.get(parameter, parameter)

    def with_gradient(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the copy while it has the gradient, else the parameter."""
        copy = self._copies.get(parameter)
        return parameter if copy is None or copy.grad is None else copy

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model's modules hold the copies, all of them up to date."""
        swapped: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter]] = []
        try:
            for module in self.model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and is_weight(parameter):
                        swapped.append((module._parameters, name, parameter))
            for held, name, parameter in swapped:
                held[name] = self._fresh(parameter)
            yield
        finally:
            for held, name, parameter in swapped:
                held[name] = parameter

    def rounded(self, parameters: Iterable[nn.Parameter]) -> None:
        """Note that an update has just rounded the parameters into their copies."""
        for parameter in parameters:
            self._states[parameter] = _state(parameter)

    def hand_over(self) -> None:
        """Add the copies' gradients to the parameters' own, in fp32, and drop them.

        Another update will read them, so the copies are made again before they are used: torch's
        fused updates leave no new version behind.
        """
        self._states.clear()
        for parameter, copy in self._copies.items():
            if copy.grad is None:
                continue
            if parameter.grad is None:
                parameter.grad = copy.grad.float()
            else:
                parameter.grad.add_(copy.grad)
            copy.grad = None

    def _fresh(self, parameter: nn.Parameter) -> nn.Parameter:
        copy = self._copies.get(parameter)
        if copy is None:
            copy = nn.Parameter(_rounded(parameter))
            self._copies[parameter] = copy
        elif self._states.get(parameter) != _state(parameter):
            copy.data.copy_(parameter.detach())
        self._states[parameter] = _state(parameter)
        return copy


def _state(parameter: nn.Parameter) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()


def _rounded(parameter: nn.Parameter) -> Tensor:
    return parameter.detach().to(torch.bfloat16)
