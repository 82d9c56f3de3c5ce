"""How a training step runs: the settings that levers change and recipes hold."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Precision = Literal["fp32", "bf16_autocast", "bf16_master"]
"""`fp32`; `bf16_autocast`: fp32 weights, cast at each use; `bf16_master`: weights of two or more
dimensions are bf16, their fp32 masters live in the optimizer, and the forward casts no weight."""

CompileMode = Literal["default", "max-autotune"]
OptimizerKind = Literal["as_written", "foreach", "fused", "kernel"]
AttentionBackend = Literal["default", "flash", "math"]
MatmulPrecision = Literal["highest", "high", "medium"]
Allocator = Literal["default", "mallopt", "jemalloc", "tcmalloc"]
MatmulLibrary = Literal["default", "hipblaslt", "tunableop"]
"""Under ROCm: who computes matrix products. `tunableop` times rocBLAS's and hipBLASLt's own."""

Checkpointing = Annotated[str, StringConstraints(pattern=r"^(none|selective|blocks:[1-9][0-9]*)$")]
"""`none`; `blocks:K` recomputes one block of every K (`blocks:1` all); `selective` keeps the
outputs of matrix products and attention in every block and recomputes the rest."""


class StepConfig(BaseModel):
    """The settings of one training step; frozen, hashable, and written into recipes.

    The defaults are a plain eager fp32 step. `threads`, `affinity`, `matmul_precision` and the
    `mallopt` allocator are applied to the process by `ratchet.workloads.process`; `jemalloc`,
    `tcmalloc`, `huge_pages`, `matmul_library` and `aotriton_experimental` need the environment that
    a process starts with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: Precision = "fp32"
    compile_mode: CompileMode | None = None
    optimizer: OptimizerKind = "as_written"
    attention: AttentionBackend = "default"
    checkpointing: Checkpointing = "none"
    threads: int | None = Field(default=None, ge=1)
    affinity: bool = False
    matmul_precision: MatmulPrecision = "highest"
    allocator: Allocator = "default"
    huge_pages: bool = False
    preallocate: bool = False
    matmul_library: MatmulLibrary = "default"
    aotriton_experimental: bool = False
    kernels: tuple[str, ...] = ()
