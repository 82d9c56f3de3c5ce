"""The executed instructions of a launch by source line, and the order of the waves' lines."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from ratchet.amd.emulator.decode import DecodedKernel
from ratchet.amd.emulator.launch import LaunchCounts

MOST_INSTRUCTIONS: Final = 2000
"""Most instructions of a kernel; the most executed are kept."""
SLOTS: Final = 240
"""Slots of the waves' cycles; each shows the line with most of its cycles."""
MOST_WAVES: Final = 16
MOST_BARRIERS: Final = 200
RUN: Final = struct.Struct("<3I")


def assembly(kernel: DecodedKernel, counts: LaunchCounts) -> dict[str, list[tuple[str, int]]]:
    """Return the executed instructions and their counts, by source line."""
    executed = [at for at, count in enumerate(counts.executed) if count]
    if len(executed) > MOST_INSTRUCTIONS:
        hottest = sorted(executed, key=lambda at: -counts.executed[at])
        executed = sorted(hottest[:MOST_INSTRUCTIONS])
    found: dict[str, list[tuple[str, int]]] = {}
    for at in executed:
        line = found.setdefault(kernel.places[at], [])
        line.append((kernel.texts[at][:160], counts.executed[at]))
    return found


def timeline(kernel: DecodedKernel, counts: LaunchCounts) -> dict[str, object]:
    """Return the line that each wave of the first workgroup ran, in slots of counted cycles.

    Waves leave a barrier together.
    """
    waves = [list(RUN.iter_unpack(one)) for one in counts.runs[:MOST_WAVES]]
    longest: dict[int, int] = {}
    for runs in waves:
        own: dict[int, int] = {}
        for epoch, _, cycles in runs:
            own[epoch] = own.get(epoch, 0) + cycles
        for epoch, cycles in own.items():
            longest[epoch] = max(longest.get(epoch, 0), cycles)
    begins: dict[int, int] = {}
    total = 0
    for epoch in sorted(longest):
        begins[epoch] = total
        total += longest[epoch]
    places = list(dict.fromkeys(kernel.places))
    slot = max(1, -(-total // SLOTS))
    return {
        "cycles": total,
        "slot": slot,
        "barriers": sorted(begins.values())[1 : MOST_BARRIERS + 1],
        "places": places,
        "waves": [_slots(runs, begins, slot) for runs in waves],
    }


def _slots(
    runs: Iterable[tuple[int, int, int]], begins: dict[int, int], slot: int
) -> list[tuple[int, int, int]]:
    """Return runs of slots of one wave: the number of the line, the first slot and one past it."""
    most: dict[int, dict[int, int]] = {}
    at, before = 0, -1
    for epoch, line, cycles in runs:
        if epoch != before:
            at, before = begins[epoch], epoch
        end = at + cycles
        for number in range(at // slot, -(-end // slot)):
            inside = min(end, (number + 1) * slot) - max(at, number * slot)
            lines = most.setdefault(number, {})
            lines[line] = lines.get(line, 0) + inside
        at = end
    found: list[tuple[int, int, int]] = []
    for number in sorted(most):
        lines = most[number]
        line = max(lines, key=lambda one: lines[one])
        if found and found[-1][0] == line and found[-1][2] == number:
            found[-1] = (line, found[-1][1], number + 1)
        else:
            found.append((line, number, number + 1))
    return found
