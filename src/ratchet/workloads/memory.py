"""What a training step needs in memory at the least, against what the device has."""

from __future__ import annotations

import psutil
import torch
from torch import nn

from ratchet.errors import DeviceError

BYTES_PER_PARAMETER = 16
"""fp32 weight and gradient, and AdamW's two fp32 moments."""


def available_bytes(device: torch.device) -> int:
    """Free memory of the device; on the CPU, what the system says can still be taken."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def require(needed_bytes: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise DeviceError when `needed_bytes`, a lower bound, is more than the device has free."""
    free_bytes = available_bytes(device)
    if needed_bytes > free_bytes:
        raise DeviceError(
            f"{what} needs at least {needed_bytes / 1e9:.1f} GB, and {device} has "
            f"{free_bytes / 1e9:.1f} GB free; {remedy}"
        )


def state_bytes(model: nn.Module) -> int:
    """Bytes of weights, gradients and AdamW's moments in fp32, shared weights counted once."""
    return BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())
