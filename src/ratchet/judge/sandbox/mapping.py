"""Shared memory at addresses chosen beforehand: reserved first, mapped when the clock runs.

Both arms map their inputs in the same way: the judge reveals a batch by handing over a descriptor,
and one mmap(MAP_FIXED | MAP_POPULATE) maps it where the arguments already point.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import time

PAGE_BYTES = mmap.PAGESIZE
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
SEAL_PATIENCE_S = 3.0
SHIFT_BYTES = 1 << 20
MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def seal(descriptor: int, seals: int) -> None:
    """Add seals to a memfd; raises OSError.

    F_SEAL_WRITE waits until no page has another user, and gives up (EBUSY) too soon if all cores
    are busy: pages wait in other cores' lists (memfd_wait_for_pins in mm/memfd.c).
    """
    deadline = time.monotonic() + SEAL_PATIENCE_S
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise


def shift_heap() -> None:
    """Allocate a random piece of the heap for good, so each process has its own addresses.

    Two forks of one process, or two starts without address randomisation, would otherwise share
    the effects of where their tensors begin.
    """
    _libc.malloc(ctypes.c_size_t(int.from_bytes(os.urandom(4), "little") % SHIFT_BYTES))


class MappedRegion:
    """A reserved range of addresses, inside a larger one so it cannot be foreseen.

    It begins at `base`, or anywhere if that is 0 or taken.
    """

    def __init__(self, size_bytes: int, slack_pages: int, base: int = 0) -> None:
        self.size_bytes = max(PAGE_BYTES, -(-size_bytes // PAGE_BYTES) * PAGE_BYTES)
        self._whole_bytes = self.size_bytes + slack_pages * PAGE_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._whole = _map(base, self._whole_bytes, 0, flags, -1)
        self.address = self._whole + slack_pages * PAGE_BYTES

    def reveal(self, descriptor: int, *, writable: bool) -> None:
        """Map the shared memory behind `descriptor` here, all pages at once."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | MAP_FIXED | mmap.MAP_POPULATE
        _map(self.address, self.size_bytes, protection, flags, descriptor)

    def release(self) -> None:
        _libc.munmap(self._whole, self._whole_bytes)


def _map(address: int, size: int, protection: int, flags: int, descriptor: int) -> int:
    result = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if result is None or result == MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
