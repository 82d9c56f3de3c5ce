"""The chain of CPU work, launches, device work and waits that a window's length follows from.

`dependencies` builds the graph of waits, which this file walks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis import Activity, Steps
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.dependencies import Edge, Graph, Index, dependencies
from ratchet.trace.read.columns import Bool, Int32, Int64, Kind, Trace

PathKind = Literal[
    "cpu", "between_ops", "launch_delay", "compute", "communication", "copy", "kernel_gap", "sync",
    "unknown",
]  # fmt: skip
KINDS: tuple[PathKind, ...] = get_args(PathKind)
CHAIN = 400  # The report lists this many stretches: the longest, in order of time
ROWS = 100
_SIMULATED = 10  # Gains are computed for this many rows, fewer if the graph is large
_EDGES = 700_000  # Edges visited for all gains together: about a third of a second


@dataclass(frozen=True, kw_only=True, slots=True)
class PathWindow:
    """One window's critical path by kind, in ns; the kinds sum to the window."""

    label: str
    start: int
    window: int
    cpu: int  # A thread was in an op or a runtime call
    between_ops: int
    """A thread was outside of any op: Python, a data loader, or a switch between threads."""
    launch_delay: int
    """From a launching call's start to the work's, while the stream had nothing to do."""
    compute: int
    communication: int
    copy: int
    kernel_gap: int  # Time between two pieces of work that were launched in time
    sync: int  # From the end of device work to the return of the call that waited for it
    unknown: int  # Nothing in the trace says what was waited for

    def __post_init__(self) -> None:
        parts = [getattr(self, kind) for kind in KINDS]
        assert sum(parts) == self.window and min(parts) >= 0, (self.label, parts, self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class PathRow:
    """One op, kernel or sort of wait on the critical path; times in ns."""

    kind: PathKind
    name: str  # Name of the op, call or kernel; empty for a wait
    count: int  # Number of stretches of the path
    time: int
    share: float  # Share of the window
    gain: int | None
    """Time that the window would lose if this took none: less than `time` if another chain
    is nearly as long. None if it was not computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathStretch:
    """A stretch of the critical path; times in ns."""

    start: int
    duration: int
    kind: PathKind
    name: str
    where: str  # The thread or stream


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalPath:
    window_is: str
    whole: PathWindow
    steps: tuple[PathWindow, ...]
    rows: tuple[PathRow, ...]  # By time, the longest first
    segments: int
    chain: tuple[PathStretch, ...]  # The longest stretches, in order of time


_STRETCH = np.dtype([("start", "i8"), ("end", "i8"), ("kind", "u1"), ("row", "i4"), ("lane", "i4")])
"""One stretch of the path, in ns. The kind is a number into `KINDS`, the row that of the op, call
or device work (-1 for a wait), and the lane the thread (-1 on the device)."""
Path = NDArray[np.void]  # Stretches that follow one another without a gap


def _stretches(**columns: NDArray[np.generic] | list[int] | int) -> Path:
    made = np.empty(np.size(columns["start"]), dtype=_STRETCH)
    for name, values in columns.items():
        made[name] = values
    return made


def _joined(parts: Sequence[Path]) -> Path:
    path = np.concatenate(parts)
    return path[np.argsort(path["start"], kind="stable")]


def critical_path(
    trace: Trace, links: Links, communication: Bool, activity: Activity, steps: Steps | None
) -> CriticalPath:
    """Find the critical path of the window and of each step, and the gain from shortening it."""
    graph = dependencies(trace, links, activity)
    edges = binding_edges(graph, activity.start)
    lanes = graph.lane[graph.target[edges]]
    owners = _owners(trace, links, activity, np.unique(lanes[lanes >= 0]).tolist())
    path = path_of(trace, communication, graph, edges, owners, activity)
    length = path["end"] - path["start"]
    names = len(trace.strings) + 1
    key = (
        np.where(path["row"] >= 0, trace.text[path["row"]] + 1, 0)
        + path["kind"].astype(np.int32) * names
    )
    count = np.bincount(key)
    total = np.zeros(count.size, dtype=np.int64)
    np.add.at(total, key, length)
    order = np.argsort(-total, kind="stable")[:ROWS]
    order = order[count[order] > 0].tolist()
    whole = _windows(path, ["all"], np.array([activity.start]), np.array([activity.end]))[0]
    rows = []
    allowed = min(_SIMULATED, _EDGES // max(graph.source.size, 1))
    for index in order:
        kind, name = divmod(index, names)
        gain = None
        if name and allowed:
            gain = _gain(trace, graph, owners, name - 1, KINDS[kind] == "cpu")
            allowed -= 1
        rows.append(
            PathRow(
                kind=KINDS[kind],
                name=trace.strings[name - 1] if name else "",
                count=int(count[index]),
                time=int(total[index]),
                share=int(total[index]) / max(whole.window, 1),
                gain=gain,
            )
        )
    return CriticalPath(
        window_is=activity.window_is,
        whole=whole,
        steps=tuple(_windows(path, steps.labels, steps.start, steps.end)) if steps else (),
        rows=tuple(rows),
        segments=path["start"].size,
        chain=_chain(trace, path),
    )


_Owners = dict[int, tuple[Int64, Int32]]
"""By thread, moments, and the row of the innermost op or call from each moment to the next."""


def _owners(trace: Trace, links: Links, activity: Activity, lanes: Sequence[int]) -> _Owners:
    inner = np.isin(trace.kind[links.chosen], (Kind.OP, Kind.RUNTIME))
    above = links.tree.nearest(inner)
    outside = np.where(above >= 0, links.chosen[above], -1).astype(np.int32)
    depth = np.zeros(inner.size, dtype=np.int8)
    for number, level in enumerate(links.tree.levels):
        depth[level] = min(number, 63)
    inner &= trace.duration[links.chosen] > 0
    inner &= trace.start[links.chosen] < activity.end
    on = trace.lane[links.chosen]
    owners: _Owners = {}
    for lane in lanes:
        own = np.flatnonzero(inner & (on == lane))
        rows = links.chosen[own]
        start = trace.start[rows]
        moments = np.concatenate((start, start + trace.duration[rows]))
        # At the same moment, events end before others begin, the innermost first.
        turn = np.concatenate((64 + depth[own], 63 - depth[own]))
        since = moments - moments.min(initial=2**62)
        short = int(since.max(initial=0)) < 2**55
        order = np.argsort(since * 128 + turn) if short else np.lexsort((turn, since))
        owned = np.concatenate((rows.astype(np.int32), outside[own]))
        owners[lane] = moments[order], owned[order]
    return owners


def binding_edges(graph: Graph, start: int) -> Index:
    """Follow the binding edges from the end of the window back to its start."""
    source, binding, time = graph.source.data, graph.binding.data, graph.time.data
    edges = array("i")
    node = graph.sink
    while node >= 0 and time[node] > start and (edge := binding[node]) >= 0:
        edges.append(edge)
        node = source[edge]
    return np.array(edges, dtype=np.intp)[::-1]


def path_of(
    trace: Trace,
    communication: Bool,
    graph: Graph,
    edges: Index,
    owners: _Owners,
    activity: Activity,
) -> Path:
    """Turn consecutive edges into a path over the whole window, split by op."""
    start, end = graph.time[graph.source[edges]], graph.time[graph.target[edges]]
    keep = start < end
    start, end, edges = start[keep], end[keep], edges[keep]
    kind, row = _kinds(trace, communication, graph, edges)
    lane = np.where(kind == KINDS.index("cpu"), graph.lane[graph.target[edges]], np.int32(-1))
    parts = [_stretches(start=start, end=end, kind=kind, row=row, lane=lane)]
    first = int(start[0]) if start.size else activity.end
    last = int(end[-1]) if end.size else activity.end
    for begin, stop in ((activity.start, first), (last, activity.end)):
        if begin < stop:
            # A trace without ops, or with ops of no length, says nothing about these.
            unknown = KINDS.index("unknown")
            parts.append(_stretches(start=[begin], end=[stop], kind=unknown, row=-1, lane=-1))
    return _by_op(_joined(parts), owners)


def _kinds(
    trace: Trace, communication: Bool, graph: Graph, edges: Index
) -> tuple[NDArray[np.uint8], Int32]:
    of_edge = {
        Edge.THREAD: "cpu", Edge.WORK: "compute", Edge.LAUNCH: "launch_delay",
        Edge.STREAM: "kernel_gap", Edge.SYNC: "sync", Edge.HANDOFF: "between_ops",
        Edge.UNKNOWN: "unknown",
    }  # fmt: skip
    table = np.array([KINDS.index(of_edge[edge]) for edge in Edge], dtype=np.uint8)
    kind = table[graph.kind[edges]]
    is_work = graph.kind[edges] == Edge.WORK
    row = np.where(is_work, graph.row[graph.target[edges]], np.int32(-1))
    kind[is_work & communication[row]] = KINDS.index("communication")
    kind[is_work & (trace.kind[row] != Kind.KERNEL)] = KINDS.index("copy")
    return kind, row


def _by_op(path: Path, owners: _Owners) -> Path:
    """Cut each stretch of a thread where its innermost op changes."""
    cpu, between = KINDS.index("cpu"), KINDS.index("between_ops")
    on_thread = path["kind"] == cpu
    parts = [path[~on_thread]]
    for lane in np.unique(path["lane"][on_thread]).tolist():
        own = on_thread & (path["lane"] == lane)
        begin, stop = path["start"][own], path["end"][own]
        moments, owned = owners.get(lane, (begin[:0], np.zeros(0, dtype=np.int32)))
        first = np.searchsorted(moments, begin, side="right")
        last = np.searchsorted(moments, stop, side="left")
        inner = np.arange((last - first).sum()) + np.repeat(
            first - np.cumsum(last - first) + (last - first), last - first
        )
        start = np.sort(np.concatenate((begin, moments[inner])), kind="stable")
        end = np.sort(np.concatenate((moments[inner], stop)), kind="stable")
        at = np.searchsorted(moments, start, side="right") - 1
        row = (
            np.where(at >= 0, owned[np.maximum(at, 0)], -1)
            if moments.size
            else np.full(start.size, -1)
        )
        keep = start < end
        start, end, row = start[keep], end[keep], row[keep]
        joins = (row[1:] == row[:-1]) & (start[1:] == end[:-1])
        begins = np.concatenate(([True], ~joins)) if row.size else np.zeros(0, dtype=bool)
        ends = np.concatenate((~joins, [True])) if row.size else begins
        row = row[begins]
        kind = np.where(row >= 0, cpu, between)
        parts.append(_stretches(start=start[begins], end=end[ends], kind=kind, row=row, lane=lane))
    return _joined(parts)


def _windows(path: Path, labels: Sequence[str], start: Int64, end: Int64) -> list[PathWindow]:
    """Sum the kinds in each of several consecutive windows."""
    cuts = start[(start > path["start"][:1].sum()) & (start < path["end"][-1:].sum())]
    at = np.searchsorted(path["start"], cuts, side="right") - 1
    begin = np.sort(np.concatenate((path["start"], cuts)))
    stop = np.append(begin[1:], path["end"][-1:])
    kind = np.concatenate((path["kind"], path["kind"][at]))
    kind = kind[np.argsort(np.concatenate((path["start"], cuts)), kind="stable")]
    window = np.searchsorted(start, begin, side="right") - 1
    sums = np.zeros((start.size, len(KINDS)), dtype=np.int64)
    np.add.at(sums, (np.maximum(window, 0), kind), stop - begin)
    made = []
    for i, label in enumerate(labels):
        parts: dict[str, int] = dict(zip(KINDS, sums[i].astype(np.int64).tolist(), strict=True))
        made.append(
            PathWindow(label=label, start=int(start[i]), window=int(end[i] - start[i]), **parts)
        )
    return made


def _chain(trace: Trace, path: Path) -> tuple[PathStretch, ...]:
    length = path["end"] - path["start"]
    cut = max(length.size - CHAIN, 0)
    chosen = np.sort(np.argpartition(length, cut)[cut:]) if cut else np.arange(length.size)
    found = []
    for at in chosen.tolist():
        row, lane = int(path["row"][at]), int(path["lane"][at])
        if lane >= 0:
            where = trace.thread(lane)
        else:
            where = f"stream {trace.stream[row]}" if row >= 0 else ""
        found.append(
            PathStretch(
                start=int(path["start"][at]),
                duration=int(length[at]),
                kind=KINDS[path["kind"][at]],
                name=trace.string(row) if row >= 0 else "",
                where=where,
            )
        )
    return tuple(found)


def _gain(trace: Trace, graph: Graph, owners: _Owners, text: int, on_cpu: bool) -> int:
    """Return how much earlier the window would end if an op's own time, or a kernel's, were 0."""
    less = np.zeros(graph.source.size, dtype=np.int64)
    if on_cpu:
        for lane, (moments, owned) in owners.items():
            edges = np.flatnonzero((graph.kind == Edge.THREAD) & (graph.lane[graph.target] == lane))
            mine = (owned >= 0) & (trace.text[np.maximum(owned, 0)] == text)
            held = np.where(mine[:-1], np.diff(moments), 0)
            before = np.concatenate(([0], np.cumsum(held)))
            less[edges] = _until(moments, before, mine, graph.time[graph.target[edges]])
            less[edges] -= _until(moments, before, mine, graph.time[graph.source[edges]])
    else:
        work = np.flatnonzero(graph.kind == Edge.WORK)
        work = work[trace.text[graph.row[graph.target[work]]] == text]
        less[work] = graph.weight[work]
    return int(graph.time[graph.sink]) - arrival(graph, np.maximum(graph.weight - less, 0))


def _until(moments: Int64, before: Int64, mine: Bool, time: Int64) -> Int64:
    """Return an op's own time before each moment."""
    at = np.searchsorted(moments, time, side="right") - 1
    known = np.maximum(at, 0)
    inside = np.where(mine[known], time - moments[known], 0)
    return np.asarray(np.where(at >= 0, before[known] + inside, 0), dtype=np.int64)


def arrival(graph: Graph, weight: Int64) -> int:
    """Return when the window's last work ends if each edge takes at least `weight` ns."""
    times = graph.time.copy()
    held = times.data
    reached = -1
    edges = zip(graph.source.data, graph.target.data, weight.data, strict=True)
    for source, target, least in edges:
        time = held[source] + least
        if target != reached:
            held[target], reached = time, target
        elif time > held[target]:
            held[target] = time
    return int(times[(graph.row >= 0) | (graph.row.max(initial=-1) < 0)].max())
