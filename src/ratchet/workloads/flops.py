"""Floating-point operations of one training step, for MFU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop, sdpa_flop

from ratchet.workloads.fake import pretend
from ratchet.workloads.workload import Workload

aten = torch.ops.aten


def _forward_flops(query: Any, key: Any, value: Any, *args: Any, out_val: Any, **kw: Any) -> int:
    return int(sdpa_flop(query.shape, key.shape, value.shape))


def _backward_flops(
    grad: Any, query: Any, key: Any, value: Any, *args: Any, out_val: Any, **kw: Any
) -> int:
    return int(sdpa_backward_flop(grad.shape, query.shape, key.shape, value.shape))


CPU_ATTENTION: dict[Any, Any] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _forward_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward_flops,
}
"""Formulas for the CPU's fused attention, whose products torch counts only on CUDA."""
for _formula in CPU_ATTENTION.values():
    _formula._get_raw = True

_counted: WeakKeyDictionary[Workload, int] = WeakKeyDictionary()


def step_flops(workload: Workload) -> int:
    """Count the eager model's forward and backward operations with torch's flop counter.

    A multiply-add counts as two. Matrix products, convolutions and attention are counted; causal
    attention counts in full, as is usual for MFU. Recomputation by checkpointing is not counted.
    The result is cached.
    """
    if workload not in _counted:
        _counted[workload] = _count(workload)
    return _counted[workload]


def _count(workload: Workload) -> int:
    batch = workload.batch(0)
    counted = pretend(workload, batch, lambda forward, _: _counting(workload, forward))
    if counted is not None:
        return counted
    return _counting(workload, lambda: workload.loss(workload.model, batch))


def _counting(workload: Workload, forward: Callable[[], Tensor]) -> int:
    parameters = [p for p in workload.model.parameters() if p.requires_grad]
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        torch.autograd.grad(forward(), parameters, allow_unused=True)
    return int(counter.get_total_flops())
