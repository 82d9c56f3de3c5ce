"""Ranks together: each collective's wire time against waiting, stragglers and skew.

The communication kernels of several ranks that ran together are one collective.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ratchet.base import drawn_by
from ratchet.base.errors import TraceError
from ratchet.trace.analysis import SUMMED, Identity
from ratchet.trace.analysis.captures import joined
from ratchet.trace.analysis.links import link
from ratchet.trace.answers.ceilings import Rooflines
from ratchet.trace.answers.collectives import CollectiveRow
from ratchet.trace.answers.counters import kernel_runs
from ratchet.trace.answers.report import Report, report
from ratchet.trace.read import read
from ratchet.trace.read.columns import Trace

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
    bus_bytes: float = 0.0  # Bytes as the bus counts them: those of the bandwidth times the time

    @property
    def duration(self) -> int:
        return self.end - self.start


Key = tuple[str, str, str]
"""Operation, process group and kernel name, which all runs of a collective share."""


def runs_by_key(rows: Sequence[CollectiveRow], epoch: int) -> dict[Key, list[Run]]:
    """Return one rank's runs of each sort of collective, in order of time."""
    found: dict[Key, list[Run]] = {}
    for row in rows:
        start = row.start + epoch
        size = row.size_bytes if row.operation in _SAME_SIZES else 0
        run = Run(
            start=start,
            end=start + row.duration,
            size_bytes=size,
            bus_bytes=row.bus_bandwidth * row.duration / 1e9,
        )
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


STANDS_OUT: Final = 0.02
"""Share of the window by which the waits for a straggler exceed those for any other rank."""
MANY, FAR_AHEAD = 10, 4
"""Collectives after which it is enough to be waited for so many times as long as any other rank."""
SUFFIXES = (".json", ".json.gz", ".gz", ".db", ".xplane.pb", ".pftrace", "kernel_trace.csv")


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedCollective:
    """One collective as its ranks saw it; times in ns."""

    operation: str
    group: str
    index: int  # Its number among the group's paired collectives, in order of time
    wire: int  # The shortest duration over ranks, which begins when the last rank arrives
    waiting: dict[int, int]  # The rest of each rank's duration
    late: int  # The rank that waited least: the others waited for it
    arrived: dict[int, int]  # When each rank began, on the clock that all ranks share
    skew: int  # From the first rank's beginning to the last one's
    end_skew: int  # From the first rank's end to the last one's
    size_bytes: int  # The largest over ranks; 0 if the traces do not say
    bus_bandwidth: float  # Over the wire time, in bytes a second; 0 if the size is not known


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Several ranks' reports, and the differences between them."""

    reports: tuple[Report, ...]
    collectives: tuple[SharedCollective, ...]
    wire: int  # Summed over collectives, in ns
    waiting: dict[int, int]  # Summed by rank, in ns
    straggler: int | None  # The rank that the others waited for longest; None if no rank stands out
    unmatched: int
    """Collectives that not every rank ran at the same time; no other figure here counts them."""
    skew: float  # (Longest - shortest compute time over ranks) / mean
    faults: tuple[str, ...] = ()  # Files of the folder that could not be read, and why

    _repr_html_ = drawn_by("ratchet.trace.show:trace_report")

    @property
    def identity(self) -> Identity:
        """Return the sum over the ranks; its start is 0."""
        own = [one.identity for one in self.reports]
        sums = {name: sum(getattr(one, name) for one in own) for name in SUMMED}
        return Identity(label="", start=0, **sums)


def trace_files(folder: Path) -> list[Path]:
    """Return the traces in a folder by name; TraceError if there are none."""
    files = sorted(
        path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.is_file()
    )
    if not files:
        raise TraceError(
            f"{folder} has no traces: put one .json, .json.gz or .db file per rank there"
        )
    return files


def report_file(
    path: Path, trace: Trace, ceilings: Rooflines | None = None, capture: Path | None = None
) -> Report:
    """Report one file's trace, with its performance counters.

    `capture` is the file of the trace that captured its graphs, if it is another. TraceError if
    that captured none of those that the trace replays.
    """
    faults: list[str] = []
    captured = None if capture is None else read(capture)
    if captured is not None and not (joined(trace, link(trace), captured) >= 0).any():
        raise TraceError(
            f"{captured.name} captured no graph that {trace.name} replays: give the trace of the "
            "run that captured them"
        )
    answers = report(trace, ceilings, kernel_runs(path, trace, faults.append), captured)
    new = dict.fromkeys(fault for fault in faults if fault not in answers.faults)
    return replace(answers, faults=(*answers.faults, *new))


def each_rank(folder: Path, faults: list[str]) -> Iterator[tuple[int, Path, Trace]]:
    """Yield (rank, file, trace) of every file in a folder, one in memory at a time.

    A file that is not a trace is left out, and its error goes into `faults`. TraceError if none can
    be read, or if two files have the same rank.
    """
    seen: dict[int, str] = {}
    for path in trace_files(folder):
        try:
            trace = read(path)
        except TraceError as error:
            faults.append(str(error))
            continue
        rank = trace.rank if trace.rank is not None else len(seen)
        if rank in seen:
            raise TraceError(
                f"{path.name} and {seen[rank]} are both of rank {rank}: keep one file per rank"
            )
        seen[rank] = path.name
        yield rank, path, trace
    if not seen:
        raise TraceError(f"no trace in {folder} can be read: {faults[0]}")


def read_ranks(folder: Path, ceilings: Rooflines | None = None) -> Ranks:
    faults: list[str] = []
    reports = {
        rank: report_file(path, trace, ceilings) for rank, path, trace in each_rank(folder, faults)
    }
    if len(reports) > 1:
        reports = {rank: replace(answers, rank=rank) for rank, answers in reports.items()}
    return replace(across(reports), faults=tuple(faults))


def across(reports: dict[int, Report]) -> Ranks:
    """Match the collectives of several ranks, and find who waited for whom."""
    runs = {rank: runs_by_key(one.collectives, one.epoch) for rank, one in reports.items()}
    pairs: dict[tuple[str, str], list[dict[int, Run]]] = {}
    known = 0
    for key in dict.fromkeys(key for own in runs.values() for key in own):
        of_key = {rank: own.get(key, []) for rank, own in runs.items()}
        known += max(map(len, of_key.values()))
        if len(reports) > 1:
            pairs.setdefault(key[:2], []).extend(
                paired(of_key, on_host=key[2].startswith(_ON_HOST))
            )
    shared = []
    for (operation, group), found in pairs.items():
        found.sort(key=lambda of: max(run.start for run in of.values()))
        for index, of in enumerate(found):
            wire = min(run.duration for run in of.values())
            waits = {rank: run.duration - wire for rank, run in sorted(of.items())}
            late = min(waits, key=lambda rank: (waits[rank], rank))
            starts, ends = [[getattr(run, one) for run in of.values()] for one in ("start", "end")]
            bus = max(run.bus_bytes for run in of.values())
            shared.append(
                SharedCollective(
                    operation=operation, group=group, index=index, wire=wire, waiting=waits,
                    late=late, arrived={rank: of[rank].start for rank in waits},
                    skew=max(starts) - min(starts),
                    end_skew=max(ends) - min(ends),
                    size_bytes=max(run.size_bytes for run in of.values()),
                    bus_bandwidth=bus / wire * 1e9 if wire else 0.0,
                )
            )  # fmt: skip
    waiting = {rank: sum(c.waiting[rank] for c in shared) for rank in sorted(reports)}
    compute = [one.identity.compute for one in reports.values()]
    mean = sum(compute) / len(compute) if compute else 0
    return Ranks(
        reports=tuple(reports[rank] for rank in sorted(reports)),
        collectives=tuple(shared),
        wire=sum(c.wire for c in shared),
        waiting=waiting,
        straggler=_straggler(shared, [one.identity.window for one in reports.values()]),
        unmatched=known - len(shared),
        skew=(max(compute) - min(compute)) / mean if mean else 0.0,
    )


def _straggler(shared: Sequence[SharedCollective], windows: Sequence[int]) -> int | None:
    """Return the rank that was waited for longest, if clearly longer than the next one."""
    blamed: Counter[int] = Counter()
    for collective in shared:
        blamed[collective.late] += sum(collective.waiting.values())
    chief, second = [*blamed.most_common(2), (None, 0), (None, 0)][:2]
    apart = chief[1] - second[1]
    ahead = len(shared) >= MANY and chief[1] > FAR_AHEAD * second[1]
    return chief[0] if ahead or apart > STANDS_OUT * max(windows, default=0) else None
