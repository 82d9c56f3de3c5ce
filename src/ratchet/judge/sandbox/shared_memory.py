"""Memory that a batch's arms share, without torch: its places, its mapping, and packed files.

A layout is what either arm knows before the clock starts: places, no values.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ratchet.base.process.channel import Message
from ratchet.judge.abi import DTYPE_CODES, ITEM_BYTES

INPUTS, IN_PLACE, OUTPUTS = 0, 1, 2
"""Regions of a batch: what a kernel may only read, what it changes, and what it writes."""
NAMES: Final = ("inputs", "in-place", "outputs")
BATCH_PART: Final = 10
"""A batch's inputs and outputs may take this part of a GPU's free memory. It exists as it was drawn
and at its places, and each of four arms keeps its last batch and its results."""


class Handing(IntEnum):
    """A way in which a call gets its inputs, as programs hand them to a kernel."""

    OWN = 0
    """In memory of its own, which no other call of the batch has."""
    REFILLED = 1
    """The same tensors as the last such call's, refilled."""
    UNTOLD = 2
    """The same, but no version counter tells it. A compiled kernel also gets the same outputs."""
    IN_TURN = 3  # Two sets of tensors in turn, refilled, as a prefetcher fills them
    PART = 4  # New views of one larger tensor, refilled
    SWAPPED = 5  # The same tensor objects, with other memory
    GRADIENT = 6  # As UNTOLD, with gradients on: real inputs and weights want one
    OTHER_MODE = 7  # As UNTOLD, a model in training or evaluation mode: not in the problem's

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS: Final = (
    "in memory of their own",
    "in the same tensors, refilled",
    "in the same tensors, refilled without a new version",
    "in two sets of tensors in turn",
    "in views of a larger tensor",
    "in the same tensor objects with other memory",
    "with gradients on",
    "in the model's other mode (training or evaluation)",
)


_ITEM_BYTES: Final = {code: ITEM_BYTES[name] for name, code in DTYPE_CODES.items()}


class Slot(NamedTuple):
    """The place of one tensor of one call."""

    region: int
    offset: int
    dtype: int  # Its code in `problems.dtypes`
    size: Sequence[int]
    stride: Sequence[int]

    @property
    def item_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype]

    @property
    def span_bytes(self) -> int:
        """Return the bytes from its first element to its last, gaps included."""
        return span(self.size, self.stride) * self.item_bytes


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    calls: Sequence[Sequence[Slot]]
    input_count: int = 0
    region_bytes: Sequence[int] = ()
    slack_pages: Sequence[int] = ()
    bases: Sequence[int] = ()
    """The addresses at which the regions begin, for a batch that lies where earlier ones lay; none
    for one that must lie elsewhere."""
    scalars: Sequence[float] = ()
    writable_inputs: bool = False
    views: bool = False
    """True if the reference's own outputs share memory with its inputs or one another."""
    seeds: bool = False  # True if the reference sets torch's seed
    handing: Sequence[Handing] = ()  # How each call gets its inputs; without, each has its own

    @staticmethod
    def of(message: Message) -> BatchLayout:
        calls = [[Slot(*slot) for slot in call] for call in message["calls"]]
        handing = [Handing(one) for one in message["handing"]]
        return BatchLayout(**{**message, "calls": calls, "handing": handing})

    def as_json(self) -> dict[str, object]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def places(self) -> list[tuple[int, int, int]]:
        bases = self.bases or [0] * len(self.region_bytes)
        return list(zip(self.region_bytes, self.slack_pages, bases, strict=True))

    def answers(self, call: int) -> list[Slot]:
        """Return the slots of a call's answers: tensors that it changes, then outputs."""
        slots, count = self.calls[call], self.input_count
        return [*(slot for slot in slots[:count] if slot.region == IN_PLACE), *slots[count:]]


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the number of elements from the first to the last of a tensor, gaps included."""
    if 0 in size:
        return 0
    return 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))


# Shared memory at addresses chosen beforehand: reserved first, mapped when the clock runs.
#
# Both arms map their inputs in the same way: the judge reveals a batch by handing over a
# descriptor, and one mmap(MAP_FIXED | MAP_POPULATE) maps it where the arguments already point.

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


class _Placed(Protocol):
    def release(self) -> None:
        """Give back the addresses."""


Batch = TypeVar("Batch", bound=_Placed)


class LastBatches(Generic[Batch]):
    """A worker's batch in hand, and the one before it, which keeps its addresses for so long.

    So a new batch cannot get them again, unless it is to lie where earlier ones lay.
    """

    def __init__(self) -> None:
        self.now: Batch | None = None
        self._before: Batch | None = None

    def take(self, layout: BatchLayout, make: Callable[[], Batch]) -> None:
        if layout.bases:
            self.release()
            self._before, self.now = self.now, None
            self.release()
        made = make()
        self.release()
        self._before, self.now = self.now, made

    def release(self) -> None:
        """Give back the addresses of the batch before."""
        if self._before is not None:
            self._before.release()
        self._before = None


def _map(address: int, size: int, protection: int, flags: int, descriptor: int) -> int:
    result = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if result is None or result == MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


# Files packed into one descriptor, to go from one process to another.
#
# So go the files that a candidate's first process built, to those after it, and the files that the
# reference worker compiled, to a candidate. Times of change are kept, since ninja compares them.

LOCK: Final = "lock"  # torch's lock of a build in progress
CHUNK_BYTES: Final = 1 << 20
SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedFiles:
    files: Sequence[tuple[str, int, int]]  # Name, time of change (ns) and bytes of each
    descriptor: int  # Their contents, one after another

    @staticmethod
    def of(folder: Path) -> PackedFiles:
        descriptor = os.memfd_create("files", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        told = []
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != LOCK:
                content = path.read_bytes()
                with open(descriptor, "ab", closefd=False) as file:
                    file.write(content)
                name = path.relative_to(folder).as_posix()
                told.append((name, path.stat().st_mtime_ns, len(content)))
        seal(descriptor, SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return PackedFiles(files=told, descriptor=descriptor)

    def unpack(self, folder: Path) -> None:
        """Write the files below a folder."""
        offset = 0
        for name, changed_ns, size in self.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                while size > 0:
                    chunk = os.pread(self.descriptor, min(size, CHUNK_BYTES), offset)
                    if not chunk:
                        raise OSError("there is less than was announced")
                    file.write(chunk)
                    offset, size = offset + len(chunk), size - len(chunk)
            os.utime(path, ns=(changed_ns, changed_ns))

    def close(self) -> None:
        os.close(self.descriptor)
