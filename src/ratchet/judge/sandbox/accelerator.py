"""The GPU on which a kernel is judged, as the judge knows it: which one, and what a sandbox needs.

The judge itself opens no GPU. Its reference worker finds it and tries its driver.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ratchet.judge.options import WITH_TORCH
from ratchet.kernels.kernel import Kernel

NODES: Final[dict[str, tuple[str, ...]]] = {
    "cuda": (
        "/dev/nvidiactl",
        "/dev/nvidia[0-9]*",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-caps",
        "/dev/dxg",
    ),
    "hip": ("/dev/kfd", "/dev/dri"),
}
"""Device files by driver; `nvidia-caps` for a part of a GPU (MIG), `dxg` under Windows' Linux."""
SYSTEM: Final[dict[str, tuple[str, ...]]] = {
    "cuda": ("/sys/bus/pci", "/sys/devices", "/sys/module/nvidia", "/sys/module/nvidia_uvm"),
    "hip": (
        *("/sys/bus/pci", "/sys/devices", "/sys/class/kfd", "/sys/class/drm", "/sys/dev/char"),
        "/sys/module/amdgpu",
    ),
}
"""What a driver reads of the machine: KFD's topology, the PCI devices, the nodes of memory."""
TOLD: Final = ("/proc/driver/nvidia", "/proc/devices", "/proc/modules")
"""What NVIDIA's driver reads in /proc, where a sandbox has no /proc of its own."""
WRITTEN: Final = ("/proc/self",)
"""What it writes there: of the process itself, such as the names of its threads."""
PASSED: Final = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"),
    *("LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH", "CC"),
)
"""Settings of the judge's own environment that a candidate's worker gets on a GPU."""
ANYBODY: Final = stat.S_IROTH | stat.S_IWOTH


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One GPU."""

    torch_name: str
    """`cuda:0`, on ROCm too."""
    dialect: Literal["cuda", "hip"]
    """Whose names the driver's calls have."""
    library: str = ""
    """The driver's file; empty where the loader knows it."""
    batch_bytes: int = 1 << 30
    """What the inputs and outputs of one batch may take."""
    flush_bytes: int = 64 << 20
    """What is written before each batch, so that its caches hold nothing of it."""
    name: str = ""
    folders: tuple[str, ...] = ()
    """Folders of the driver's libraries that a sandbox must see besides the usual ones."""

    @staticmethod
    def of(found: Mapping[str, Any]) -> Accelerator:
        """Read what the reference worker answered."""
        described = found["described"]
        return Accelerator(
            **described,
            batch_bytes=found["batch_bytes"],
            name=found["name"],
            folders=tuple(found["folders"]),
        )

    def as_json(self) -> dict[str, Any]:
        """Return what a worker must know of it."""
        return {
            "torch_name": self.torch_name,
            "dialect": self.dialect,
            "library": self.library,
            "flush_bytes": self.flush_bytes,
        }

    @property
    def nodes(self) -> list[str]:
        """Its device files on this machine."""
        return device_files(NODES[self.dialect])

    @property
    def system_folders(self) -> list[str]:
        """The folders of /sys that its driver reads."""
        return [folder for folder in SYSTEM[self.dialect] if os.path.isdir(folder)]

    @property
    def told(self) -> tuple[str, ...]:
        """Places in /proc that its driver reads."""
        return TOLD if self.dialect == "cuda" else ()

    @property
    def used(self) -> tuple[str, ...]:
        """Files that a process reads and writes to use it."""
        return (*self.nodes, *(WRITTEN if self.dialect == "cuda" else ()))

    def environment(self) -> dict[str, str]:
        """Settings of a candidate's worker."""
        return {name: os.environ[name] for name in PASSED if name in os.environ}


def may_use_gpu(kernel: Kernel, asked: str) -> bool:
    """True if a GPU is to be looked for: for Triton's kernels, and torch's if it is asked."""
    if asked == "auto":
        return kernel.language == "triton" and bool(all_nodes())
    return asked != "cpu" and kernel.language in WITH_TORCH


def all_nodes() -> list[str]:
    """Every GPU's device files on this machine; without one there is none to look for."""
    return [path for patterns in NODES.values() for path in device_files(patterns)]


def device_files(patterns: Sequence[str]) -> list[str]:
    """The files that are there."""
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def groups_of(nodes: Sequence[str]) -> list[int]:
    """Groups that a fresh user needs to open the device files; never root's own."""
    found: set[int] = set()
    for path in nodes:
        for one in glob.glob(f"{path}/renderD*") if os.path.isdir(path) else [path]:
            state = os.stat(one)
            if state.st_mode & ANYBODY != ANYBODY and state.st_gid != 0:
                found.add(state.st_gid)
    return sorted(found)
