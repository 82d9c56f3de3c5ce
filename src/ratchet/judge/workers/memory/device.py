"""The device of a worker: the machine's cores, or a GPU with its memory, its end and its clock.

The judge names a device to both workers with `Accelerator.as_json`; no message names the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from ratchet.base.errors import JudgeError
from ratchet.judge.workers.memory.blocks import BLANK, DeviceMemory, HostMemory, Memory, flat_bytes
from ratchet.judge.workers.memory.driver_memory import (
    Dialect,
    Driver,
    DriverRefusal,
    already_loaded,
    loaded_files,
)

FLUSHED: Final = 2
"""How many times its last cache a device writes before each batch."""
BATCH_PART: Final = 10
"""One batch's inputs and outputs may take this part of the memory that is free. A batch is there
as it was drawn and at its places, and each of four arms keeps its last one and its results."""
LEAST_FLUSHED_BYTES: Final = 64 << 20
"""Where a device does not say how large its cache is; also over AMD's Infinity Cache of consumer
cards (CDNA3's is 256 MB and not in the properties: see MALL_BYTES)."""
MALL_BYTES: Final = {"gfx942": 256 << 20, "gfx950": 256 << 20}
"""The memory-side cache of MI300 and MI350 (AMD's CDNA 3 and CDNA 4 white papers), which the
properties' L2 (4 MB a die) leaves out."""
DRIVER_FILES: Final = (
    *("libcuda.", "libnvidia-", "libnvcuvid", "libamdhip64.", "libhsa-runtime", "libhsakmt"),
    *("libdrm", "libamd_comgr", "librocprofiler", "libroctx", "librocm"),
)
"""How the files of both makers' drivers begin."""
SEEN_IN_SANDBOX: Final = ("/usr/", "/lib/", "/lib64/", "/opt/rocm")


class WorkerDevice(Protocol):
    """One of the two."""

    memory: Memory

    def try_sharing(self) -> None:
        """See that its memory can be shared; raises DriverRefusal, one line, where it cannot."""

    def place(self, tensor: Tensor) -> Tensor:
        """Return the same values, strides and gaps there."""

    def finish(self) -> None:
        """Wait for all work on it, whatever stream it is on."""

    def mark(self) -> Any:
        """This moment, for `between_s`."""

    def between_s(self, begin: Any, end: Any) -> float | None:
        """Seconds between two marks by the device's own clock, where it has one; after `finish`."""

    def flush(self) -> dict[str, Any]:
        """Leave nothing of a batch in its caches; what was done."""

    def allocated_bytes(self) -> int:
        """Return the bytes that torch's allocator has given out in this process."""


class Host:
    """The machine's cores: work has ended when a call returns, and the judge has the only clock."""

    def __init__(self) -> None:
        self.memory: Memory = HostMemory()

    def try_sharing(self) -> None:
        pass

    def place(self, tensor: Tensor) -> Tensor:
        return tensor

    def finish(self) -> None:
        pass

    def mark(self) -> Any:
        return None

    def between_s(self, begin: Any, end: Any) -> float | None:
        return None

    def flush(self) -> dict[str, Any]:
        return {}

    def allocated_bytes(self) -> int:
        return 0


class Gpu:
    """A GPU. On torch's CPU device it is one whose memory alone is a driver's: for tests."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        """Open it; raises DriverRefusal, one line, where its driver shares no memory."""
        self.torch_device = torch.device(described["torch_name"])
        self._real = self.torch_device.type == "cuda"
        dialect: Dialect = described["dialect"]
        if self._real:
            _start(self.torch_device)
        index = self.torch_device.index or 0
        self._driver = Driver(dialect, index=index, library=described.get("library", ""))
        self.memory: Memory = DeviceMemory(self._driver, self.torch_device)
        self._flush_bytes = int(described["flush_bytes"])
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

    def mark(self) -> Any:
        if not self._real:
            return time.perf_counter()
        event = torch.Event(device=self.torch_device, enable_timing=True)
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def between_s(self, begin: Any, end: Any) -> float | None:
        if not self._real:
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1000

    def flush(self) -> dict[str, Any]:
        if self._flushed is None:
            self._flushed = torch.empty(
                self._flush_bytes, dtype=torch.uint8, device=self.torch_device
            )
        normal = self._driver.reset_persisting_cache()
        self._flushed.fill_(1)
        self.finish()
        return {"flushed_bytes": self._flush_bytes, "persisting_reset": normal}

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.torch_device) if self._real else 0


def open_device(described: Mapping[str, Any] | None) -> WorkerDevice:
    """The device that the judge named; None is the machine's cores."""
    return Host() if described is None else Gpu(described)


def find_gpu(name: str) -> dict[str, Any]:
    """Return what `Accelerator.of` takes, or `{"missing": why}`: asked of the reference worker.

    Raises DriverRefusal where there is one whose driver shares no memory.
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
    described = {
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
    """Folders of the loaded driver's libraries that a sandbox would not see by itself."""
    named = [path for path in loaded_files() if os.path.basename(path).startswith(DRIVER_FILES)]
    folders = {str(Path(path).parent) for path in named}
    outside = [one for one in folders if not f"{one}/".startswith(SEEN_IN_SANDBOX)]
    return sorted(one for one in outside if one != "/")


def _start(device: torch.device) -> None:
    """Make the device's context this thread's own, as the driver's calls want it."""
    try:
        torch.cuda.set_device(device)
        torch.empty(1, device=device)
        torch.cuda.synchronize(device)
    except (RuntimeError, AssertionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise JudgeError(f"{device} cannot be opened: {first}") from error


def _flush_bytes(properties: Any) -> int:
    level_two = int(getattr(properties, "L2_cache_size", 0))
    target = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return max(LEAST_FLUSHED_BYTES, FLUSHED * max(level_two, MALL_BYTES.get(target, 0)))
