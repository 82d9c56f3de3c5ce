"""bf16 weights with fp32 masters: the forward casts no weight, the update loses no small step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


def lower_weights(model: nn.Module) -> dict[str, Tensor]:
    """Make the trained parameters of two or more dimensions bf16, in place; return what they were.

    The result maps the parameter's name to its fp32 value before rounding. Norms' weights and
    biases (one dimension) stay fp32. A shared parameter appears once, under its first name.
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

    `step` upcasts the gradients, clips their global fp32 norm, steps the masters and copies them
    back. Parameters without a master are stepped as they are.
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
        """Bring the gradients' global norm, taken in fp32, down to `norm`."""
        self._upcast()
        clip_grad_norm_(self.stepped, norm)

    def step(self) -> None:
        """One update of masters and parameters from the parameters' gradients."""
        self._upcast()
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in self.pairs:
                parameter.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or zero those of the parameters in place."""
        for parameter in (*self.parameters, *self.stepped):
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()

    def _upcast(self) -> None:
        # A gradient that was taken is cleared, so that `clip` then `step` upcasts once.
        for parameter, master in self.pairs:
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None
