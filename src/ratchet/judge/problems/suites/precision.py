"""The computing precision of a training step in bf16."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """Return bf16 as fp32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()
