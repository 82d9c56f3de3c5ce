"""The worker of a compiled kernel: inside the sandbox, without torch, numpy or any secret.

It compiles a source and hands the library out, or it loads a library and calls its entry on shared
memory that the judge reveals. Nothing it says is believed: the reference worker reads the outputs
from the shared memory, and the judge's own process holds the clock.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ratchet.base.process.channel import Message, close_descriptors, inherited
from ratchet.judge.abi import Entry, pack_scalars, pack_tensors, words
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.sandbox.confine import confine
from ratchet.judge.sandbox.serving import (
    CHANGED,
    Answer,
    Reply,
    State,
    changes,
    process_state,
    serve_candidate,
    signals,
)
from ratchet.judge.sandbox.shared_memory import (
    IN_PLACE,
    INPUTS,
    OUTPUTS,
    BatchLayout,
    Handing,
    LastBatches,
    MappedRegion,
    Slot,
    shift_heap,
)

ALIGNMENT, BLANK = 64, 0xFF
Copy = tuple[int, int, int]  # To, from and bytes


class StandingMemory:
    """Memory of a case's own for two sets of its tensors, which stay from batch to batch."""

    def __init__(self, call: Sequence[Slot]) -> None:
        self._offsets, self._end = [], 0
        for slot in call:
            self._offsets.append(self._end)
            self._end += -(-slot.span_bytes // ALIGNMENT) * ALIGNMENT
        self._memory = mmap.mmap(-1, max(1, 2 * self._end))
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._blank: set[bool] = set()

    def addresses(self, odd: bool) -> list[int]:
        """Return the addresses of one set's tensors, which hold NaN at first."""
        first = self._base + odd * self._end
        if odd not in self._blank:
            self._blank.add(odd)
            ctypes.memset(first, BLANK, self._end)
        return [first + one for one in self._offsets]


class CppBatch:
    """Calls whose arguments are packed, pointing at memory that is not there yet."""

    def __init__(self, layout: BatchLayout, standing: dict[str, StandingMemory]) -> None:
        """`standing` holds the memory that cases have kept from earlier batches."""
        self.regions = [MappedRegion(*place) for place in layout.places()]
        bases = [region.address for region in self.regions]
        self.scalars = pack_scalars(layout.scalars)
        self.scalar_count = len(layout.scalars)
        self.writable_inputs = layout.writable_inputs
        places = [[bases[slot.region] + slot.offset for slot in call] for call in layout.calls]
        self._copies: dict[int, tuple[list[Copy], list[Copy]]] = {}
        """Copies before and after a call whose tensors stay."""
        for call, how in enumerate(layout.handing):
            if how == Handing.OWN:
                continue
            slots = layout.calls[call]
            form = str([slot[2:] for slot in slots])
            if form not in standing:
                standing[form] = StandingMemory(slots)
            stays = standing[form].addresses(how == Handing.IN_TURN and call % 2 == 1)
            self._copies[call] = _copies(slots, places[call], stays, how)
            for at, slot in enumerate(slots):
                if slot.region != OUTPUTS or how == Handing.UNTOLD:
                    places[call][at] = stays[at]
        # Calls on the same tensors also have the same array of arguments, as those of a loop may.
        same: dict[bytes, bytes] = {}
        self.calls = [
            (same.setdefault(packed, packed), number)
            for packed, number in map(_pack, layout.calls, places)
        ]

    def run(self, entry: Entry, descriptors: list[int]) -> list[int]:
        """Reveal the memory and make every call; return the codes of the entry."""
        self.reveal(descriptors)
        close_descriptors(descriptors)  # the kernel needs the memory, not its files
        descriptors.clear()
        scalars, count = self.scalars, self.scalar_count
        if self._copies:
            return list(self._run_as_a_loop(entry))
        return [entry(packed, number, scalars, count) for packed, number in self.calls]

    def _run_as_a_loop(self, entry: Entry) -> Iterator[int]:
        for call, (packed, number) in enumerate(self.calls):
            before, after = self._copies.get(call, ([], []))
            for one in before:
                ctypes.memmove(*one)
            code = entry(packed, number, self.scalars, self.scalar_count)
            for one in after if code == 0 else ():
                ctypes.memmove(*one)
            yield code

    def reveal(self, descriptors: list[int]) -> None:
        """Map the memory where the arguments point; nothing can be written earlier."""
        self.regions[INPUTS].reveal(descriptors[0], writable=self.writable_inputs)
        self.regions[IN_PLACE].reveal(descriptors[1], writable=True)
        self.regions[OUTPUTS].reveal(descriptors[2], writable=True)

    def release(self) -> None:
        for region in self.regions:
            region.release()


class CppWorker:
    """Compiles, loads and calls one kernel."""

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._batches: LastBatches[CppBatch] = LastBatches()
        self._standing: dict[str, StandingMemory] = {}
        self._state = _state()

    def answer(self, message: Message, descriptors: list[int]) -> Reply:
        actions: dict[str, Answer] = {
            "compile": self._compile,
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
        }
        return actions[message["do"]](message, descriptors)

    def _compile(self, message: Message, _: list[int]) -> Reply:
        path = cpp.compile_kernel(
            Kernel.from_json(message["kernel"]),
            cache=Path(tempfile.gettempdir()) / "build",
            included=Path(message["included"]) if "included" in message else None,
        )
        return {"value": None}, [os.open(path, os.O_RDONLY)]

    def _load(self, message: Message, descriptors: list[int]) -> Reply:
        self._entry = cpp.load(Path(f"/proc/self/fd/{descriptors[0]}"), message["entry"])
        known = {name: one for name, one in self._state.items() if one}
        self._state = {**_state(), **known}  # OpenMP may come with the library
        return {"value": None}, []

    def _prepare(self, message: Message, _: list[int]) -> Reply:
        layout = BatchLayout.of(message["layout"])
        self._batches.take(layout, lambda: CppBatch(layout, self._standing))
        return {"value": None, CHANGED: changes(self._state, _state())}, []

    def _go(self, _: Message, descriptors: list[int]) -> Reply:
        assert self._batches.now is not None and self._entry is not None
        began = time.process_time()
        codes = self._batches.now.run(self._entry, descriptors)
        return {"codes": codes, "cpu_time_s": time.process_time() - began}, []


def _state() -> State:
    """Return what a call must leave as it was, in words. No library here handles signals."""
    return {**process_state(), "handled signals": signals("SigCgt:")}


def _pack(call: Sequence[Slot], places: Sequence[int]) -> tuple[bytes, int]:
    flat: list[int] = []
    for (_, _, dtype, size, stride), place in zip(call, places, strict=True):
        flat += words(place, dtype, size, stride)
    return pack_tensors(flat), len(call)


def _copies(
    slots: Sequence[Slot], own: Sequence[int], stays: Sequence[int], how: Handing
) -> tuple[list[Copy], list[Copy]]:
    """Return what is copied before a call and after it, if its tensors stay."""
    before, after = [], []
    for slot, place, stay in zip(slots, own, stays, strict=True):
        if slot.region != OUTPUTS:
            before.append((stay, place, slot.span_bytes))
        if slot.region == IN_PLACE or (slot.region == OUTPUTS and how == Handing.UNTOLD):
            after.append((place, stay, slot.span_bytes))
    return before, after


def main() -> None:
    """Confine this process, then serve the judge; argv holds the limits and the channel."""
    channel = inherited(int(sys.argv[2]))
    confine(sys.argv[1])
    shift_heap()
    serve_candidate(channel, CppWorker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
