"""References of the tests' problems."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def silu(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    """A chain of element-wise steps that a fused kernel beats."""
    scaled = x * scalars[0]
    return (scaled * (1 / (1 + torch.exp(-x))),)
