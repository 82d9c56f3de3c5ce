"""Memory for the tensors of a batch, on the machine or on a GPU; both arms use it alike.

A block is memory that the reference worker makes and fills. Its descriptor stands for it in the
candidate's process. A region is the place where either arm sees it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.judge.sandbox.mapping import PAGE_BYTES, MappedRegion, seal
from ratchet.judge.workers.memory.driver_memory import DeviceRegion, Driver
from ratchet.judge.workers.memory.layout import span

MOST_AT_ONCE = 1 << 30
BLANK = 0xFF
"""Every byte of an output before it is written: NaN in every float dtype."""
_BLANKS = bytes([BLANK]) * (256 << 10)
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
    """A memfd."""

    def __init__(self, name: str, size_bytes: int) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create(f"ratchet-{name}", flags)
        self._size_bytes = size_bytes
        os.ftruncate(self.descriptor, self.size_bytes)

    def write(self, offset: int, data: Tensor) -> None:
        self._write(offset, _view(data))

    @property
    def size_bytes(self) -> int:
        """Its size, of whole pages."""
        return max(PAGE_BYTES, -(-self._size_bytes // PAGE_BYTES) * PAGE_BYTES)

    def blank(self, begin: int = 0, end: int | None = None) -> None:
        """Fill the block, or a part of it, with BLANK."""
        end = self.size_bytes if end is None else end
        for offset in range(begin, end, len(_BLANKS)):
            self._write(offset, memoryview(_BLANKS)[: end - offset])

    def _write(self, offset: int, view: memoryview) -> None:
        while view:
            written = os.pwrite(self.descriptor, view[:MOST_AT_ONCE], offset)
            view, offset = view[written:], offset + written

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
        """Return True if these flat bytes are there, or that many blank ones."""
        wanted = bytes([BLANK]) * data if isinstance(data, int) else _view(data)
        return bytes(wanted) == self._read(offset, len(wanted))

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


def _view(data: Tensor) -> memoryview:
    return memoryview(data.numpy().data).cast("B") if data.numel() else memoryview(b"")


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)
