"""See that the outputs were finished when the answer came: a thread could go on after it.

The judge reads a secret sample of places as soon as an answer arrives, and again when every process
of the candidate stands: a place that changed in between was written after the clock had stopped. A
GPU works on while processes stand; there the reference worker reads, and the clock stops only when
it has read the first time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ratchet.problems import dtypes

SPOTS: Final = 48
SPOT_BYTES: Final = 128
INPUTS: Final = 0
"""The region of a batch that no kernel writes."""
IN_PLACE: Final = 1
"""That of the tensors which a kernel changes."""
ITEM_BYTES: Final = {code: dtypes.ITEM_BYTES[name] for name, code in dtypes.DTYPE_CODES.items()}
"""Bytes of one element, by a dtype's code."""


Spot = tuple[int, int, int]
"""Region, offset and size in bytes."""
Read = Callable[[Sequence[Spot]], list[bytes]]


class OutputSpots:
    """Places of one batch's outputs, drawn from the system's entropy."""

    def __init__(
        self, layout: dict[str, Any], memories: Sequence[int], read: Read | None = None
    ) -> None:
        """`layout` is what `SharedBatch.layout` gives; `memories` are its three descriptors.

        `read` asks somebody else what stands at the places, where a file would not tell.
        """
        rng = random.SystemRandom()
        slots = [slot for call in layout["calls"] for slot in call if slot[0] != INPUTS]
        drawn = rng.sample(slots, SPOTS) if len(slots) > SPOTS else _repeated(slots)
        self._spots = [_spot(slot, rng) for slot in drawn]
        rng.shuffle(self._spots)
        self._memories, self._ask = memories, read

    def read(self) -> list[bytes]:
        """Return what stands there now."""
        if self._ask is not None:
            return self._ask(self._spots) if self._spots else []
        return [os.pread(self._memories[region], size, at) for region, at, size in self._spots]


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the elements from the first to the last of a tensor that is not empty."""
    return 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))


def _repeated(slots: list[Any]) -> list[Any]:
    return slots * (SPOTS // len(slots)) if slots else []


def _spot(slot: Sequence[Any], rng: random.Random) -> Spot:
    region, offset, code, size, stride = slot
    span_bytes = 0 if 0 in size else span(size, stride) * ITEM_BYTES[code]
    length = min(SPOT_BYTES, span_bytes)
    return region, offset + rng.randrange(span_bytes - length + 1), length


Slot = Sequence[Any]
"""Region, offset, dtype's code, size and stride, as `SharedBatch.layout` gives them."""
MOST_GAPS: Final = 2
"""As the worker's: elements lie over at most this many times their size."""
MOST_ADDRESS: Final = 1 << 56
PIECE_BYTES: Final = 16 << 20


class Unreadable(Exception):
    """The places told are nonsense, or nothing can be read there."""


class ReturnedOutputs:
    """The outputs of one batch. Close it before the next."""

    def __init__(self, layout: Mapping[str, Any], memories: Sequence[int]) -> None:
        """Draw the places that are looked at twice (`late_writes`), from the system's entropy."""
        self._memories = memories
        self._slots = [answer_slots(layout, call) for call in layout["calls"]]
        rng = random.SystemRandom()
        all_of_them = [(c, p) for c, slots in enumerate(self._slots) for p in range(len(slots))]
        drawn = rng.choices(all_of_them, k=SPOTS) if all_of_them else []
        self._spots = [(call, position, rng.random()) for call, position in drawn]
        self._told: Sequence[Any] = ()
        self._file: int | None = None

    def found(self, pid: int, told: Any) -> list[bytes]:
        """Return what stands at the secret places, once `pid` has told where its outputs lie."""
        self.close()
        self._told = told
        self._file = open_memory(pid)
        return self.spots()

    def spots(self) -> list[bytes]:
        """Return what stands at the secret places now."""
        return [self._spot(*spot) for spot in self._spots]

    def deliver(self, call: int) -> None:
        """Copy the outputs of one call to the shared memory, where the reference worker reads."""
        for position, slot in enumerate(self._slots[call]):
            region, offset, code, size, stride = slot
            if 0 in size:
                continue
            address, given = self._place(call, position)
            item = ITEM_BYTES[code]
            if given == list(stride):
                self._copy(address, span(size, given) * item, self._memories[region], offset)
                continue
            unit = np.dtype(f"u{item}")
            found = np.frombuffer(self._read(address, span(size, given) * item), unit)
            dense = np.zeros(span(size, stride), unit)
            _strided(dense, size, stride)[...] = _strided(found, size, given)
            _write(self._memories[region], dense, offset)

    def close(self) -> None:
        """Let go of the memory."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _spot(self, call: int, position: int, where: float) -> bytes:
        _, _, code, size, _ = self._slots[call][position]
        if 0 in size:
            return b""
        address, stride = self._place(call, position)
        span_bytes = span(size, stride) * ITEM_BYTES[code]
        length = min(SPOT_BYTES, span_bytes)
        return self._read(address + int(where * (span_bytes - length + 1)), length)

    def _place(self, call: int, position: int) -> tuple[int, list[int]]:
        """The address and strides that were told of one output; raises Unreadable."""
        slots = self._slots[call]
        try:
            (address, stride), size = self._told[call][position], slots[position][3]
            sound = len(self._told) == len(self._slots) and len(self._told[call]) == len(slots)
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise Unreadable("it told nonsense of where its outputs lie") from error
        if not (sound and _is_whole(address) and _are_strides(stride, size)):
            raise Unreadable("it told nonsense of where its outputs lie")
        return address, stride

    def _copy(self, address: int, size_bytes: int, memory: int, offset: int) -> None:
        """In pieces, so that large outputs do not pass through the judge's memory as a whole."""
        for at in range(0, size_bytes, PIECE_BYTES):
            piece = self._read(address + at, min(PIECE_BYTES, size_bytes - at))
            _write(memory, np.frombuffer(piece, np.uint8), offset + at)

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
    """A descriptor that reads the memory of a process; raises Unreadable where that is denied."""
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


def answer_slots(layout: Mapping[str, Any], call: Sequence[Slot]) -> list[Slot]:
    """Return the places of a call's answers: tensors that it changes, then outputs."""
    count = layout["input_count"]
    return [*(slot for slot in call[:count] if slot[0] == IN_PLACE), *call[count:]]


def _strided(flat: np.ndarray, size: Sequence[int], stride: Sequence[int]) -> np.ndarray:
    return as_strided(flat, tuple(size), tuple(step * flat.itemsize for step in stride))


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST_ADDRESS


def _are_strides(stride: Any, size: Sequence[int]) -> bool:
    if not isinstance(stride, list) or len(stride) != len(size):
        return False
    elements = 1
    for extent in size:
        elements *= extent
    return all(map(_is_whole, stride)) and span(size, stride) <= MOST_GAPS * max(1, elements)


def _write(descriptor: int, data: np.ndarray, offset: int) -> None:
    view = memoryview(data.data).cast("B")
    while view:
        written = os.pwrite(descriptor, view[:PIECE_BYTES], offset)
        view, offset = view[written:], offset + written
