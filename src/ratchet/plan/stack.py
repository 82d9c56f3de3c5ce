"""Habits of a training stack, as far as time and memory depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ratchet.base.errors import PlanError


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Properties of the software that runs the step."""

    name: str
    flash: bool = True
    """True if attention is fused; otherwise its scores are written and kept."""
    sequence_parallel: bool = True
    """True if tensor parallel ranks split the sequence between the products."""
    cast_bytes: float = 6.0
    """Bytes moved for an element that enters an fp8 product: torchao reads it for its largest
    value, reads it again and writes it in both orders; Transformer Engine fuses these."""
    logit_bytes: float = 14.0
    """Bytes held for a logit. Plain cross entropy has it in bf16 and fp32, its log-softmax and its
    fp32 gradient; a fused one keeps the fp32 logit, overwritten by its gradient, and the bf16."""
    keeps_fp8: bool = False
    """True if inputs of fp8 products are kept in fp8 for the backward pass."""
    element_bytes: float = 2.0
    """Bytes of a weight or an activation in the forward pass; with 4, there is no master copy."""
    overlap_tensor: float = 0.0
    """Share of tensor parallelism's collectives that run beside products (async TP)."""


STACKS: Final = {
    stack.name: stack
    for stack in (
        Stack(name="torch"),
        Stack(name="megatron", cast_bytes=3.0, logit_bytes=6.0, keeps_fp8=True),
    )
}
WRITTEN_FP32: Final = Stack(
    name="fp32", element_bytes=4.0, logit_bytes=12.0, sequence_parallel=False
)
"""The step of a built-in workload as written: eager and in fp32. The logits, their log-softmax and
their gradient take four bytes each."""
"""`torch` is torchtitan: FSDP2, DTensor, SDPA and torch.compile. `megatron` is Megatron-LM with
Transformer Engine."""


def find_stack(name: str) -> Stack:
    """Return a stack by name; PlanError lists the known ones for any other name."""
    if name not in STACKS:
        raise PlanError(f"stack {name!r} is unknown: use one of {', '.join(STACKS)}")
    return STACKS[name]
