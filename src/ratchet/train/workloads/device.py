"""The device that a workload runs on: its name checked, and its free memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from ratchet.base.devices.probe import how_to_see_more
from ratchet.base.errors import DeviceError
from ratchet.base.process.memory import free_bytes
from ratchet.base.show.words import counted


def place(device: str) -> torch.device:
    """Return the torch device for `auto`, `cpu`, `cuda` or `cuda:1`; ROCm devices are `cuda` too.

    Raises DeviceError if the name is invalid or this machine has no such device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise DeviceError(
            f"device {device!r} is not a device name; use auto, cpu, cuda or cuda:N"
        ) from None
    if found.type not in ("cpu", "cuda"):
        raise DeviceError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= count:
        raise DeviceError(
            f"device {device!r} is not available: torch {torch.__version__} sees "
            f"{counted(count, 'GPU')}; use --device cpu, or {how_to_see_more(count)}"
        )
    return found


def current(device: str) -> AbstractContextManager[object]:
    """Within, the GPU that `device` names is torch's current one.

    Triton and many libraries launch on the current device, wherever their tensors are.
    """
    return torch.cuda.device(device) if device.startswith("cuda:") else nullcontext()


BYTES_PER_PARAMETER = 16  # fp32 weight and gradient, and AdamW's two fp32 moments


def available_bytes(device: torch.device) -> int:
    """Return the device's free memory; on the CPU within the limits of groups and `ulimit -v`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_bytes()


def require(needed_bytes: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise DeviceError if `needed_bytes`, a lower bound, exceeds the device's free memory."""
    free = available_bytes(device)
    if needed_bytes > free:
        raise DeviceError(
            f"{what} needs at least {needed_bytes / 1e9:.1f} GB, but {device} has "
            f"{free / 1e9:.1f} GB free; {remedy}"
        )


def state_bytes(model: nn.Module) -> int:
    """Return bytes of weights, gradients and AdamW's fp32 moments; shared weights count once."""
    return BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())
