"""The worker of a compiled kernel: inside the sandbox, without torch, numpy or any secret.

It compiles a source and hands the library out; or it loads a library and calls its entry on shared
memory that the judge reveals. Nothing it says is believed: the outputs are read from the shared
memory by others, and the time is taken outside.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.judge.channel import Channel, ChannelClosed, close_descriptors, inherited
from ratchet.judge.workers.confine import confine
from ratchet.judge.workers.mapping import Region, shift_heap
from ratchet.kernels.abi import Entry, pack_scalars, pack_tensors, words
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp

Reply = tuple[dict[str, Any], list[int]]
INPUTS, IN_PLACE, OUTPUTS = 0, 1, 2
"""Regions of a batch, as `shared_batch` numbers them."""


class Batch:
    """Calls whose arguments are packed, pointing at memory that is not there yet."""

    def __init__(self, layout: dict[str, Any]) -> None:
        """Reserve the addresses."""
        sizes = zip(layout["region_bytes"], layout["slack_pages"], strict=True)
        self.regions = [Region(size, slack) for size, slack in sizes]
        bases = [region.address for region in self.regions]
        self.scalars = pack_scalars(layout["scalars"])
        self.scalar_count = len(layout["scalars"])
        self.calls = [_pack(call, bases) for call in layout["calls"]]
        self.writable_inputs: bool = layout["writable_inputs"]

    def run(self, entry: Entry, descriptors: list[int]) -> list[int]:
        """Reveal the memory and make every call; the codes that the entry returned."""
        self.reveal(descriptors)
        scalars, count = self.scalars, self.scalar_count
        return [entry(packed, number, scalars, count) for packed, number in self.calls]

    def reveal(self, descriptors: list[int]) -> None:
        """Map the memory where the arguments point: nothing can be written before the clock."""
        self.regions[INPUTS].reveal(descriptors[0], writable=self.writable_inputs)
        self.regions[IN_PLACE].reveal(descriptors[1], writable=True)
        self.regions[OUTPUTS].reveal(descriptors[2], writable=True)

    def release(self) -> None:
        """Give the addresses back."""
        for region in self.regions:
            region.release()


class Worker:
    """Compiles, loads and calls one kernel."""

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._batch: Batch | None = None
        self._last: Batch | None = None

    def answer(self, message: dict[str, Any], descriptors: list[int]) -> Reply:
        """Do what the judge asks."""
        actions: dict[str, Callable[[dict[str, Any], list[int]], Reply]] = {
            "compile": self._compile,
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
        }
        return actions[message["do"]](message, descriptors)

    def _compile(self, message: dict[str, Any], _: list[int]) -> Reply:
        path = cpp.compile_kernel(
            Kernel.from_json(message["kernel"]),
            cache=Path(tempfile.gettempdir()) / "build",
            included=Path(message["included"]) if "included" in message else None,
        )
        return {"value": None}, [os.open(path, os.O_RDONLY)]

    def _load(self, message: dict[str, Any], descriptors: list[int]) -> Reply:
        self._entry = cpp.load(Path(f"/proc/self/fd/{descriptors[0]}"), message["entry"])
        return {"value": None}, []

    def _prepare(self, message: dict[str, Any], _: list[int]) -> Reply:
        # The last batch keeps its addresses until now, so that this one cannot get them again.
        batch = Batch(message["layout"])
        if self._last is not None:
            self._last.release()
        self._last, self._batch = self._batch, batch
        return {"value": None}, []

    def _go(self, _: dict[str, Any], descriptors: list[int]) -> Reply:
        assert self._batch is not None and self._entry is not None
        began = time.process_time()
        codes = self._batch.run(self._entry, descriptors)
        return {"codes": codes, "cpu_time_s": time.process_time() - began}, []


def _pack(call: list[Any], bases: Sequence[int]) -> tuple[bytes, int]:
    flat: list[int] = []
    for region, offset, dtype, size, stride in call:
        flat += words(bases[region] + offset, dtype, size, stride)
    return pack_tensors(flat), len(call)


def serve(channel: Channel, answer: Callable[[dict[str, Any], list[int]], Reply]) -> None:
    """Answer messages until the judge closes the channel."""
    while True:
        try:
            message, descriptors = channel.receive()
        except ChannelClosed:
            return
        try:
            reply, handed = answer(message, descriptors)
        except (Exception, SystemExit) as error:  # the process boundary: the judge decides
            traceback.print_exc()
            reply, handed = {"error": describe_error(error)}, []
        channel.send(reply, handed)
        close_descriptors(handed)
        if message["do"] != "load":  # a loaded library may be looked up again by its descriptor
            close_descriptors(descriptors)


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error as the judge reads it; `known` are Ratchet's own one-line messages."""
    known = isinstance(error, RatchetError)
    return {"kind": type(error).__name__, "message": str(error)[:1000], "known": known}


def main() -> None:
    """Confine this process, then serve the judge: arguments are the limits and the channel."""
    channel = inherited(int(sys.argv[2]))
    confine(sys.argv[1])
    shift_heap()
    serve(channel, Worker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
