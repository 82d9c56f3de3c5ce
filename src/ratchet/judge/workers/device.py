"""The device of a worker: the machine's cores, or a GPU with its own memory and clock.

The judge names a GPU to both workers with `Accelerator.as_json`; without one they use the cores.
Both arms use a batch's memory alike. A block is memory that the reference worker makes and fills.
Its descriptor stands for it in the candidate's process. A region is the place where either arm sees
it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from ratchet.base.errors import JudgeError
from ratchet.base.process.channel import Message
from ratchet.judge.sandbox.shared_memory import BATCH_PART, PAGE_BYTES, MappedRegion, seal, span
from ratchet.judge.workers.driver_memory import (
    DeviceRegion,
    Dialect,
    Driver,
    DriverRefusal,
    already_loaded,
    loaded_files,
)

if TYPE_CHECKING:
    from ratchet.judge.sandbox.accelerator import DescribedGpu


MOST_AT_ONCE = 1 << 30
MOST_PIECES = 512  # Half of Linux's limit (IOV_MAX)
BLANK = 0xFF  # Every byte of an output before it is written: NaN in every float dtype
BEYOND = 0xA5
"""Every byte between outputs: a kernel that computes beyond its inputs, where NaN lies, and writes
the NaN beyond its outputs leaves NaN as it was."""
_FILLED = {byte: bytes([byte]) * (256 << 10) for byte in (BLANK, BEYOND)}
"""Few enough to stay in a core's cache while they are written again and again."""


class HostMemory:
    """Memory of the machine: sealed memfds, mapped with MAP_FIXED."""

    device = torch.device("cpu")
    seals = True
    """A candidate cannot write what it may only read. Without seals the judge compares it."""

    def block(self, name: str, size_bytes: int) -> HostBlock:
        """Return new memory that nobody has seen."""
        return HostBlock(name, size_bytes)

    def region(self, size_bytes: int, slack: int, base: int = 0) -> MappedRegion:
        """Reserve addresses for a block of that size, `slack` steps into a range from `base` on."""
        return MappedRegion(size_bytes, slack, base)

    def tensor(
        self, address: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        """Return a tensor at an address, behind which there may be no memory yet."""
        elements = span(size, stride)
        if not elements:
            return torch.empty(tuple(size), dtype=dtype)
        memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided(tuple(size), tuple(stride))


class DeviceMemory:
    """Memory of a GPU, through its driver's virtual memory calls."""

    seals = False

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self.driver = driver
        self.device = device

    def block(self, name: str, size_bytes: int) -> DeviceBlock:
        return DeviceBlock(self, size_bytes)

    def region(self, size_bytes: int, slack: int, base: int = 0) -> DeviceRegion:
        """Reserve addresses; the driver chooses them, whatever the `base`."""
        return DeviceRegion(self.driver, size_bytes, slack)

    def tensor(
        self, address: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        # __cuda_array_interface__ will not do: torch asks the driver whose the address is, and
        # nothing lies there before the clock starts.
        made: Any = torch._C
        size_bytes = span(size, stride) * dtype.itemsize
        empty = torch.empty(0, dtype=dtype, device=self.device)
        if not size_bytes:
            return empty.new_empty(tuple(size))
        storage = made._construct_storage_from_data_pointer(address, self.device, size_bytes)
        return empty.set_(storage, 0, tuple(size), tuple(stride))


class HostBlock:
    def __init__(self, name: str, size_bytes: int) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create(f"ratchet-{name}", flags)
        self._size_bytes = size_bytes
        self.is_fixed = False  # True once nobody can write to it
        os.ftruncate(self.descriptor, self.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Its size, of whole pages."""
        return max(PAGE_BYTES, -(-self._size_bytes // PAGE_BYTES) * PAGE_BYTES)

    def fill(self, pieces: Sequence[memoryview]) -> None:
        """Write these bytes one after another, many at once: each call waits for Python's lock."""
        at, offset = 0, 0
        while at < len(pieces):
            group = list(pieces[at : at + MOST_PIECES])
            at += len(group)
            while group:
                written = os.pwritev(self.descriptor, group, offset)
                offset += written
                while group and written >= len(group[0]):
                    written -= len(group.pop(0))
                group[:1] = [one[written:] for one in group[:1]]

    def read(self, offset: int, size_bytes: int) -> Tensor:
        """Return a private copy of the bytes there now."""
        raw = self._read(offset, size_bytes)
        return torch.frombuffer(raw, dtype=torch.uint8) if raw else _nothing()

    def _read(self, offset: int, size_bytes: int) -> bytearray:
        """Read piece by piece: one call reads at most 2 GiB (read(2))."""
        found = bytearray(size_bytes)
        view, at = memoryview(found), offset
        while view and (count := os.preadv(self.descriptor, [view[:MOST_AT_ONCE]], at)):
            view, at = view[count:], at + count
        return found

    def holds(self, offset: int, data: Tensor | int) -> bool:
        """Return True if these flat bytes are there, or that many of BLANK."""
        wanted = bytes([BLANK]) * data if isinstance(data, int) else bytes_of(data)
        return bytes(wanted) == self._read(offset, len(wanted))

    def is_filled(self, places: Iterable[tuple[int, int]], byte: int) -> bool:
        """Return True if all places, from a begin to an end, hold nothing but BLANK or BEYOND."""
        filled = _FILLED[byte]
        with mmap.mmap(self.descriptor, self.size_bytes, prot=mmap.PROT_READ) as found:
            return all(
                found[at : min(end, at + len(filled))] == filled[: end - at]
                for begin, end in places
                for at in range(begin, end, len(filled))
            )

    def places(self, spots: Sequence[tuple[int, int]]) -> bytes:
        """Return the bytes at some spots (offset and size), one after another."""
        return b"".join(os.pread(self.descriptor, size, offset) for offset, size in spots)

    def finish(self, *, fixed: bool) -> None:
        """Seal the filled block: its size, and its values if `fixed`."""
        # Mapping a page for the first time costs most, and must not be timed.
        access = mmap.PROT_READ | (0 if fixed else mmap.PROT_WRITE)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mmap.mmap(self.descriptor, 0, flags=flags, prot=access).close()
        kept = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        seal(self.descriptor, kept | (fcntl.F_SEAL_WRITE if fixed else 0))
        self.is_fixed = fixed

    def close(self) -> None:
        os.close(self.descriptor)


class DeviceBlock:
    """A GPU's memory, mapped here while the batch lives, to be filled and read from here."""

    def __init__(self, memory: DeviceMemory, size_bytes: int) -> None:
        driver = memory.driver
        self._region = DeviceRegion(driver, size_bytes)
        try:
            handle = driver.create(self._region.size_bytes)
            try:
                self._region.hold(handle)
                self.descriptor = driver.export(handle)
            finally:
                driver.release(handle)
        except BaseException:
            self._region.release()
            raise
        self._bytes = memory.tensor(
            self._region.address, torch.uint8, (self._region.size_bytes,), (1,)
        )

    def write(self, offset: int, data: Tensor) -> None:
        self._bytes[offset : offset + data.numel()].copy_(data)

    def blank(self) -> None:
        self._bytes.fill_(BLANK)

    def read(self, offset: int, size_bytes: int) -> Tensor:
        return self._bytes[offset : offset + size_bytes].clone()

    def holds(self, offset: int, data: Tensor | int) -> bool:
        if isinstance(data, int):
            return bool((self._bytes[offset : offset + data] == BLANK).all())
        return torch.equal(self._bytes[offset : offset + data.numel()], data)

    def places(self, spots: Sequence[tuple[int, int]]) -> bytes:
        # One kernel and one copy: the clock waits for this.
        index = np.concatenate([np.arange(at, at + size) for at, size in spots])
        found = self._bytes[torch.from_numpy(index).to(self._bytes.device)]
        return found.cpu().numpy().tobytes()

    def finish(self, *, fixed: bool) -> None:
        """Do nothing: a GPU's memory takes no seals, so the judge compares it afterwards."""

    def close(self) -> None:
        del self._bytes
        os.close(self.descriptor)
        self._region.release()


Memory = HostMemory | DeviceMemory
Block = HostBlock | DeviceBlock


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return a tensor's memory from its first element to its last, gaps included, as bytes."""
    elements = span(tensor.shape, tensor.stride())
    if not elements:
        return _nothing().to(tensor.device)
    flat = torch.as_strided(tensor, (elements,), (1,), tensor.storage_offset()).contiguous()
    return flat.view(torch.uint8)


def filled(size_bytes: int, byte: int) -> Iterator[memoryview]:
    """Yield so many bytes of BLANK or BEYOND."""
    whole = memoryview(_FILLED[byte])
    for at in range(0, size_bytes, len(whole)):
        yield whole[: size_bytes - at]


def bytes_of(data: Tensor) -> memoryview:
    """Return the bytes of a flat tensor, which are not copied."""
    return memoryview(data.numpy().data).cast("B") if data.numel() else memoryview(b"")


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


FLUSHED: Final = 2  # Bytes that a device writes before each batch, over the size of its last cache
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
        """Return the seconds between two marks by the device's own clock, if it has one."""
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
        assert isinstance(block, DeviceBlock)
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
