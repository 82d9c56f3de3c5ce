"""The options that a caller of `load` may give besides the workload's name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ratchet.workloads.config import Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Options of `load`; None keeps the workload's own value."""

    seed: int
    batch_size: int | None
    sequence: int | None
    precision: Precision | None
    text: Path | None
    device: torch.device
    shapes_only: bool = False
    """Sizes are those of a GPU, and tensors have no values."""
