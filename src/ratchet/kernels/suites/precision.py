"""The precision that a step of training in bf16 computes in."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """bf16 as fp32; float64 stays what it is."""
    return x if x.dtype == torch.float64 else x.float()
