"""Memory for the tensors of a batch, of the machine or of a GPU; both arms use it alike.

A `Block` is memory that the reference worker makes and fills; its descriptor stands for it in the
candidate's process. A `MappedRegion` is a place at which either arm sees it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ratchet.judge.workers.memory.driver_memory import DeviceRegion, Driver
from ratchet.judge.workers.memory.mapping import PAGE_BYTES, MappedRegion, seal

MOST_AT_ONCE = 1 << 30
BLANK = 0xFF
"""Every byte of an output before it is written: NaN in every float dtype."""
_BLANKS = bytes([BLANK]) * (256 << 10)
"""Few enough to stay in a core's cache while they are written again and again."""


class Place(Protocol):
    """Reserved addresses; memory is put there later."""

    address: int

    def reveal(self, descriptor: int, *, writable: bool) -> None:
        """Map the memory behind `descriptor` here."""

    def release(self) -> None:
        """Give the addresses back."""


class Block(Protocol):
    """Memory of one batch as the reference worker holds it."""

    descriptor: int

    def write(self, offset: int, data: Tensor) -> None:
        """Put flat bytes there."""

    def blank(self) -> None:
        """Fill it all with BLANK."""

    def read(self, offset: int, size_bytes: int) -> Tensor:
        """A private copy of what stands there now, as flat bytes."""

    def holds(self, offset: int, data: Tensor | int) -> bool:
        """Return True if flat bytes stand there; or so many blank ones."""

    def places(self, spots: Sequence[tuple[int, int]]) -> bytes:
        """Return what stands at some places, by offset and size in bytes, one after another."""

    def finish(self, *, fixed: bool) -> None:
        """It is filled: from now on its size, and where `fixed` its values, stay, if it can be."""

    def close(self) -> None:
        """Give it up."""


class Memory(Protocol):
    """One kind of memory."""

    device: torch.device
    seals: bool
    """Whether a candidate cannot write what it may only read; else the judge compares it."""

    def block(self, name: str, size_bytes: int) -> Block:
        """New memory, not yet seen by anybody."""

    def region(self, size_bytes: int, slack: int) -> Place:
        """Addresses for a block of that size, `slack` steps into a larger range."""

    def tensor(
        self, address: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        """A tensor at an address, behind which there may be nothing yet."""


class HostMemory:
    """Memory of the machine: sealed memfds, mapped with MAP_FIXED."""

    device = torch.device("cpu")
    seals = True

    def block(self, name: str, size_bytes: int) -> Block:
        return _HostBlock(name, size_bytes)

    def region(self, size_bytes: int, slack: int) -> Place:
        return MappedRegion(size_bytes, slack)

    def tensor(
        self, address: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
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

    def block(self, name: str, size_bytes: int) -> Block:
        return _DeviceBlock(self, size_bytes)

    def region(self, size_bytes: int, slack: int) -> Place:
        return DeviceRegion(self.driver, size_bytes, slack)

    def tensor(
        self, address: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        # __cuda_array_interface__ will not do: torch asks the driver whose the address is, and
        # before the clock starts nothing lies there.
        made: Any = torch._C
        size_bytes = span(size, stride) * dtype.itemsize
        empty = torch.empty(0, dtype=dtype, device=self.device)
        if not size_bytes:
            return empty.new_empty(tuple(size))
        storage = made._construct_storage_from_data_pointer(address, self.device, size_bytes)
        return empty.set_(storage, 0, tuple(size), tuple(stride))


class _HostBlock:
    def __init__(self, name: str, size_bytes: int) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create(f"ratchet-{name}", flags)
        self._size_bytes = size_bytes
        pages = -(-size_bytes // PAGE_BYTES)
        os.ftruncate(self.descriptor, max(PAGE_BYTES, pages * PAGE_BYTES))

    def write(self, offset: int, data: Tensor) -> None:
        self._write(offset, _view(data))

    def blank(self) -> None:
        for offset in range(0, self._size_bytes, len(_BLANKS)):
            self._write(offset, memoryview(_BLANKS)[: self._size_bytes - offset])

    def _write(self, offset: int, view: memoryview) -> None:
        while view:
            written = os.pwrite(self.descriptor, view[:MOST_AT_ONCE], offset)
            view, offset = view[written:], offset + written

    def read(self, offset: int, size_bytes: int) -> Tensor:
        raw = self._read(offset, size_bytes)
        return torch.frombuffer(raw, dtype=torch.uint8) if raw else _nothing()

    def _read(self, offset: int, size_bytes: int) -> bytearray:
        """One call reads 2 GiB at most (read(2))."""
        found = bytearray(size_bytes)
        view, at = memoryview(found), offset
        while view and (count := os.preadv(self.descriptor, [view[:MOST_AT_ONCE]], at)):
            view, at = view[count:], at + count
        return found

    def holds(self, offset: int, data: Tensor | int) -> bool:
        wanted = bytes([BLANK]) * data if isinstance(data, int) else _view(data)
        return bytes(wanted) == self._read(offset, len(wanted))

    def places(self, spots: Sequence[tuple[int, int]]) -> bytes:
        return b"".join(os.pread(self.descriptor, size, offset) for offset, size in spots)

    def finish(self, *, fixed: bool) -> None:
        # Mapping a page for the first time costs most: that is not a part of what is timed.
        access = mmap.PROT_READ | (0 if fixed else mmap.PROT_WRITE)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mmap.mmap(self.descriptor, 0, flags=flags, prot=access).close()
        kept = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        seal(self.descriptor, kept | (fcntl.F_SEAL_WRITE if fixed else 0))

    def close(self) -> None:
        os.close(self.descriptor)


class _DeviceBlock:
    """Mapped here for as long as the batch lives, so that it is filled and read from here."""

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
        """A GPU's memory takes no seals: what may not be written is compared afterwards."""

    def close(self) -> None:
        del self._bytes
        os.close(self.descriptor)
        self._region.release()


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a tensor."""
    if 0 in size:
        return 0
    return 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))


def flat_bytes(tensor: Tensor) -> Tensor:
    """A tensor's memory from its first element to its last, gaps and all, as bytes."""
    elements = span(tensor.shape, tensor.stride())
    if not elements:
        return _nothing().to(tensor.device)
    flat = torch.as_strided(tensor, (elements,), (1,), tensor.storage_offset()).contiguous()
    return flat.view(torch.uint8)


def _view(data: Tensor) -> memoryview:
    return memoryview(data.numpy().data).cast("B") if data.numel() else memoryview(b"")


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)
