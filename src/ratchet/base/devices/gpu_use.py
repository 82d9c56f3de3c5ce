"""Tell what others do on a GPU: the memory they hold, their processes, and how busy it is.

Memory is torch's answer. The rest comes from the driver: NVIDIA's management library (NVML's API
reference), loaded if it is there, and what amdgpu and KFD show in /sys (the kernel's documentation
of amdgpu). Whatever a driver does not tell is unknown, and never an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ratchet.base.process import families

BUSY_BYTES: Final = 3 << 30
"""Memory of other processes from which a GPU counts as busy; a driver's contexts take less."""
BUSY_SHARE: Final = 0.1
"""Share of the last moments in which a GPU was at work, from which it counts as busy."""
NVML: Final = "libnvidia-ml.so.1"
MOST_PROCESSES: Final = 64
UNKNOWN_BYTES: Final = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: the driver cannot tell what a process holds."""
SYSTEM = Path("/sys")


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """Use of a GPU by other processes; None where the driver does not tell."""

    bytes: int  # Memory that this process did not take; a part of it is the driver's
    busy: float | None = None  # Share of the last moments in which it was at work, from 0 to 1
    processes: int | None = None

    def words(self, name: str) -> str:
        """Return in a line that others use the GPU of that name, and a remedy; "" if none do."""
        said = []
        if self.bytes > BUSY_BYTES:
            said.append(f"other processes hold {self.bytes / 1e9:.0f} GB of {name}")
        if self.busy is not None and self.busy >= BUSY_SHARE:
            said.append(f"{name} is at work {self.busy:.0%} of the time")
        if self.processes and said:
            more = "1 other process has" if self.processes == 1 else f"{self.processes} others have"
            said.append(f"{more} it open")
        if not said:
            return ""
        return (
            f"{', and '.join(said)}: if they compute, timings scatter and less is proven; name a "
            "free GPU with --device"
        )


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the time since the last sample."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, as nvmlDeviceGetComputeRunningProcesses_v3 fills it."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def gpu_use(index: int, root: int | None = None) -> GpuUse:
    """Return what others do on the GPU of that number; opens the GPU in this process.

    `root` is the process whose whole family counts as this one: by default this process.
    """
    import torch

    free, total = torch.cuda.mem_get_info(index)
    held = int(total - free - torch.cuda.memory_reserved(index))
    properties = torch.cuda.get_device_properties(index)
    try:
        domain, bus, device = (
            int(getattr(properties, f"pci_{one}_id")) for one in ("domain", "bus", "device")
        )
    except AttributeError:  # a simulated one has no place on a bus
        return GpuUse(bytes=held)
    if torch.version.hip:
        busy, held_by = _of_amdgpu(f"{domain:04x}:{bus:02x}:{device:02x}.0", bus << 8 | device << 3)
    else:
        busy, held_by = _of_nvml(f"{domain:08x}:{bus:02x}:{device:02x}.0")
    if held_by is None or os.getpid() not in held_by:  # of another namespace: who is who?
        return GpuUse(bytes=held, busy=busy)
    kin = {os.getpid(), *families.family(root or os.getpid(), enclosed=True)}
    others = held_by.keys() - kin
    kins_bytes = sum(held_by[pid] for pid in held_by.keys() & kin - {os.getpid()})
    return GpuUse(bytes=max(0, held - kins_bytes), busy=busy, processes=len(others))


def warnings_of(index: int, root: int | None = None) -> list[str]:
    """Return a line for each thing that may spoil timings on the GPU of that number.

    The family of the process `root` is not told of; see `gpu_use`.
    """
    use = gpu_use(index, root)
    return [one for one in (choice_words(index), use.words(f"cuda:{index}")) if one]


def choice_words(index: int) -> str:
    """Return in a line that the first GPU was taken, if another is of another kind; else ""."""
    import torch

    if index or torch.cuda.device_count() < 2:
        return ""
    models = [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())]
    other = next((at for at, one in enumerate(models) if one != models[index]), None)
    if other is None:
        return ""
    return (
        f"the GPUs differ: cuda:{index}, {models[index]}, is taken; for another give its number, "
        f"such as --device cuda:{other}, {models[other]}"
    )


def _of_nvml(address: str) -> tuple[float | None, dict[int, int] | None]:
    """Ask NVIDIA's management library about the GPU at a PCI address."""
    try:
        library: Any = ctypes.CDLL(NVML)
        handle = ctypes.c_void_p()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(
            address.encode(), ctypes.byref(handle)
        ):
            return None, None
        use, count = _Utilization(), ctypes.c_uint(MOST_PROCESSES)
        found = (_ProcessInfo * MOST_PROCESSES)()
        untold = library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use))
        busy = None if untold else use.gpu / 100  # a part of a GPU (MIG) has no rate
        unlisted = library.nvmlDeviceGetComputeRunningProcesses_v3(
            handle, ctypes.byref(count), found
        )
        told = () if unlisted else found[: count.value]
        held_by = {one.pid: one.used if one.used != UNKNOWN_BYTES else 0 for one in told}
    except (OSError, AttributeError):  # no such library, or an older one
        return None, None
    return busy, None if unlisted else held_by


def _of_amdgpu(address: str, location: int) -> tuple[float | None, dict[int, int] | None]:
    """Read what amdgpu says of the GPU at a PCI address, and KFD of its processes."""
    busy, held_by = None, None
    with contextlib.suppress(OSError, ValueError):
        told = SYSTEM / "bus" / "pci" / "devices" / address / "gpu_busy_percent"
        busy = int(told.read_text()) / 100
    with contextlib.suppress(OSError, ValueError):
        kfd = SYSTEM / "class" / "kfd" / "kfd"
        gpu = _kfd_gpu(kfd / "topology" / "nodes", location)
        if gpu is not None:
            files = [one / f"vram_{gpu}" for one in (kfd / "proc").iterdir()]
            held_by = {int(one.parent.name): int(one.read_text()) for one in files if one.exists()}
    return busy, held_by


def _kfd_gpu(nodes: Path, location: int) -> str | None:
    """Return KFD's number of the GPU at a location: bus, device and function of its address."""
    for node in sorted(nodes.iterdir()):
        rows = (line.split() for line in (node / "properties").read_text().splitlines())
        told = {row[0]: row[1] for row in rows if len(row) == 2}
        if told.get("location_id") == str(location):
            return (node / "gpu_id").read_text().strip()
    return None
