"""The outputs of a batch as the judge reads them: nothing may be written after the answer.

The judge reads a secret sample of spots as soon as an answer arrives, and again when every process
of the candidate is stopped. A spot that changed in between was written after the clock had stopped.
A GPU works on while processes are stopped: there the reference worker reads, and the clock stops
only after its first reading.

A compiled kernel writes its outputs to shared memory. A kernel in Python returns them: its worker
reports their addresses (`workers.candidate.results`), and the judge reads them there, through
/proc/PID/mem (proc(5)) of the process that the kernel says has answered. So nothing is copied
inside the clock, and a candidate gains nothing by writing straight to where a copy would go. This
takes the rights of a debugger. If the judge lacks them, the worker copies (`copies_outputs`).

A returned output has memory of its own, unless the reference's has not: a script would see a view
of an input change with that input, and a view costs nothing where the reference copies.
"""

from __future__ import annotations

import math
import mmap
import os
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ratchet.base import Json
from ratchet.judge.sandbox.shared_memory import INPUTS, BatchLayout, Slot, span

SPOTS: Final = 48
SPOT_BYTES: Final = 128
MOST_GAPS: Final = 2
"""The worker makes a result dense if its elements lie over more than this many times their size."""
MOST_ADDRESS: Final = 1 << 56
PIECE_BYTES: Final = 16 << 20
OVERLAP_WORK: Final = 100_000  # Steps in which numpy must find an element that two outputs share

Spot = tuple[int, int, int]  # Region, offset and size in bytes
Read = Callable[[Sequence[Spot]], list[bytes]]


class Unreadable(Exception):
    """The reported addresses are nonsense, or nothing can be read there."""


class OutputSpots:
    """Secret spots of one batch's outputs in shared memory."""

    def __init__(
        self, layout: BatchLayout, memories: Sequence[int], read: Read | None = None
    ) -> None:
        """Draw the spots. `memories` are the descriptors of the three regions.

        `read` reads the spots if they lie on a GPU, where the judge cannot.
        """
        rng = random.SystemRandom()
        slots = [slot for call in layout.calls for slot in call if slot.region != INPUTS]
        often = SPOTS // max(1, len(slots))
        drawn = slots * often if often else rng.sample(slots, SPOTS)
        self._spots = [_spot(slot, rng) for slot in drawn]
        rng.shuffle(self._spots)
        self._memories, self._ask = memories, read

    def read(self) -> list[bytes]:
        if self._ask is not None:
            return self._ask(self._spots) if self._spots else []
        return [os.pread(self._memories[region], size, at) for region, at, size in self._spots]


class ReturnedOutputs:
    """The outputs of one batch that a kernel in Python returned. Close it before the next batch."""

    def __init__(self, layout: BatchLayout, memories: Sequence[int]) -> None:
        self._memories = memories
        self._slots = [layout.answers(call) for call in range(len(layout.calls))]
        rng = random.SystemRandom()
        all_of_them = [(c, p) for c, slots in enumerate(self._slots) for p in range(len(slots))]
        drawn = rng.choices(all_of_them, k=SPOTS) if all_of_them else []
        self._spots = [(call, position, rng.random()) for call, position in drawn]
        self._reported: Sequence[Json] = ()
        self._file: int | None = None
        self._pid = 0
        self._inputs: list[tuple[int, int]] | None = None
        """Where the batch's inputs are mapped, once that was read."""
        self._views = layout.views

    def found(self, pid: int, reported: Json) -> list[bytes]:
        """Return the bytes at the spots, once `pid` has reported where its outputs lie."""
        self.close()
        self._reported, self._inputs = reported, None
        self._pid, self._file = pid, open_memory(pid)
        return self.spots()

    def spots(self) -> list[bytes]:
        """Return the bytes at the spots now."""
        return [self._spot(*spot) for spot in self._spots]

    def deliver(self, call: int) -> None:
        """Copy the outputs of one call to the shared memory, where the reference worker reads."""
        for position, slot in enumerate(self._slots[call]):
            if 0 in slot.size:
                continue
            address, given = self._place(call, position)
            item = slot.item_bytes
            # Through a mapping: a candidate has the same open file, and one that set O_APPEND there
            # would move what is written to it.
            with mmap.mmap(self._memories[slot.region], 0) as memory:
                if given == list(slot.stride):
                    self._copy(address, span(slot.size, given) * item, memory, slot.offset)
                    continue
                unit = np.dtype(f"u{item}")
                found = np.frombuffer(self._read(address, span(slot.size, given) * item), unit)
                dense = np.zeros(span(slot.size, slot.stride), unit)
                _strided(dense, slot.size, slot.stride)[...] = _strided(found, slot.size, given)
                memory[slot.offset : slot.offset + dense.nbytes] = dense.tobytes()

    def shared(self, call: int) -> str:
        """Return how an output of a call has no memory of its own, in words; "" if all have."""
        placed: list[tuple[int, np.ndarray]] = []
        for position, slot in enumerate(self._slots[call]):
            if self._views or 0 in slot.size:
                continue
            address, stride = self._place(call, position)
            item = slot.item_bytes
            end = address + span(slot.size, stride) * item
            if any(begin < end and address < last for begin, last in self._mapped_inputs()):
                return f"output {position} is a view of an input, and the reference's is not"
            one = _there(address, slot.size, stride, item)
            if (other := next((at for at, two in placed if _overlap(one, two)), None)) is not None:
                return f"outputs {other} and {position} share memory, and the reference's do not"
            placed.append((position, one))
        return ""

    def _mapped_inputs(self) -> list[tuple[int, int]]:
        if self._inputs is None:
            inode = str(os.fstat(self._memories[INPUTS]).st_ino)
            with open(f"/proc/{self._pid}/maps", encoding="utf-8", errors="replace") as file:
                lines = [line.split() for line in file]
            ranges = [line[0].split("-") for line in lines if line[4] == inode]
            self._inputs = [(int(begin, 16), int(end, 16)) for begin, end in ranges]
        return self._inputs

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _spot(self, call: int, position: int, where: float) -> bytes:
        slot = self._slots[call][position]
        if 0 in slot.size:
            return b""
        address, stride = self._place(call, position)
        span_bytes = span(slot.size, stride) * slot.item_bytes
        length = min(SPOT_BYTES, span_bytes)
        return self._read(address + int(where * (span_bytes - length + 1)), length)

    def _place(self, call: int, position: int) -> tuple[int, list[int]]:
        """Return the reported address and strides of one output; raises Unreadable."""
        slots, reported = self._slots[call], self._reported
        try:
            (address, stride), size = reported[call][position], slots[position].size
            sound = len(reported) == len(self._slots) and len(reported[call]) == len(slots)
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise Unreadable("it told nonsense of where its outputs lie") from error
        if not (sound and _is_whole(address) and _are_strides(stride, size)):
            raise Unreadable("it told nonsense of where its outputs lie")
        return address, stride

    def _copy(self, address: int, size_bytes: int, memory: mmap.mmap, offset: int) -> None:
        """Copy in pieces: large outputs do not pass through the judge's memory as a whole."""
        for at in range(0, size_bytes, PIECE_BYTES):
            piece = self._read(address + at, min(PIECE_BYTES, size_bytes - at))
            memory[offset + at : offset + at + len(piece)] = piece

    def _read(self, address: int, size_bytes: int) -> bytes:
        assert self._file is not None
        parts = []
        while size_bytes:
            try:
                part = os.pread(self._file, min(size_bytes, PIECE_BYTES), address)
            except OSError as error:
                raise Unreadable("there is no memory where it says that its outputs lie") from error
            if not part:
                raise Unreadable("its process has no memory any more")
            parts.append(part)
            address, size_bytes = address + len(part), size_bytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def open_memory(pid: int) -> int:
    """Return a descriptor that reads a process's memory; raises Unreadable if that is denied."""
    try:
        return os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(f"the memory of its process cannot be read ({error.strerror})") from error


def readable(pid: int) -> bool:
    """Return True if the judge may read the memory of a process."""
    try:
        os.close(open_memory(pid))
    except Unreadable:
        return False
    return True


def _spot(slot: Slot, rng: random.Random) -> Spot:
    length = min(SPOT_BYTES, slot.span_bytes)
    return slot.region, slot.offset + rng.randrange(slot.span_bytes - length + 1), length


def _strided(flat: np.ndarray, size: Sequence[int], stride: Sequence[int]) -> np.ndarray:
    return as_strided(flat, tuple(size), tuple(step * flat.itemsize for step in stride))


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_ADDRESS


def _are_strides(stride: object, size: Sequence[int]) -> bool:
    if not isinstance(stride, list) or len(stride) != len(size):
        return False
    if not all(map(_is_whole, stride)):
        return False
    elements = math.prod(size)
    return elements <= span(size, stride) <= MOST_GAPS * max(1, elements)


def _there(address: int, size: Sequence[int], stride: Sequence[int], item: int) -> np.ndarray:
    """Return an array that is never read: its memory is another process's."""
    form = {"data": (address, True), "shape": tuple(size), "typestr": f"|V{item}", "version": 3}
    strides = tuple(step * item for step in stride)
    return np.asarray(SimpleNamespace(__array_interface__={**form, "strides": strides}))


def _overlap(one: np.ndarray, two: np.ndarray) -> bool:
    try:
        return np.shares_memory(one, two, max_work=OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False
