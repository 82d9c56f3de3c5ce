"""Settings of a training step, which levers change and recipes store."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Precision = Literal["fp32", "bf16_autocast", "bf16_master"]
"""Weights and arithmetic of a step.

`fp32` is plain fp32. `bf16_autocast` keeps fp32 weights and casts them at each use. `bf16_master`
is autocast that reads weights of two or more dimensions as bf16 everywhere, so activations are bf16
from the embedding on; the parameters themselves are the fp32 masters.
"""

OwnPrecision = Literal["bf16", "fp16", "fp64"]
"""The dtype that a model's parameters have from the start; nothing is cast."""

AUTOCAST: Final = ("bf16_autocast", "bf16_master")
"""Precisions whose forward pass runs in torch.autocast."""

CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
"""Modes of torch.compile."""
REPLAYING: Final = ("reduce-overhead", "max-autotune")
"""Those that replay CUDA or HIP graphs on a GPU."""
OptimizerKind = Literal["as_written", "foreach", "fused", "kernel"]
AttentionBackend = Literal["default", "flash", "efficient", "cudnn", "math"]
MatmulPrecision = Literal["highest", "high", "medium"]
Products = Literal["own", "fp8"]
"""`fp8` multiplies the linear layers but the head in fp8 (`ratchet.workloads.fp8_products`)."""
Allocator = Literal["default", "mallopt", "jemalloc", "tcmalloc", "expandable"]
"""`expandable` lets the segments of a GPU's memory grow (torch's `expandable_segments`)."""
Logits = Literal["whole", "chunked"]
"""`chunked` computes the last linear layer and its cross-entropy together, by chunks of tokens."""
MatmulLibrary = Literal["default", "hipblaslt", "tunableop"]
"""The matrix-product library under ROCm. `tunableop` times the kernels of rocBLAS and hipBLASLt."""

Checkpointing = Annotated[
    str, StringConstraints(pattern=r"^(none|selective|blocks:[1-9][0-9]*|plan:[nsfo]+)$")
]
"""Recomputed blocks.

`none` recomputes nothing. `blocks:K` recomputes one block of every K, so `blocks:1` recomputes all.
`selective` keeps the outputs of matrix products and attention in every block and recomputes the
rest. `plan:ffsn` names each block's choice, as `ratchet memory` plans it: n none, s selective, f
all of it; o offloads what is saved to the host's memory.
"""


class StepConfig(BaseModel):
    """The settings of one training step; frozen, hashable, and stored in recipes.

    The defaults are a plain eager fp32 step. `ratchet.workloads.process` applies `threads`,
    `affinity`, `matmul_precision` and the `mallopt` allocator to the process. `jemalloc`,
    `tcmalloc`, `expandable`, `huge_pages`, `matmul_library` and `aotriton_experimental` must be in
    the environment when the process starts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: Precision | OwnPrecision = "fp32"
    compile_mode: CompileMode | None = None
    optimizer: OptimizerKind = "as_written"
    attention: AttentionBackend = "default"
    checkpointing: Checkpointing = "none"
    logits: Logits = "whole"
    update_in_backward: bool = False
    """Each parameter is updated as soon as it has its gradient, which is then freed."""
    micro_batches: int = Field(default=1, ge=1)
    """Equal parts of each batch, one after the other; their gradients are averaged."""
    threads: int | None = Field(default=None, ge=1)
    affinity: bool = False
    matmul_precision: MatmulPrecision = "highest"
    products: Products = "own"
    allocator: Allocator = "default"
    huge_pages: bool = False
    preallocate: bool = False
    matmul_library: MatmulLibrary = "default"
    coordinate_descent: bool = False
    aotriton_experimental: bool = False
    kernels: tuple[str, ...] = ()
