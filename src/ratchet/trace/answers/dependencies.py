"""The graph of waits, over the moments at which something began or ended.

Nodes are moments of CPU threads and the start and end of each piece of device work. An edge says
that its target could not happen before its source, and gives the least time between them. The edge
that reached a node last is binding: the node waited for its source.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis import Activity
from ratchet.trace.analysis.intervals import Spans, union
from ratchet.trace.analysis.links import BACKWARD, Links
from ratchet.trace.answers.idle import KERNEL_GAP_NS
from ratchet.trace.answers.kernels import device_rows
from ratchet.trace.read.columns import Bool, Int32, Int64, Kind, Trace

Index = NDArray[np.intp]
BLOCKING = re.compile(r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize")
"""Calls that return once work launched before them has ended."""
OF_ALL_STREAMS = re.compile(r"^(cuda|hip|cu)(Device|Ctx)Synchronize")
"""Blocking calls that wait for every stream."""
COPYING = re.compile(r"^(cuda|hip)Memcpy")
"""Calls that may return only once their own copy has ended."""
WAITING = re.compile(r"^(cuda|hip|cu)StreamWaitEvent")
"""Calls that make a stream wait for another; the columns do not say which."""
_SLOWEST_START_NS = 100_000
"""Work that starts later than this, after all its known predecessors, waited for something else."""
_OF_A_THREAD = 0.01
"""A thread must fill this share of the window with ops to hand work to the backward's thread."""
_NEVER = -(2**62)


class Edge(IntEnum):
    """The reason why a node waited for another."""

    THREAD = 0  # A CPU thread does one thing after another
    WORK = 1  # A piece of device work takes its time
    LAUNCH = 2  # Device work begins after the call that launched it
    STREAM = 3  # A stream runs one piece after another, or waits for another stream
    SYNC = 4  # A call returns when the device has ended what it waits for
    HANDOFF = 5  # The backward's thread begins and ends while the forward's thread waits
    UNKNOWN = 6  # Nothing in the trace says what the node waited for


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """Nodes in topological order; times in ns, none before the window."""

    time: Int64
    lane: Int32  # The thread of a CPU moment; -1 for device work
    row: Int32  # The trace's row of device work; -1 for a CPU moment
    source: Int32  # The source of each edge; edges are sorted by target
    target: Int32
    least: Int64  # The least time from source to target, in ns
    kind: NDArray[np.uint8]  # An `Edge`
    binding: Int32  # The binding edge of each node; -1 if it has none
    sink: int  # The node that ends the window

    @property
    def weight(self) -> Int64:
        """Return each edge's least time; for a binding edge, all the time between its ends."""
        weight = self.least.copy()
        bound = self.binding[self.binding >= 0]
        weight[bound] = self.time[self.target[bound]] - self.time[self.source[bound]]
        return weight


@dataclass(kw_only=True, slots=True)
class _Edges:
    """A list of edges that grows, between nodes that are not sorted yet."""

    parts: list[tuple[Int32, Int32, Int64, NDArray[np.uint8]]] = field(default_factory=list)

    def add(self, source: Index, target: Index, kind: Edge, least: Int64 | int = 0) -> None:
        self.parts.append((
            source.astype(np.int32),
            target.astype(np.int32),
            np.broadcast_to(np.asarray(least, dtype=np.int64), source.shape),
            np.full(source.size, kind, dtype=np.uint8),
        ))  # fmt: skip

    def join(self) -> tuple[Int32, Int32, Int64, NDArray[np.uint8]]:
        """Return (source, target, least, kind) and drop the parts."""
        source, target, least, kind = zip(*self.parts, strict=True)
        self.parts = []
        return (
            np.concatenate(source), np.concatenate(target), np.concatenate(least),
            np.concatenate(kind),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """Device work by stream, then by time; the k-th piece begins at node first + 2k."""

    row: Index
    start: Int64
    end: Int64
    call: Index  # The row of the call that launched it; -1 if there is none
    called: Int64  # Start of that call; start of the work if there is none
    stream: Int32
    streams: tuple[slice, ...]

    @staticmethod
    def of(trace: Trace, links: Links, activity: Activity) -> _Work:
        row = device_rows(trace, links)
        row = row[trace.start[row] + trace.duration[row] <= activity.end]
        row = row[np.lexsort((trace.start[row], trace.stream[row], trace.device[row]))]
        start, call = trace.start[row], links.launch[row]
        other = (np.diff(trace.stream[row]) != 0) | (np.diff(trace.device[row]) != 0)
        bounds = [0, *(np.flatnonzero(other) + 1).tolist(), row.size]
        return _Work(
            row=row,
            start=start,
            end=start + trace.duration[row],
            call=call,
            called=np.where(call >= 0, trace.start[call], start),
            stream=trace.stream[row],
            streams=tuple(slice(a, b) for a, b in itertools.pairwise(bounds) if a < b),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Moments:
    """CPU moments by thread and time; each (thread, time) once."""

    key: Int64  # Thread times the number of times, plus the number of the time
    times: Int64

    @staticmethod
    def of(lane: Index, time: Int64) -> _Moments:
        times, number = np.unique(time, return_inverse=True)
        return _Moments(key=np.unique(lane * times.size + number.reshape(-1)), times=times)

    @property
    def lane(self) -> Int64:
        return self.key // max(self.times.size, 1)

    @property
    def time(self) -> Int64:
        return self.times[self.key % max(self.times.size, 1)]

    def at(self, lane: Index | Int32, time: Int64) -> Index:
        """Return the node of a known moment."""
        number = np.searchsorted(self.times, time)
        return np.searchsorted(self.key, lane.astype(np.int64) * self.times.size + number)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Waits:
    """Calls that waited for the device, and the piece of work whose end let each return."""

    lane: Int32
    start: Int64
    end: Int64
    work: Index


def dependencies(trace: Trace, links: Links, activity: Activity) -> Graph:
    """Build the graph of one trace, up to the end of the activity's window.

    The columns do not say which work a stream or a synchronising call waits for. It is taken to be
    the launched work that ended last before the wait did.
    """
    work = _Work.of(trace, links, activity)
    spans = _spans(trace, activity)
    waits = _waits(trace, work, activity)
    given, taken = _handoffs(trace, spans, activity)
    known = np.flatnonzero(work.call >= 0)
    launching = trace.lane[work.call[known]]
    edge_of_threads = [
        (lane, time) for lane, s in spans.items() for time in (s.start[0], s.end[-1])
    ]
    lanes, times = np.array(edge_of_threads, dtype=np.int64).reshape(-1, 2).T
    moments = _Moments.of(
        np.concatenate((launching, waits.lane, waits.lane, given[0], taken[0], lanes)),
        np.concatenate((work.called[known], waits.start, waits.end, given[1], taken[1], times)),
    )
    first = moments.key.size
    edges = _Edges()
    _add_threads(edges, moments, waits, taken)
    _add_device(edges, trace, work, first, moments.at(launching, work.called[known]))
    edges.add(first + 2 * waits.work + 1, moments.at(waits.lane, waits.end), Edge.SYNC)
    edges.add(moments.at(*given), moments.at(*taken), Edge.HANDOFF)
    return _ordered(edges, moments, work, activity)


def _spans(trace: Trace, activity: Activity) -> dict[int, Spans]:
    """Return when each thread was in an op or a runtime call, up to the end of the window."""
    rows = trace.rows(Kind.OP, Kind.RUNTIME)
    rows = rows[trace.start[rows] < activity.end]
    found = {}
    order = rows[np.argsort(trace.lane[rows], kind="stable")]
    for own in np.split(order, np.flatnonzero(np.diff(trace.lane[order])) + 1):
        start = trace.start[own]
        busy = union(start, np.minimum(start + trace.duration[own], activity.end))
        if busy.start.size:
            found[int(trace.lane[own[0]])] = busy
    return found


def _waits(trace: Trace, work: _Work, activity: Activity) -> _Waits:
    runtime = trace.rows(Kind.RUNTIME)
    runtime = runtime[trace.start[runtime] + trace.duration[runtime] <= activity.end]
    calls = runtime[trace.named(BLOCKING)[trace.text[runtime]]]
    end = trace.start[calls] + trace.duration[calls]
    found = [(calls, _awaited(work, trace.start[calls], end))]
    for_all = trace.named(OF_ALL_STREAMS)[trace.text[calls]]
    for own in work.streams if len(work.streams) > 1 else ():
        last = _last_of(work, own, trace.start[calls[for_all]], end[for_all])
        found.append((calls[for_all], last))
    copies = np.flatnonzero((work.call >= 0) & (trace.kind[work.row] == Kind.COPY))
    copying = work.call[copies]
    waited = trace.named(COPYING)[trace.text[copying]]
    waited &= work.end[copies] <= trace.start[copying] + trace.duration[copying]
    waited &= trace.start[copying] + trace.duration[copying] <= activity.end
    found.append((copying[waited], copies[waited]))
    rows, ended = (np.concatenate(part) for part in zip(*found, strict=True))
    # Without device work every place is -1.
    rows, ended = rows[ended >= 0], ended[ended >= 0]
    keep = work.end[ended] > trace.start[rows]
    rows = rows[keep]
    return _Waits(
        lane=trace.lane[rows],
        start=trace.start[rows],
        end=trace.start[rows] + trace.duration[rows],
        work=ended[keep],
    )


def _last_of(work: _Work, own: slice, asked: Int64, released: Int64) -> Index:
    """Find one stream's work that ended last before `released`, launched before `asked` (ns).

    -1 if there is none.
    """
    # Work that follows on a stream was launched later, even if its launch is not in the trace.
    called = np.minimum.accumulate(work.called[own][::-1])[::-1]
    over = np.maximum.accumulate(work.end[own])
    at = np.minimum(
        np.searchsorted(called, asked, side="left"),
        np.searchsorted(over, released, side="right"),
    )
    place = own.start + np.maximum(at - 1, 0)
    return np.where((at > 0) & (work.end[place] <= released), place, -1)


def _awaited(work: _Work, asked: Int64, released: Int64, not_on: Int32 | None = None) -> Index:
    """Find the work that each wait was for, -1 if there is none.

    It is the work that ended last before the waiter was `released`, and was launched before the
    wait was `asked` for (both in ns), on any stream but `not_on`.
    """
    found = np.full(asked.size, -1, dtype=np.intp)
    ended = np.full(asked.size, _NEVER, dtype=np.int64)
    for own in work.streams:
        place = _last_of(work, own, asked, released)
        fits = (place >= 0) & (work.end[place] > ended)
        if not_on is not None:
            fits &= not_on != work.stream[own.start]
        found[fits], ended[fits] = place[fits], work.end[place[fits]]
    return found


def _handoffs(trace: Trace, spans: dict[int, Spans], activity: Activity) -> tuple[Int64, Int64]:
    """Find where the forward's thread handed work to the backward's, and got it back.

    Return (threads, times) where work was handed over, and where it was taken up.

    If one thread was idle and the other stopped meanwhile, the first waited for the second.
    """
    ops = trace.rows(Kind.OP)
    own = np.bincount(trace.lane[ops], weights=trace.duration[ops], minlength=len(trace.lanes))
    least = _OF_A_THREAD * (activity.end - activity.start)
    back = ops[trace.named(BACKWARD)[trace.text[ops]]]
    takers: list[int] = []
    givers: list[int] = []
    for lane in [lane for lane in spans if own[lane] > least]:
        mine = back[trace.lane[back] == lane]
        start = trace.start[mine]
        length = union(start, np.minimum(start + trace.duration[mine], activity.end)).length
        (takers if 2 * length > spans[lane].length else givers).append(lane)
    found: list[tuple[int, int, int, int]] = []
    for some, others in ((takers, givers), (givers, takers)):
        for lane in some:
            begins = spans[lane].start
            idle_since = np.concatenate(([_NEVER], spans[lane].end[:-1]))
            best = np.full(begins.size, -1, dtype=np.int64)
            giver = np.full(begins.size, -1, dtype=np.int64)
            for other in others:
                ends = spans[other].end
                at = np.searchsorted(ends, begins, side="right") - 1
                stopped = np.where(at >= 0, ends[np.maximum(at, 0)], _NEVER)
                later = (stopped > idle_since) & (stopped > best)
                best[later], giver[later] = stopped[later], other
            found += [
                (int(giver[i]), int(best[i]), lane, int(begins[i]))
                for i in np.flatnonzero(giver >= 0)
            ]
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return columns[:2], columns[2:]


def _add_threads(edges: _Edges, moments: _Moments, waits: _Waits, taken: Int64) -> None:
    """Join each moment of a thread to the next; time spent waiting could have been 0."""
    lane, time = moments.lane, moments.time
    source = np.flatnonzero(lane[1:] == lane[:-1])
    open_ = np.zeros(time.size + 1, dtype=np.int32)
    np.add.at(open_, moments.at(waits.lane, waits.start), 1)
    np.add.at(open_, moments.at(waits.lane, waits.end), -1)
    takes = np.zeros(time.size, dtype=bool)
    takes[moments.at(*taken)] = True
    idle = (np.cumsum(open_)[source] > 0) | takes[source + 1]
    edges.add(source, source + 1, Edge.THREAD, np.where(idle, 0, time[source + 1] - time[source]))


def _add_device(edges: _Edges, trace: Trace, work: _Work, first: int, launched: Index) -> None:
    """Add the work, its launches, the order of each stream, and waits for other streams."""
    begin = first + 2 * np.arange(work.row.size)
    edges.add(begin, begin + 1, Edge.WORK, work.end - work.start)
    known = np.flatnonzero(work.call >= 0)
    every = np.arange(work.row.size)
    # What ended last before on the same stream: the work of a graph may overlap.
    pairs = [_ended_before(work, every[own], every[own]) for own in work.streams]
    follower = np.concatenate((every[:0], *(one for one, _ in pairs)))
    before = np.concatenate((every[:0], *(one for _, one in pairs)))
    gap = work.start[follower] - work.end[before]
    free = np.full(work.row.size, _NEVER, dtype=np.int64)
    free[follower] = work.end[before]
    called = work.called[known]
    delay = work.start[known] - called
    latency = _shortest(delay[(free[known] <= called) & (delay >= 0)])
    edges.add(launched, begin[known], Edge.LAUNCH, np.clip(delay, 0, latency))
    ready = np.full(work.row.size, -_NEVER, dtype=np.int64)
    ready[known] = called + latency
    queued = (ready[follower] < work.start[follower]) & (work.called[follower] <= work.end[before])
    turn = _shortest(gap[queued])
    edges.add(begin[before] + 1, begin[follower], Edge.STREAM, np.minimum(gap, turn))
    late = work.start[known] - np.maximum(free[known], ready[known]) > KERNEL_GAP_NS
    waiter, awaited = _stream_waits(trace, work, known, late)
    edges.add(begin[awaited] + 1, begin[waiter], Edge.STREAM)
    alone, ended = _ended_before(work, every, np.flatnonzero(work.call < 0))
    edges.add(begin[ended] + 1, begin[alone], Edge.STREAM)


def _ended_before(work: _Work, among: Index, waiting: Index) -> tuple[Index, Index]:
    """Return (work that waits, the work among some that ended last before it), if there is any."""
    by_end = among[np.argsort(work.end[among], kind="stable")]
    at = np.searchsorted(work.end[by_end], work.start[waiting], side="right") - 1
    found = by_end[np.maximum(at, 0)]
    keep = (at >= 0) & (found != waiting)
    return waiting[keep], found[keep]


def _shortest(times: Int64) -> int:
    """Return the shortest start that the trace shows; 0 if even that is long."""
    shortest = int(times.min(initial=_SLOWEST_START_NS + 1))
    return shortest if shortest <= _SLOWEST_START_NS else 0


def _stream_waits(trace: Trace, work: _Work, known: Index, late: Bool) -> tuple[Index, Index]:
    """Return (work, the work of another stream that it waited for).

    Work waited if a call between its launch and the stream's previous launch makes the stream wait,
    or if it began long after it was ready and right after another stream's work had ended.
    """
    lane, called = trace.lane[work.call[known]], work.called[known]
    order = np.lexsort((called, work.stream[known], lane))
    known, late, lane, called = known[order], late[order], lane[order], called[order]
    runtime = trace.rows(Kind.RUNTIME)
    waits = runtime[trace.named(WAITING)[trace.text[runtime]]]
    same = (np.diff(lane) == 0) & (np.diff(work.stream[known]) == 0)
    since = np.full(known.size, _NEVER, dtype=np.int64)
    since[1:][same] = called[:-1][same]
    asked = np.full(known.size, _NEVER, dtype=np.int64)
    for one in np.unique(trace.lane[waits]):
        own = np.flatnonzero(lane == one)
        times = trace.start[waits[trace.lane[waits] == one]]
        at = np.searchsorted(times, called[own], side="right") - 1
        asked[own] = np.where(at >= 0, times[np.maximum(at, 0)], _NEVER)
    told = asked > since
    asked = np.where(told, asked, called)
    chosen = told | late
    waiter, told = known[chosen], told[chosen]
    awaited = _awaited(work, asked[chosen], work.start[waiter], work.stream[waiter])
    at_once = work.start[waiter] - work.end[awaited] <= KERNEL_GAP_NS
    keep = (awaited >= 0) & (told | at_once)
    return waiter[keep], awaited[keep]


def _ordered(edges: _Edges, moments: _Moments, work: _Work, activity: Activity) -> Graph:
    """Sort the nodes by time, drop edges that go back, and give each node a source.

    Of events at the same time, work ends before a thread goes on, and begins after it.
    """
    first = moments.key.size
    time = np.empty(first + 2 * work.row.size, dtype=np.int64)
    time[:first], time[first::2], time[first + 1 :: 2] = moments.time, work.start, work.end
    np.maximum(time, activity.start, out=time)
    phase = np.ones(time.size, dtype=np.uint8)
    phase[first::2] = 2
    phase[first + 1 :: 2] = np.where(work.end > work.start, 0, 3)
    order = np.lexsort((phase, time)).astype(np.int32)
    del phase
    time = time[order]
    lane = np.full(time.size, -1, dtype=np.int32)
    lane[:first] = moments.lane
    row = np.full(time.size, -1, dtype=np.int32)
    row[first::2] = row[first + 1 :: 2] = work.row
    lane, row = lane[order], row[order]
    place = np.empty_like(order)
    place[order] = np.arange(order.size, dtype=np.int32)
    del order
    source, target, least, kind = edges.join()
    source, target = place[source], place[target]
    del place
    forward = source < target
    reached = np.zeros(time.size, dtype=bool)
    reached[target[forward]] = True
    reached[:1] = True
    lost = np.flatnonzero(~reached).astype(np.int32)
    source = np.concatenate((source[forward], np.zeros_like(lost)))
    target = np.concatenate((target[forward], lost))
    least = np.concatenate((least[forward], np.zeros(lost.size, dtype=np.int64)))
    kind = np.concatenate((kind[forward], np.full(lost.size, Edge.UNKNOWN, dtype=np.uint8)))
    del forward
    np.clip(least, 0, time[target] - time[source], out=least)
    order = np.lexsort((source, time[source] + least, target)).astype(np.int32)
    source, target, least, kind = source[order], target[order], least[order], kind[order]
    last = np.flatnonzero(np.diff(target, append=-1))
    binding = np.full(time.size, -1, dtype=np.int32)
    binding[target[last]] = last
    ends = (row >= 0) if work.row.size else np.ones(time.size, dtype=bool)
    ending = np.flatnonzero(ends & (time == time[ends].max(initial=0)))
    return Graph(
        time=time, lane=lane, row=row, source=source, target=target, least=least, kind=kind,
        binding=binding, sink=int(ending[-1]) if ending.size else time.size - 1,
    )  # fmt: skip
