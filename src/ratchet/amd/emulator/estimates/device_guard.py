"""Let a torch that was built for CPUs enter a GPU that is not here.

`x[i]` and `~x` in Python enter the device of `x` before they call an operator. What entering means
stands in c10's registry of device guards. For fake tensors a torch for GPUs without a GPU gets a
guard that does nothing (`ensureCUDADeviceGuardSet` in `c10/core/impl/DeviceGuardImplInterface.h`).
A torch for CPUs does not, because its registry has no entry to replace.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

import torch

REGISTRY: Final = "_ZN3c104impl26device_guard_impl_registryE"
"""c10::impl::device_guard_impl_registry: one pointer for each of c10's device types."""
CUDA: Final = 1
META: Final = 14
"""Places of `c10::DeviceType` in it. The meta device's guard does nothing either."""


def allow_entering_gpu() -> None:
    """Give GPUs the guard that does nothing, in this process, if torch has none for them."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        guards = (ctypes.c_void_p * (META + 1)).in_dll(library, REGISTRY)
    except ValueError:
        return
    if not guards[CUDA]:
        guards[CUDA] = guards[META]
        torch._C._ensureCUDADeviceGuardSet()
