"""The memory of a pretended GPU, which host code can neither read nor write, as on a real one."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ratchet.amd.emulator.launch import LaunchMemory
from ratchet.base.errors import KernelError

CLOSED: Final = 0
OPEN: Final = mmap.PROT_READ | mmap.PROT_WRITE
APART_BYTES: Final = 1 << 20
"""Distance between tensors: an access outside of one is a fault, and never hits another."""
MOST_BYTES: Final = 4 << 30  # most memory at a time, including what the host code allocates


class GpuBlock:
    """A stretch of the memory."""

    def __init__(self, size: int, *, open_to_host: bool = False, lasts: bool = False) -> None:
        """`lasts`: `forget` keeps it."""
        self.size = max(1, size)
        self.lasts = lasts
        self.open_to_host = open_to_host
        whole = torch.frombuffer(mmap.mmap(-1, self.size + 2 * APART_BYTES), dtype=torch.uint8)
        self._storage: Any = StorageWeakRef(whole.untyped_storage())  # type: ignore[no-untyped-call]
        self._held: Tensor | None = whole[APART_BYTES : APART_BYTES + self.size]
        self.address = self._held.data_ptr()
        self._held.fill_(255)  # what nobody wrote is NaN, or -1

    @property
    def bytes(self) -> Tensor:
        """The block's bytes, unless only its tensors hold it."""
        assert self._held is not None
        return self._held

    @property
    def is_gone(self) -> bool:
        """True if no tensor lies here any more."""
        return self._held is None and bool(self._storage.expired())

    def leave_to_tensors(self) -> None:
        """Keep the block only as long as a tensor lies in it."""
        self._held = None

    def holds(self, place: int, size: int = 1) -> bool:
        """Return whether a stretch lies inside."""
        return self.address <= place and place + size <= self.address + self.size

    def protect(self, allowed: int) -> None:
        """Open or close the memory."""
        if self.is_gone:
            return
        failed = ctypes.CDLL(None).mprotect(
            ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), allowed
        )
        if failed and not self.is_gone:  # the last tensor may have been collected on the way
            raise KernelError("the memory of the pretended GPU cannot be protected")


class GpuMemory:
    """All blocks, closed while host code runs."""

    def __init__(self) -> None:
        self._blocks: dict[int, GpuBlock] = {}
        self._allowed = OPEN

    def block(self, size: int, *, open_to_host: bool = False, lasts: bool = False) -> GpuBlock:
        """Return a new block, closed if the memory is."""
        self._blocks = {at: one for at, one in self._blocks.items() if not one.is_gone}
        if size + sum(one.size for one in self._blocks.values()) > MOST_BYTES:
            raise KernelError(f"a call with more than {MOST_BYTES >> 30} GiB is not emulated")
        made = GpuBlock(size, open_to_host=open_to_host, lasts=lasts)
        if not open_to_host:
            made.protect(self._allowed)
        self._blocks[made.address] = made
        return made

    def forget(self) -> None:
        """Drop the blocks of a call."""
        self._blocks = {at: one for at, one in self._blocks.items() if one.lasts}

    def release(self, place: int) -> bool:
        """Drop the block that begins here; False if there is none."""
        return self._blocks.pop(place, None) is not None

    def find(self, place: int, size: int = 1) -> GpuBlock | None:
        """Return the block around a stretch of memory."""
        blocks = self._blocks.values()
        return next((one for one in blocks if one.holds(place, size) and not one.is_gone), None)

    def ranges(self) -> list[LaunchMemory]:
        """Return what a launch may touch."""
        return [
            LaunchMemory(one.address, one.size) for one in self._blocks.values() if not one.is_gone
        ]

    def closed(self) -> AbstractContextManager[None]:
        return self._set(CLOSED)

    def opened(self) -> AbstractContextManager[None]:
        """Open the memory inside, for a launch or a copy."""
        return self._set(OPEN)

    @contextlib.contextmanager
    def _set(self, allowed: int) -> Iterator[None]:
        before = self._allowed
        if before != allowed:
            self._protect(allowed)
        try:
            yield
        finally:
            if before != allowed:
                self._protect(before)

    def _protect(self, allowed: int) -> None:
        self._allowed = allowed
        for one in self._blocks.values():
            if not one.open_to_host:
                one.protect(allowed)
