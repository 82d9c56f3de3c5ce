"""Sizes of a workload, from which the library's problems are built. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadShapes:
    """Sizes of a transformer's step; the defaults are llama-60m's."""

    batch: int = 2
    sequence: int = 512
    hidden: int = 512
    intermediate: int = 2048
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 64
    vocabulary: int = 32000
    dtype: str = "bfloat16"
    """Dtype of activations."""
    weight_dtype: str = "float32"
    """Dtype of the small weights (norms) as the op receives them."""
    parameters: tuple[tuple[int, ...], ...] = ((2048, 512), (512, 2048), (512, 512), (512,))
    """Shapes of typical parameters that the optimizer updates."""

    @property
    def tokens(self) -> int:
        """Number of rows of the activations."""
        return self.batch * self.sequence
