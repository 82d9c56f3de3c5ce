"""The arithmetic of a call, counted as torch's FlopCounterMode does it and without its import.

Its first call imports torch._dynamo, which takes longer than torch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop


def forward_flops(query: Any, key: Any, value: Any, *args: Any, out_val: Any, **kw: Any) -> int:
    """Return the operations of fused attention; shapes are [batch, heads, length, size]."""
    return int(sdpa_flop(query.shape, _with_heads_of(query, key), _with_heads_of(query, value)))


def backward_flops(
    grad: Any, query: Any, key: Any, value: Any, *args: Any, out_val: Any, **kw: Any
) -> int:
    """Return the operations of its backward, as `forward_flops`."""
    groups = _with_heads_of(query, key), _with_heads_of(query, value)
    return int(sdpa_backward_flop(grad.shape, query.shape, *groups))


def _with_heads_of(query: Any, tensor: Any) -> tuple[int, ...]:
    """Return the shape of keys or values with the query's heads: torch 2.11 counts no groups."""
    return (tensor.shape[0], query.shape[1], *tensor.shape[2:])


aten = torch.ops.aten
ATTENTION: Final[dict[Any, Any]] = {
    aten._scaled_dot_product_flash_attention: forward_flops,
    aten._scaled_dot_product_flash_attention_backward: backward_flops,
    aten._scaled_dot_product_efficient_attention: forward_flops,
    aten._scaled_dot_product_efficient_attention_backward: backward_flops,
    aten._scaled_dot_product_cudnn_attention: forward_flops,
    aten._scaled_dot_product_cudnn_attention_backward: backward_flops,
}
"""Formulas for the fused attention of GPUs, whose heads may have groups."""


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of products and convolutions in what runs under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, so dynamo need not be told to look away

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator, or what it is composed of, and count it."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):  # torch's operators of higher order
            return func(*args, **kwargs)
        packet = func._overloadpacket
        formula = ATTENTION.get(packet) or flop_registry.get(packet)
        if formula is None and func.namespace == "aten":
            with self:
                composed = func.decompose(*args, **kwargs)
            if composed is not NotImplemented:
                return composed
        output = func(*args, **kwargs)
        if formula is not None:
            self.total += float(formula(*args, **kwargs, out_val=output))
        return output
