"""The device of a worker: the machine's cores, or a GPU with its own memory and clock.

The judge names a GPU to both workers with `Accelerator.as_json`; without one they use the cores.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ratchet.base.errors import JudgeError
from ratchet.base.process.channel import Message
from ratchet.judge.workers.memory.blocks import BLANK, DeviceMemory, HostMemory, Memory, flat_bytes
from ratchet.judge.workers.memory.driver_memory import (
    Dialect,
    Driver,
    DriverRefusal,
    already_loaded,
    loaded_files,
)
from ratchet.judge.workers.memory.layout import BATCH_PART

if TYPE_CHECKING:
    from ratchet.judge.sandbox.accelerator import DescribedGpu

FLUSHED: Final = 2
"""Bytes that a device writes before each batch, over the size of its last cache."""
LEAST_FLUSHED_BYTES: Final = 64 << 20
"""Used if a device does not report its cache. It also covers the Infinity Cache of AMD's consumer
cards; CDNA3's is 256 MB and not in the properties (see MALL_BYTES)."""
MALL_BYTES: Final = {"gfx942": 256 << 20, "gfx950": 256 << 20}
"""The memory-side cache of MI300 and MI350 (AMD's CDNA 3 and CDNA 4 white papers), which the
properties' L2 (4 MB a die) leaves out."""
DRIVER_FILES: Final = (
    *("libcuda.", "libnvidia-", "libnvcuvid", "libamdhip64.", "libhsa-runtime", "libhsakmt"),
    *("libdrm", "libamd_comgr", "librocprofiler", "libroctx", "librocm"),
)
"""Prefixes of the driver files of NVIDIA and AMD."""
SEEN_IN_SANDBOX: Final = ("/usr/", "/lib/", "/lib64/", "/opt/rocm/")
"""Folders that every sandbox shows by these names. ROCm's containers link /opt/rocm to a folder
with the version in its name, by which libraries are mapped, and that one must be shown."""


class WorkerDevice:
    """The machine's cores. Work has ended when a call returns, and the judge has the only clock."""

    memory: Memory

    def __init__(self) -> None:
        self.memory = HostMemory()

    def try_sharing(self) -> None:
        """Raise DriverRefusal, in one line, if the device's memory cannot be shared."""

    def place(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device, with the same values, strides and gaps."""
        return tensor

    def finish(self) -> None:
        """Wait for all work of the device, whatever stream it is on."""

    def mark(self) -> object:
        """Return this moment, for `between_s`."""
        return None

    def between_s(self, begin: object, end: object) -> float | None:
        """Return the seconds between two marks by the device's own clock, if it has one.

        Call it after `finish`.
        """
        return None

    def flush(self, load_s: float = 0.0) -> Message:
        """Empty the device's caches, and keep it busy for so long; return what was done."""
        return {}

    def allocated_bytes(self) -> int:
        """Return the bytes that torch's allocator has given out in this process."""
        return 0

    def give_back(self) -> None:
        """Give back the memory that torch keeps for later."""


class Gpu(WorkerDevice):
    """A GPU. On torch's CPU device only its memory is a driver's: for tests."""

    def __init__(self, described: DescribedGpu) -> None:
        """Open it. Raises DriverRefusal, in one line, if its driver shares no memory."""
        self.torch_device = torch.device(described["torch_name"])
        self._real = self.torch_device.type == "cuda"
        if self._real:
            _start(self.torch_device)
        index = self.torch_device.index or 0
        self._driver = Driver(
            described["dialect"], index=index, library=described.get("library", "")
        )
        self.memory = DeviceMemory(self._driver, self.torch_device)
        self._flush_bytes = described["flush_bytes"]
        self._flushed: Tensor | None = None

    def try_sharing(self) -> None:
        block = self.memory.block("trial", 1)
        try:
            block.blank()
            self.finish()
            region = self.memory.region(1, 1)
            try:
                region.reveal(block.descriptor, writable=True)
                seen = self.memory.tensor(region.address, torch.uint8, (16,), (1,)).clone()
                self.finish()
            finally:
                region.release()
            if not bool((seen == BLANK).all()):
                raise DriverRefusal("memory that was mapped twice held other values at each place")
        finally:
            block.close()

    def place(self, tensor: Tensor) -> Tensor:
        if self._real and tensor.device == self.torch_device:
            return tensor
        flat = flat_bytes(tensor)
        if not flat.numel():
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=self.torch_device)
        there = flat.to(self.torch_device, copy=True).view(tensor.dtype)
        return there.as_strided(tensor.shape, tensor.stride())

    def finish(self) -> None:
        if self._real:
            torch.cuda.synchronize(self.torch_device)

    def mark(self) -> object:
        if not self._real:
            return time.perf_counter()
        event = torch.Event(device=self.torch_device, enable_timing=True)
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def between_s(self, begin: Any, end: Any) -> float | None:
        if not self._real:
            return float(end - begin)
        try:
            return float(begin.elapsed_time(end)) / 1000
        except RuntimeError:  # they did not end yet: the candidate replaced the fence
            return None

    def flush(self, load_s: float = 0.0) -> Message:
        end_s = time.perf_counter() + load_s
        if self._flushed is None:
            self._flushed = torch.empty(
                self._flush_bytes, dtype=torch.uint8, device=self.torch_device
            )
        normal = self._driver.reset_persisting_cache()
        self._flushed.fill_(1)
        self.finish()
        while time.perf_counter() < end_s:
            self._flushed.fill_(1)
            self.finish()
        return {"flushed_bytes": self._flush_bytes, "persisting_reset": normal}

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.torch_device) if self._real else 0

    def give_back(self) -> None:
        if self._real:
            torch.cuda.empty_cache()


def open_device(described: DescribedGpu | None) -> WorkerDevice:
    """Return the device that the judge named; None is the machine's cores."""
    return WorkerDevice() if described is None else Gpu(described)


def find_gpu(name: str) -> Message:
    """Find a GPU, in the reference worker; return what `Accelerator.of` takes, or what is missing.

    Raises DriverRefusal if its driver shares no memory.
    """
    if not torch.cuda.is_available():
        return {"missing": f"torch {torch.__version__} sees no GPU"}
    asked = torch.device("cuda" if name == "auto" else name)
    index = asked.index or 0
    if index >= torch.cuda.device_count():
        return {"missing": f"torch sees {torch.cuda.device_count()} GPUs and {name} is not one"}
    device = torch.device("cuda", index)
    dialect: Dialect = "hip" if torch.version.hip else "cuda"
    _start(device)
    properties = torch.cuda.get_device_properties(device)
    described: DescribedGpu = {
        "torch_name": str(device),
        "dialect": dialect,
        "library": already_loaded(dialect),
        "flush_bytes": _flush_bytes(properties),
    }
    Gpu(described).try_sharing()
    return {
        "described": described,
        "batch_bytes": torch.cuda.mem_get_info(device)[0] // BATCH_PART,
        "name": str(properties.name),
        "folders": driver_folders(),
    }


def driver_folders() -> list[str]:
    """Return the folders of the driver's libraries that a sandbox would not show otherwise."""
    named = [path for path in loaded_files() if os.path.basename(path).startswith(DRIVER_FILES)]
    folders = {str(Path(path).parent) for path in named}
    outside = [one for one in folders if not f"{one}/".startswith(SEEN_IN_SANDBOX)]
    return sorted(one for one in outside if one != "/")


def _start(device: torch.device) -> None:
    """Make the device's context current in this thread, as the driver's calls require."""
    try:
        torch.cuda.set_device(device)
        torch.empty(1, device=device)
        torch.cuda.synchronize(device)
    except (RuntimeError, AssertionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise JudgeError(f"{device} cannot be opened: {first}") from error


def _flush_bytes(properties: object) -> int:
    level_two = int(getattr(properties, "L2_cache_size", 0))
    target = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return max(LEAST_FLUSHED_BYTES, FLUSHED * max(level_two, MALL_BYTES.get(target, 0)))
