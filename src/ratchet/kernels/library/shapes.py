"""The sizes of a workload that the library's problems are built from. No torch."""

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
    """Of activations."""
    weight_dtype: str = "float32"
    """Of the small weights (norms) as the op sees them."""
    parameters: tuple[tuple[int, ...], ...] = ((2048, 512), (512, 2048), (512, 512), (512,))
    """Shapes of parameters that the optimizer updates, enough to be typical."""

    @property
    def tokens(self) -> int:
        """Rows of the activations."""
        return self.batch * self.sequence
