"""See that a compiled kernel makes its calls one after another, though all are revealed at once.

A kernel that finds the other calls' arguments in its process could compute several calls together.
No training step would see that gain, because its calls wait for each other. So in some batches at
secret places the judge stops the process at random moments and reads how far the outputs have come:
all calls before the last one that was begun must be finished. This does not detect results that
were computed elsewhere and are copied out in order.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Final

from ratchet.judge.integrity.outputs import ITEM_BYTES
from ratchet.judge.integrity.thread_samples import WatchedFamily, wait
from ratchet.judge.workers.memory.layout import BatchLayout, Slot, span

LOOKS: Final = 8
"""At most this many in one batch."""
SPOTS: Final = 4
"""Places in each call: the beginning, the end and others in between."""
SPOT_BYTES: Final = 16


class CallOrder:
    """One batch, looked at while it runs."""

    def __init__(self, layout: BatchLayout, memories: Sequence[int]) -> None:
        """Draw secret spots and read their first bytes."""
        rng = random.SystemRandom()
        self._memories = memories
        calls = range(len(layout.calls))
        self._spots = [_spots(layout.answers(call), rng) for call in calls]
        self._first = self._read()
        self._seen: list[list[list[bytes]]] = []
        self.looked = 0
        """Moments at which it was seen at work; known after `conclude`."""

    def looks(
        self, family: WatchedFamily, expected_s: float
    ) -> Callable[[Callable[[], bool]], None]:
        """Return a function to call once the batch has begun, which takes about `expected_s`.

        It raises Unseen if the family does not stop.
        """
        draw = random.SystemRandom().random

        def note() -> None:
            self._seen.append(self._read())

        def meanwhile(over: Callable[[], bool]) -> None:
            pause_s = draw() * expected_s
            for _ in range(LOOKS):
                wait(pause_s)
                if over():
                    return
                family.hold(note)
                pause_s = draw() * expected_s / LOOKS

        return meanwhile

    def conclude(self) -> str:
        """Return what was out of order, or "", once the batch has ended and is stopped."""
        last, fault = self._read(), ""
        for seen in self._seen:
            begun, unfinished = _progress(self._first, seen, last)
            if begun and unfinished:
                self.looked += 1
            if begun and any(call < begun[-1] for call in unfinished):
                open_calls = {call for call in unfinished if call < begun[-1]} | {begun[-1]}
                fault = f"at one moment {len(open_calls)} calls of {len(last)} were under way"
        return fault

    def _read(self) -> list[list[bytes]]:
        return [
            [os.pread(self._memories[region], size, at) for region, at, size in spots]
            for spots in self._spots
        ]


def _progress(
    first: Sequence[Sequence[bytes]],
    seen: Sequence[Sequence[bytes]],
    last: Sequence[Sequence[bytes]],
) -> tuple[list[int], list[int]]:
    """Return the calls that were begun, and those not finished, which may not have begun.

    A spot that ends as it began tells nothing.
    """
    begun, unfinished = [], []
    for call, spots in enumerate(zip(first, seen, last, strict=True)):
        telling = [(a, b, c) for a, b, c in zip(*spots, strict=True) if a != c]
        if any(b != a for a, b, _ in telling):
            begun.append(call)
        if any(b != c for _, b, c in telling):
            unfinished.append(call)
    return begun, unfinished


def _spots(slots: Sequence[Slot], rng: random.Random) -> list[tuple[int, int, int]]:
    found = []
    for slot in slots:
        if 0 in slot.size:
            continue
        item = ITEM_BYTES[slot.dtype]
        span_bytes = span(slot.size, slot.stride) * item
        length = min(SPOT_BYTES, span_bytes)
        room = (span_bytes - length) // item
        places = {0, room, *(rng.randint(0, room) for _ in range(SPOTS - 2))}
        found += [(slot.region, slot.offset + place * item, length) for place in sorted(places)]
    return found
