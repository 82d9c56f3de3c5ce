"""bf16 weights with fp32 masters: forward casts no weight, and small updates are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


def lower_weights(model: nn.Module) -> dict[str, Tensor]:
    """Convert trained parameters of two or more dimensions to bf16, in place.

    Returns each converted parameter's fp32 value from before rounding, by name. One-dimensional
    parameters (biases, norm weights) stay fp32. A shared parameter appears once, under its first
    name.
    """
    masters: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        trained = parameter.requires_grad and parameter.is_floating_point()
        if trained and parameter.dim() >= 2:
            masters[name] = parameter.detach().float()
            parameter.data = parameter.data.to(torch.bfloat16)
    return masters


class MasterWeights:
    """An optimizer over fp32 masters of bf16 parameters (Micikevicius et al. 2018, section 3.1).

    `clip` limits the global fp32 norm of the gradients. `step` upcasts the gradients, steps the
    masters and copies them back. Parameters without a master are stepped directly.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        masters: Mapping[str, Tensor],
        make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    ) -> None:
        self.parameters = list(parameters.values())
        self.pairs = [(parameters[name], nn.Parameter(masters[name])) for name in masters]
        plain = [parameter for name, parameter in parameters.items() if name not in masters]
        self.stepped = [master for _, master in self.pairs] + plain
        self.optimizer = make_optimizer(self.stepped)

    def clip(self, norm: float) -> None:
        """Clip the gradients' global norm, computed in fp32, to `norm`."""
        self._upcast()
        clip_grad_norm_(self.stepped, norm)

    def step(self) -> None:
        """Update masters and parameters once from the parameters' gradients."""
        self._upcast()
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in self.pairs:
                parameter.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or zero the parameters' gradients in place."""
        for parameter in (*self.parameters, *self.stepped):
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()

    def _upcast(self) -> None:
        # Clear each gradient after taking it, so that `clip` followed by `step` upcasts once.
        for parameter, master in self.pairs:
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None
