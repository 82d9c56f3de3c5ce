"""The GPU on which a kernel is judged, as the judge knows it, and what a sandbox needs for it.

The judge itself opens no GPU. Its reference worker finds one and tries its driver.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NotRequired, TypedDict

from ratchet.base.process.channel import Message
from ratchet.judge.kernels.cuda_use import needs_cuda, refuses_cores
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel

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
"""Device files by driver: `nvidia-caps` for a part of a GPU (MIG), `dxg` under WSL."""
SYSTEM: Final[dict[str, tuple[str, ...]]] = {
    "cuda": ("/sys/bus/pci", "/sys/devices", "/sys/module/nvidia", "/sys/module/nvidia_uvm"),
    "hip": (
        *("/sys/bus/pci", "/sys/devices", "/sys/class/kfd", "/sys/class/drm", "/sys/dev/char"),
        "/sys/module/amdgpu",
    ),
}
"""Folders of /sys that a driver reads: KFD's topology, the PCI devices, memory nodes."""
TOLD: Final = ("/proc/driver/nvidia", "/proc/devices", "/proc/modules")
"""Places that NVIDIA's driver reads in /proc, if a sandbox has no /proc of its own."""
WRITTEN: Final = ("/proc/self",)
"""Places that it writes there: about the process itself, such as the names of its threads."""
PASSED: Final = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"),
    *("LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH", "TRITON_LIBHIP_PATH", "CC"),
)
"""Variables of the judge's environment that a candidate's worker gets on a GPU."""
OF_GPU: Final = "GPU "  # Beginning of the name of something that a judge keeps for a GPU
ANYBODY: Final = stat.S_IROTH | stat.S_IWOTH


class DescribedGpu(TypedDict):
    """A GPU as the judge names it to a worker; `Accelerator` describes the fields."""

    torch_name: str
    dialect: Literal["cuda", "hip"]
    library: NotRequired[str]
    flush_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    torch_name: str  # torch's name, `cuda:0` on ROCm too
    dialect: Literal["cuda", "hip"]  # The prefix of the driver's calls
    library: str = ""  # The driver's file; empty if the loader finds it
    batch_bytes: int = 1 << 30  # Bytes that the inputs and outputs of one batch may take
    flush_bytes: int = 64 << 20  # Bytes that are written before each batch, to empty the caches
    name: str = ""
    folders: tuple[str, ...] = ()
    """Folders of the driver's libraries that a sandbox must see in addition."""
    warnings: tuple[str, ...] = ()
    """Lines on what may spoil timings there: others use it, or GPUs differ."""

    @staticmethod
    def of(found: Message) -> Accelerator:
        """Read the reference worker's answer."""
        described = found["described"]
        return Accelerator(
            **described,
            batch_bytes=found["batch_bytes"],
            name=found["name"],
            folders=tuple(found["folders"]),
            warnings=tuple(found["warnings"]),
        )

    def as_json(self) -> DescribedGpu:
        """Return what a worker must know."""
        return {
            "torch_name": self.torch_name,
            "dialect": self.dialect,
            "library": self.library,
            "flush_bytes": self.flush_bytes,
        }

    @property
    def key(self) -> str:
        """The name of what a judge keeps for this GPU and driver, whatever memory is free."""
        return OF_GPU + " ".join((self.torch_name, self.library, *self.folders))

    @property
    def nodes(self) -> list[str]:
        """The device files on this machine."""
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
        """Files that a process reads and writes to use the GPU."""
        return (*self.nodes, *(WRITTEN if self.dialect == "cuda" else ()))

    def environment(self) -> dict[str, str]:
        """Return variables for a candidate's worker."""
        return {name: os.environ[name] for name in PASSED if name in os.environ}


def may_use_gpu(kernel: Kernel, asked: str) -> bool:
    """Return True if the judge must look for a GPU."""
    if asked == "auto":
        return bool(all_nodes()) and (kernel.language == "triton" or bool(needed_gpu(kernel)))
    return asked != "cpu" and kernel.language in WITH_TORCH


def needed_gpu(kernel: Kernel) -> str:
    """Return why a kernel in torch or Triton cannot run without a GPU; "" if it may."""
    if kernel.language == "triton":  # its interpreter runs the rest
        return refuses_cores(kernel.source, kernel.entry)
    return needs_cuda(kernel.source, kernel.entry) if kernel.language == "torch" else ""


def all_nodes() -> list[str]:
    """Return the device files of every GPU on this machine; none without a GPU."""
    return [path for patterns in NODES.values() for path in device_files(patterns)]


def device_files(patterns: Sequence[str]) -> list[str]:
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def groups_of(nodes: Sequence[str]) -> list[int]:
    """Return the groups that a fresh user needs to open the device files, never root's."""
    found: set[int] = set()
    for path in nodes:
        for one in glob.glob(f"{path}/renderD*") if os.path.isdir(path) else [path]:
            state = os.stat(one)
            if state.st_mode & ANYBODY != ANYBODY and state.st_gid != 0:
                found.add(state.st_gid)
    return sorted(found)
