"""Describe a workload in the numbers that the turn needs; runs inside an arm's process."""

from __future__ import annotations

from typing import Any

from ratchet.optimize.step.signature import signature_of
from ratchet.workloads.counting import count
from ratchet.workloads.flops import step_flops
from ratchet.workloads.workload import Workload


def describe_workload(workload: Workload) -> dict[str, Any]:
    """Return parameters, tokens and FLOPs of one step, and the step's own settings (JSON)."""
    parameters = [p for p in workload.model.parameters() if p.requires_grad]
    counted = count(workload, workload.batch(0))
    return {
        "name": workload.name,
        "source": workload.source,
        "unit": counted.unit,
        "device": workload.device,
        "parameters": sum(p.numel() for p in parameters),
        "trainable_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "tokens_per_batch": counted.per_batch,
        "flops_per_step": step_flops(workload),
        "optimizer_is_adamw": is_adamw(workload),
        "optimizer": type(_optimizer(workload)).__name__,
        "model": signature_of(workload.model).model_dump(),
        "has_attention": has_attention(workload),
        "can_shrink": workload.shrink is not None,
        "written": workload.as_written().model_dump(),
    }


def has_attention(workload: Workload) -> bool:
    """Return True if one forward pass calls `scaled_dot_product_attention`."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode

    seen: list[bool] = []

    class AttentionWatch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is scaled_dot_product_attention:
                seen.append(True)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), AttentionWatch():
        workload.loss(workload.model, workload.batch(0))
    return bool(seen)


def is_adamw(workload: Workload) -> bool:
    """Return True if the optimizer is exactly torch's AdamW, so another AdamW may replace it."""
    import torch

    return type(_optimizer(workload)) is torch.optim.AdamW


def _optimizer(workload: Workload) -> object:
    import torch

    return workload.optimizer([torch.nn.Parameter(torch.zeros(1))])
