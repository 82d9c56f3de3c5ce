"""Check the name of the device that a workload runs on."""

from __future__ import annotations

import torch

from ratchet.base.devices.probe import gpus, how_to_see_more
from ratchet.base.errors import DeviceError


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
            f"device {device!r} is not available: torch {torch.__version__} sees {gpus(count)}; "
            f"use --device cpu, or {how_to_see_more(count)}"
        )
    return found
