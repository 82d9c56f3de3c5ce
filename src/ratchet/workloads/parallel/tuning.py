"""Settings of the communication between ranks, which levers change and recipes store."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Reduction = Literal["as_written", "bf16", "powersgd"]
"""Form in which gradients travel: their own dtype, bf16, or products of rank-2 factors."""


class ParallelTuning(BaseModel):
    """Settings of how ranks communicate, stored in recipes; the defaults are PyTorch's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bucket_cap_mb: int | None = Field(default=None, ge=1)
    """Size of DDP's buckets of gradients, in MiB; None is DDP's own, 25."""
    no_sync: bool = False
    """Exchange gradients once a step, not once a micro-batch."""
    reshard_after_forward: bool = True
    """FSDP2 frees gathered weights after the forward pass and gathers them again."""
    prefetch: int = Field(default=0, ge=0, le=8)
    """Blocks whose weights FSDP2 gathers ahead; 0 leaves it to FSDP2, which gathers one."""
    reduction: Reduction = "as_written"
    async_tp: bool = False
    """Compiled graphs cut a product beside a collective of tensor parallelism into parts that
    overlap with it; between GPUs alone."""


class TunedLayout(BaseModel):
    """The part of a recipe that ranks share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: str
    """Words of `--parallel`."""
    tuning: ParallelTuning
