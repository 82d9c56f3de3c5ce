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
    logit_traffic: float = 20.0
    """Bytes moved for a logit by the loss, forward and backward. Eager: the cast to fp32 (6), the
    log-softmax (8), its gradient's zeros (4), the gradient (12), the cast back (6), beside the
    product's own result (6)."""
    ampere_attention: bool = False
    """True if fused attention has only the instructions of an A100, as FlashAttention-2 in SDPA."""
    overlaps_data: bool = True
    """True if gradients are reduced while the backward pass runs, not behind it."""
    reduced_bytes: float = 4.0
    """Bytes of a gradient that is reduced among replicas."""
    accumulated_bytes: float = 0.0
    """Bytes moved to add a micro-batch's gradient to those before it; 0 if the product does it."""
    splits_sends: bool = True
    """True if tensor parallel ranks send a part each of what goes to the next stage
    (arXiv:2104.04473, section 4.1); otherwise each of them sends all of it."""
    exposed_sends: float = 0.2
    """Share of the sends between stages that nothing hides once the pipeline is full."""


STACKS: Final = {
    stack.name: stack
    for stack in (
        Stack(name="torch", ampere_attention=True),
        Stack(name="torch-eager", ampere_attention=True, logit_traffic=42.0),
        Stack(name="megatron", cast_bytes=3.0, logit_bytes=6.0, keeps_fp8=True),
        Stack(name="megatron-2022", flash=False, logit_bytes=6.0, overlaps_data=False),
        Stack(
            name="megatron-2021", flash=False, sequence_parallel=False, logit_bytes=6.0,
            overlaps_data=False, reduced_bytes=2.0, accumulated_bytes=6.0,
        ),
        Stack(
            name="deepspeed", flash=False, sequence_parallel=False, logit_bytes=6.0,
            overlaps_data=False, reduced_bytes=2.0, accumulated_bytes=6.0,
            splits_sends=False, exposed_sends=1.0,
        ),
    )
}  # fmt: skip
"""`torch` is torchtitan: FSDP2, DTensor, SDPA and torch.compile; `torch-eager` the same without
torch.compile. `megatron` is Megatron-LM with Transformer Engine; `megatron-2022` has sequence
parallelism and selective recomputation (arXiv:2205.05198) but no fused attention, `megatron-2021`
neither (arXiv:2104.04473). `deepspeed` is Megatron-DeepSpeed of 2022, in which MT-NLG and BLOOM
were trained: its pipeline waits for its sends."""
WRITTEN_FP32: Final = Stack(
    name="fp32", element_bytes=4.0, logit_bytes=12.0, sequence_parallel=False
)
"""The step of a built-in workload as written: eager and in fp32. The logits, their log-softmax and
their gradient take four bytes each."""


def find_stack(name: str) -> Stack:
    """Return a stack by name; PlanError lists the known ones for any other name."""
    if name not in STACKS:
        raise PlanError(f"stack {name!r} is unknown: use one of {', '.join(STACKS)}")
    return STACKS[name]
