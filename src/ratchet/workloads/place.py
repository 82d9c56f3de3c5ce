"""Where a workload lives: the name of a device, checked."""

from __future__ import annotations

import torch

from ratchet.errors import DeviceError


def place(device: str) -> torch.device:
    """The torch device that `device` names (`auto`, `cpu`, `cuda`, `cuda:1`; ROCm is `cuda` too).

    Raises DeviceError when the name means nothing or no such device is on this machine.
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
            f"device {device!r} is not there: torch {torch.__version__} sees {count} GPUs; "
            "use --device cpu, or install a CUDA or ROCm build of torch"
        )
    return found
