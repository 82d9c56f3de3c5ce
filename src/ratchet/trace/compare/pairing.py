"""Collectives of several ranks: the communication kernels that ran together are one."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ratchet.trace.answers.collectives import CollectiveRow

_TOGETHER = 0.5
"""All ranks' runs must overlap for this share of the shortest run.

The last rank to arrive ends with the others, so its whole run should overlap; the margin allows for
clocks that differ a little.
"""
_ON_HOST = "gloo:"
"""Kernels of a CPU backend, whose ranks need only overlap at all.

A rank that waits for a core goes on later than the others: on busy cores the runs of one all-reduce
shared a fifth of the shortest.
"""
_SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Operations in which every rank's message has the same size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One rank's run of a collective, in ns on the clock that all ranks share."""

    start: int
    end: int
    size_bytes: int

    @property
    def duration(self) -> int:
        return self.end - self.start


Key = tuple[str, str, str]
"""Operation, process group and kernel name, which all runs of a collective share."""


def is_on_host(key: Key) -> bool:
    """Return True for a collective of a CPU backend."""
    return key[2].startswith(_ON_HOST)


def runs_by_key(rows: Sequence[CollectiveRow], epoch: int) -> dict[Key, list[Run]]:
    """Return one rank's runs of each sort of collective, in order of time."""
    found: dict[Key, list[Run]] = {}
    for row in rows:
        start = row.start + epoch
        size = row.size_bytes if row.operation in _SAME_SIZES else 0
        run = Run(start=start, end=start + row.duration, size_bytes=size)
        # Gloo's sends and receives have names of their own; a send's partner is a receive.
        between_two = row.operation == "send_recv" and row.kernel.startswith(_ON_HOST)
        kernel = _ON_HOST if between_two else row.kernel
        found.setdefault((row.operation, row.group, kernel), []).append(run)
    for runs in found.values():
        runs.sort(key=lambda run: run.start)
    return found


def paired(runs: Mapping[int, Sequence[Run]], *, on_host: bool = False) -> list[dict[int, Run]]:
    """Return one key's collectives that every rank ran, in order of time, each as runs by rank.

    Two runs belong to one collective if each is the other's longest overlap. All ranks' runs must
    share half of the shortest one's time: a collective cannot end before its last rank begins.
    `on_host` collectives need only overlap.
    """
    share = 0.0 if on_host else _TOGETHER
    fewest = min(runs, key=lambda rank: len(runs[rank]))
    others = {rank: _partners(runs[fewest], own) for rank, own in runs.items() if rank != fewest}
    found = []
    for place, run in enumerate(runs[fewest]):
        partners = {rank: own[place] for rank, own in others.items()}
        known = {rank: runs[rank][at] for rank, at in partners.items() if at is not None}
        together = {fewest: run} | known
        shortest = min(one.duration for one in together.values())
        if len(together) == len(runs) and _overlap(*together.values()) >= share * shortest:
            found.append(together)
    return found


def _partners(runs: Sequence[Run], others: Sequence[Run]) -> list[int | None]:
    """Return for each run the other rank's run with the longest overlap, if that is mutual."""
    starts = [run.start for run in others]
    ends = list(itertools.accumulate((run.end for run in others), max))
    best: list[tuple[int, int | None]] = [(0, None)] * len(runs)
    best_back: list[tuple[int, int | None]] = [(0, None)] * len(others)
    for place, run in enumerate(runs):
        first = bisect.bisect_right(ends, run.start)
        for at in range(first, bisect.bisect_left(starts, run.end)):
            if 0 < run.size_bytes != others[at].size_bytes > 0:
                continue
            shared = _overlap(run, others[at])
            best[place] = max(best[place], (shared, at), key=lambda one: one[0])
            best_back[at] = max(best_back[at], (shared, place), key=lambda one: one[0])
    return [
        at if at is not None and best_back[at][1] == place else None
        for place, (_, at) in enumerate(best)
    ]


def _overlap(*runs: Run) -> int:
    """Return the time during which all runs overlap, in ns; negative if they do not."""
    return min(run.end for run in runs) - max(run.start for run in runs)
