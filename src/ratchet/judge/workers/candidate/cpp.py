"""The worker of a compiled kernel: inside the sandbox, without torch, numpy or any secret.

It compiles a source and hands the library out, or it loads a library and calls its entry on shared
memory that the judge reveals. Nothing it says is believed: the reference worker reads the outputs
from the shared memory, and the judge's own process holds the clock.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ratchet.base.process.channel import Message, inherited
from ratchet.judge.abi import Entry, pack_scalars, pack_tensors, words
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.sandbox.confine import confine
from ratchet.judge.sandbox.serving import (
    CHANGED,
    Answer,
    Reply,
    changes,
    process_state,
    serve_candidate,
)
from ratchet.judge.sandbox.shared_memory import (
    IN_PLACE,
    INPUTS,
    OUTPUTS,
    BatchLayout,
    MappedRegion,
    Slot,
    shift_heap,
)


class CppBatch:
    """Calls whose arguments are packed, pointing at memory that is not there yet."""

    def __init__(self, layout: BatchLayout) -> None:
        self.regions = [MappedRegion(*place) for place in layout.places()]
        bases = [region.address for region in self.regions]
        self.scalars = pack_scalars(layout.scalars)
        self.scalar_count = len(layout.scalars)
        self.calls = [_pack(call, bases) for call in layout.calls]
        self.writable_inputs = layout.writable_inputs

    def run(self, entry: Entry, descriptors: list[int]) -> list[int]:
        """Reveal the memory and make every call; return the codes of the entry."""
        self.reveal(descriptors)
        scalars, count = self.scalars, self.scalar_count
        return [entry(packed, number, scalars, count) for packed, number in self.calls]

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
        self._batch: CppBatch | None = None
        self._last: CppBatch | None = None
        self._state = process_state()

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
        return {"value": None}, []

    def _prepare(self, message: Message, _: list[int]) -> Reply:
        # The last batch keeps its addresses until now, so that this one cannot get them again,
        # unless it is to lie where earlier ones lay.
        layout = BatchLayout.of(message["layout"])
        if layout.bases:
            self._release_last()
            self._last, self._batch = self._batch, None
            self._release_last()
        batch = CppBatch(layout)
        self._release_last()
        self._last, self._batch = self._batch, batch
        return {"value": None, CHANGED: changes(self._state, process_state())}, []

    def _release_last(self) -> None:
        if self._last is not None:
            self._last.release()
        self._last = None

    def _go(self, _: Message, descriptors: list[int]) -> Reply:
        assert self._batch is not None and self._entry is not None
        began = time.process_time()
        codes = self._batch.run(self._entry, descriptors)
        return {"codes": codes, "cpu_time_s": time.process_time() - began}, []


def _pack(call: Sequence[Slot], bases: Sequence[int]) -> tuple[bytes, int]:
    flat: list[int] = []
    for region, offset, dtype, size, stride in call:
        flat += words(bases[region] + offset, dtype, size, stride)
    return pack_tensors(flat), len(call)


def main() -> None:
    """Confine this process, then serve the judge; argv holds the limits and the channel."""
    channel = inherited(int(sys.argv[2]))
    confine(sys.argv[1])
    shift_heap()
    serve_candidate(channel, CppWorker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
