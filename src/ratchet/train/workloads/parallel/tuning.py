"""Settings of the communication between ranks, which levers change and recipes store."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Reduction = Literal["as_written", "bf16", "powersgd"]
"""Form in which gradients travel: their own dtype, bf16, or products of rank-2 factors."""


class ParallelTuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of how ranks communicate, stored in recipes; the defaults are PyTorch's own."""

    bucket_cap_mb: Annotated[int, Meta(ge=1)] | None = None
    """Size of DDP's buckets of gradients, in MiB; None is DDP's own, 25."""
    no_sync: bool = False
    """Exchange gradients once a step, not once a micro-batch."""
    reshard_after_forward: bool = True
    """FSDP2 frees gathered weights after the forward pass and gathers them again."""
    prefetch: Annotated[int, Meta(ge=0, le=8)] = 0
    """Blocks whose weights FSDP2 gathers ahead; 0 leaves it to FSDP2, which gathers one."""
    reduction: Reduction = "as_written"
    async_tp: bool = False
    """Compiled graphs cut a product beside a collective of tensor parallelism into parts that
    overlap with it; between GPUs alone."""


class TunedLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a recipe that ranks share."""

    layout: str
    """Words of `--parallel`."""
    tuning: ParallelTuning
