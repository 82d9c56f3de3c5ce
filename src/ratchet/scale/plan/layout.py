"""Layouts of a model over devices, and the habits of the stack that runs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.base.errors import PlanError
from ratchet.train.workloads.parallel import parse_degrees

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Sharding = Literal["none", "optimizer", "full"]
Checkpointing = Literal["none", "selective", "full"]
Precision = Literal["bf16", "fp8", "mxfp8", "mxfp4", "nvfp4"]
SHARDINGS: Final[tuple[Sharding, ...]] = ("none", "optimizer", "full")
CHECKPOINTINGS: Final = ("none", "selective", "full")
PRECISIONS: Final[tuple[Precision, ...]] = ("bf16", "fp8", "mxfp8", "mxfp4", "nvfp4")
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "sharding": SHARDINGS, "checkpointing": CHECKPOINTINGS, "precision": PRECISIONS
}  # fmt: skip
"""Words of a layout, which columns of layouts hold by their places."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of parallelism and what each rank keeps. Degrees count ranks."""

    dp: int = 1  # Data-parallel replicas; with `full` sharding the ranks of FSDP
    tp: int = 1  # Tensor parallel, with the sequence split between the products (arXiv:2205.05198)
    pp: int = 1
    vpp: int = 1  # Chunks of layers a pipeline stage holds: above 1 the schedule is interleaved
    cp: int = 1  # Context parallel: ring attention over the sequence
    ep: int = 1  # Expert parallel, over data-parallel ranks
    micro_batch: int = 1  # Sequences in one pass of one replica
    sharding: Sharding = "none"  # none: DDP; optimizer: ZeRO-1; full: FSDP2
    checkpointing: Checkpointing = "none"
    precision: Precision = "bf16"

    @property
    def world(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    def words(self) -> str:
        """Return the layout in the words of `--parallel`: dp=8,tp=2."""
        name = "fsdp" if self.sharding == "full" else "dp"
        degrees = {name: self.dp, "tp": self.tp, "pp": self.pp, "vpp": self.vpp, "cp": self.cp}
        degrees["ep"] = self.ep
        told = [f"{key}={value}" for key, value in degrees.items() if value > 1]
        return ",".join(told) or "dp=1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layouts:
    """Many layouts as columns of equal length; choices are places in their tuples."""

    dp: Integers
    tp: Integers
    pp: Integers
    vpp: Integers
    cp: Integers
    ep: Integers
    micro_batch: Integers
    sharding: Integers
    checkpointing: Integers
    precision: Integers

    def __len__(self) -> int:
        return len(self.dp)

    def row(self, place: int) -> Layout:
        values: dict[str, Any] = {
            one.name: int(getattr(self, one.name)[place]) for one in fields(self)
        }
        return Layout(**values | {name: words[values[name]] for name, words in CHOICES.items()})

    def take(self, chosen: NDArray[np.bool_] | Integers) -> Layouts:
        return Layouts(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})


def columns(layouts: Iterable[Layout]) -> Layouts:
    rows = list(layouts)

    def column(name: str) -> Integers:
        values, words = [getattr(one, name) for one in rows], CHOICES.get(name)
        return np.array([words.index(one) for one in values] if words else values, dtype=np.int64)

    return Layouts(**{one.name: column(one.name) for one in fields(Layouts)})


def join(parts: Iterable[Layouts]) -> Layouts:
    held = list(parts)
    return Layouts(
        **{
            one.name: np.concatenate([getattr(part, one.name) for part in held])
            for one in fields(Layouts)
        }
    )


def parse_layout(text: str, world: int) -> Layout:
    """Return the layout of `fsdp=2,tp=2`; what is left of `world` ranks becomes data-parallel.

    Raises PlanError for an unknown word, a degree below 1, or a product that does not divide.
    """
    degrees = parse_degrees(text, error=PlanError)
    if "dp" in degrees and "fsdp" in degrees:
        raise PlanError(f"{text!r} has both dp and fsdp: give one of them")
    full = "fsdp" in degrees
    given = degrees.pop("fsdp", None) or degrees.pop("dp", None)
    rest = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)
    if world % rest or (given and given * rest != world):
        raise PlanError(
            f"{text!r} takes {rest * (given or 1)} ranks, which do not make the {world} of the "
            "cluster: change a degree"
        )
    return Layout(
        dp=world // rest,
        sharding="full" if full else "optimizer",
        tp=degrees.get("tp", 1),
        pp=degrees.get("pp", 1),
        vpp=degrees.get("vpp", 1),
        cp=degrees.get("cp", 1),
        ep=degrees.get("ep", 1),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Properties of the software that runs the step."""

    name: str
    flash: bool = True  # True if attention is fused; otherwise its scores are written and kept
    sequence_parallel: bool = True
    """True if tensor parallel ranks split the sequence between the products."""
    cast_bytes: float = 6.0
    """Bytes moved for an element that enters a product of 8 bits or fewer: torchao reads it for its
    largest value, reads it again and writes it in both orders; Transformer Engine fuses these."""
    logit_bytes: float = 14.0
    """Bytes held for a logit. Plain cross entropy has it in bf16 and fp32, its log-softmax and its
    fp32 gradient; a fused one keeps the fp32 logit, overwritten by its gradient, and the bf16."""
    keeps_fp8: bool = False  # True if inputs of fp8 products are kept in fp8 for the backward pass
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
    reduced_bytes: float = 4.0  # Bytes of a gradient that is reduced among replicas
    gradient_traffic: float = 2.0
    """Bytes moved for a weight's gradient by the product that makes it: 8 if it adds to fp32 ones
    (Megatron-LM's gradient accumulation fusion)."""
    accumulated_bytes: float = 0.0
    """Bytes moved to add a micro-batch's gradient to those before it; 0 if the product does it."""
    splits_sends: bool = True
    """True if tensor parallel ranks send a part each of what goes to the next stage
    (arXiv:2104.04473, section 4.1); otherwise each of them sends all of it."""
    exposed_sends: float = 0.2
    """Share of the sends between stages that nothing hides once the pipeline is full."""
    sends_once: bool = False
    """True if a token that several experts of a node ask for crosses to the node once, as DeepEP
    sends it; otherwise an all-to-all sends a copy for each expert."""


UNFUSED_LOSS: Final = 58.0
"""Bytes for a logit of Megatron-LM without --cross-entropy-loss-fusion: the product's result (6),
the cast (6), the largest (4), the difference (8), exponentials (8), their sum (4), shares (8), the
gradient (8) and the cast back (6) (megatron/core/tensor_parallel/cross_entropy.py @00611e6)."""
STACKS: Final = {
    stack.name: stack
    for stack in (
        Stack(name="torch", ampere_attention=True),
        Stack(name="torch-eager", ampere_attention=True, logit_traffic=42.0),
        Stack(
            name="megatron", cast_bytes=3.0, logit_bytes=6.0, logit_traffic=UNFUSED_LOSS,
            keeps_fp8=True, gradient_traffic=8.0,
        ),
        Stack(
            name="megatron-deepep", cast_bytes=3.0, logit_bytes=6.0,
            logit_traffic=UNFUSED_LOSS, keeps_fp8=True, gradient_traffic=8.0, sends_once=True,
        ),
        Stack(
            name="megatron-2022", flash=False, logit_bytes=6.0, logit_traffic=UNFUSED_LOSS,
            overlaps_data=False,
        ),
        Stack(
            name="megatron-2021", flash=False, sequence_parallel=False, logit_bytes=6.0,
            logit_traffic=UNFUSED_LOSS, overlaps_data=False, reduced_bytes=2.0,
            accumulated_bytes=6.0,
        ),
        Stack(
            name="deepspeed", flash=False, sequence_parallel=False, logit_bytes=6.0,
            logit_traffic=UNFUSED_LOSS, overlaps_data=False, reduced_bytes=2.0,
            accumulated_bytes=6.0,
            splits_sends=False, exposed_sends=1.0,
        ),
    )
}  # fmt: skip
"""`torch` is torchtitan: FSDP2, DTensor, SDPA and torch.compile; `torch-eager` the same without
torch.compile. `megatron` is Megatron-LM with Transformer Engine, `megatron-deepep` the same with
DeepEP's exchange of tokens; `megatron-2022` has sequence
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
