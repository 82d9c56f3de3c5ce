"""Kernels that keep running one after another: under one op, on one stream, between products."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis.intervals import groups
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.idle import KERNEL_GAP_NS
from ratchet.trace.answers.kernels import by_lane, device_rows, module_paths, own_cpu_time
from ratchet.trace.answers.precision import is_product
from ratchet.trace.read.columns import Bool, Int64, Kind, Trace

# Equal stretches are found exactly, by doubling and without a hash. A stretch of 2^k entries gets
# its number from those of its two halves (Karp, Miller and Rosenberg, "Rapid identification of
# repeated patterns in strings, trees and arrays", 1972). Any other stretch gets its number from the
# two powers of two that cover it.


class Stretches:
    """The stretches of one sequence of whole numbers."""

    def __init__(self, entries: NDArray[np.integer]) -> None:
        _, number = np.unique(entries, return_inverse=True)
        self._levels: list[Int64] = [number.reshape(-1).astype(np.int64)]
        """For each k and each position, the number of the 2^k entries that begin there."""

    def same(self, begin: Int64, end: Int64) -> Int64:
        """Number the stretches [begin, end), none of them empty: equal ones get the same number."""
        length = end - begin
        assert length.size == 0 or length.min() > 0, "a stretch without entries"
        level = np.floor(np.log2(np.maximum(length, 1))).astype(np.int64)
        number = np.zeros(begin.size, dtype=np.int64)
        given = 0
        for k in np.unique(level).tolist():
            own = np.flatnonzero(level == k)
            of_power = self._level(k)
            first, last = of_power[begin[own]], of_power[end[own] - (1 << k)]
            found = _numbers(_numbers(first, last), length[own])
            number[own] = found + given
            given += int(found.max()) + 1
        return number

    def _level(self, k: int) -> Int64:
        while len(self._levels) <= k:
            half = 1 << (len(self._levels) - 1)
            known = self._levels[-1]
            self._levels.append(_numbers(known[:-half], known[half:]))
        return self._levels[k]


def apart(begin: Int64, length: int) -> Int64:
    """Keep those of equal stretches, in order, that do not overlap one kept before."""
    if begin.size < 2 or np.diff(begin).min() >= length:
        return begin
    kept, free = [], -1
    for position in begin.tolist():
        if position >= free:
            kept.append(position)
            free = position + length
    return np.array(kept, dtype=np.int64)


def _numbers(left: Int64, right: Int64) -> Int64:
    """Number the pairs of whole numbers, all at least 0."""
    if not left.size:
        return np.zeros(0, dtype=np.int64)
    key = left * (int(right.max()) + 1) + right
    _, number = np.unique(key, return_inverse=True)
    return np.asarray(number.reshape(-1), dtype=np.int64)


Under = Literal["op", "stream", "between products"]
SHORTEST, LONGEST = 2, 8  # Lengths of the runs that are searched for on a stream
LONGEST_UNDER_OP = 64  # Longer runs are whole graphs; `under_op` returns them
LEAST = 2  # A run under an op or on a stream must occur this often
ROWS = 40  # Int64 kept of each sort: those that take most time
NAMED = 16  # A row names this many kernels: the first
_TRIED = 200
_UPDATE = re.compile(r"^Optimizer\.step#")
_ALREADY_FUSED = re.compile(r"triton_|_fused_", re.IGNORECASE)
_MOVES_NOTHING = re.compile(
    r"^aten::(to|contiguous|type_as|dropout|view|_unsafe_view|_reshape_alias|reshape|as_strided|t|transpose|permute|slice|select|"
    r"narrow|expand|expand_as|unsqueeze|squeeze|detach|alias|split\w*|chunk|unbind|empty\w*|"
    r"resize_|resolve_\w+|lift_fresh|set_|is_\w+|result_type|item|_local_scalar_dense|stride|size|"
    r"unflatten|flatten|movedim|diagonal|real|imag|view_as\w*)$|^detach_?$|^[^:]*$|^(torch::)?autograd::"
)
"""CPU ops that only change a tensor's metadata, and marks that are not ops."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceRow:
    """One run of kernels (on a CPU-only trace, of ops) and all its occurrences; times in ns."""

    under: Under
    """Runs of one op's calls, runs anywhere on one stream, or runs between two products."""
    name: str  # The op, the stream, or the optimizer's step or module that launched most of it
    kernels: tuple[str, ...]
    """The first of them, in the order in which they were launched (under an op) or ran."""
    length: int
    count: int
    """Number of occurrences; on a stream they overlap no other of this run or an earlier one."""
    time: int  # Summed over occurrences
    longest: int
    """Summed time of each occurrence's longest kernel: a fused kernel takes at least that."""
    gaps: int
    """Idle time between the kernels of an occurrence, with at most 10 µs of each gap: longer gaps
    have another cause. 0 under an op."""
    cpu: int  # Summed duration of the op's calls; 0 elsewhere
    op: str  # The op that launched most of the run's time

    @property
    def could_win(self) -> int:
        """Upper bound on the gain from fusing each occurrence into one kernel, in ns."""
        return self.time - self.longest + self.gaps


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """Work in order: rows of the trace, with their times and gaps."""

    name: str
    row: Int64
    time: Int64
    gap: Int64  # Idle time before each
    stops: Bool  # True for copies and communication: every run ends there
    products: Bool  # True for products: a run of fusible kernels ends there too
    update: Int64  # The mark of the optimizer's step around each one's launch; -1 outside of any

    @property
    def sums(self) -> Int64:
        """Return the summed time before each position; one entry longer than the rows."""
        return np.concatenate(([0], np.cumsum(self.time)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Occurrences:
    under: Under
    name: str
    line: _Line
    begin: Int64
    length: int
    time: int
    cpu: int = 0


def sequences(trace: Trace, links: Links, communication: Bool) -> tuple[SequenceRow, ...]:
    """Return the runs of each sort that take most time in the window."""
    lines = _lines(trace, links, communication)
    runs = [
        *_most(_under_ops(trace, links), ROWS),
        # Each stream's runs that take most time; no work is in two of them.
        *_most((run for one in lines for run in _cover(one, _candidates(trace, one))), ROWS),
        *_most((run for one in lines for run in _between(trace, one)), 4 * ROWS),
    ]
    found = _rows(trace, links, runs)
    between = [row for row in found if row.under == "between products"]
    between.sort(key=lambda row: -row.could_win)
    return (*(row for row in found if row.under != "between products"), *between[:ROWS])


def under_op(trace: Trace, links: Links, name: str, shortest: int = 3) -> tuple[SequenceRow, ...]:
    """Return the whole kernel sequences of the op `name`'s calls that launched `shortest` or more.

    The most frequent comes first, as in HolisticTraceAnalysis'
    get_frequent_cuda_kernel_sequences. Calls inside a call of the same name do not count.
    """
    number = trace.strings.index(name) if name in trace.strings else -1
    calls = trace.ops.row[trace.text[trace.ops.row] == number].astype(np.int64)
    line, begin, end = launched(trace, links, calls)
    keep = (end - begin >= shortest) & _outermost(trace, calls)
    runs = _equal(trace, "op", line, begin[keep], end[keep], calls[keep])
    rows = _rows(trace, links, runs, named=line.row.size)
    return tuple(sorted(rows, key=lambda row: (-row.count, -row.time)))


def _most(runs: Iterable[_Occurrences], count: int) -> list[_Occurrences]:
    return sorted(runs, key=lambda run: -run.time)[:count]


def _rows(
    trace: Trace, links: Links, runs: Iterable[_Occurrences], named: int = NAMED
) -> list[SequenceRow]:
    runs, heaviest, sums = list(runs), [], []
    on_device = trace.on_device
    for run in runs:
        inside = run.begin[:, None] + np.arange(run.length)
        time = run.line.time[inside]
        at = int(run.line.row[run.begin[0] + int(time.sum(axis=0).argmax())])
        heaviest.append(int(links.op[at]) if on_device else at)
        gaps = int(run.line.gap[inside[:, 1:]].sum()) if run.under != "op" else 0
        sums.append((int(time.max(axis=1).sum()), gaps))
    modules = module_paths(trace, links, np.array(heaviest, dtype=np.int64))
    return [
        SequenceRow(
            under=run.under,
            name=run.name or module,
            kernels=tuple(
                trace.string(row)
                for row in run.line.row[run.begin[0] : run.begin[0] + min(run.length, named)]
            ),
            length=run.length,
            count=run.begin.size,
            time=run.time,
            longest=longest,
            gaps=gaps,
            cpu=run.cpu,
            op=trace.string(op) if op >= 0 else "",
        )
        for run, op, module, (longest, gaps) in zip(runs, heaviest, modules, sums, strict=True)
    ]


def _outermost(trace: Trace, ops: Int64) -> Bool:
    """Return for each op whether none of the others, on the same thread, encloses it."""
    outer = np.ones(ops.size, dtype=bool)
    for lane in np.unique(trace.lane[ops]):
        own = np.flatnonzero(trace.lane[ops] == lane)
        reach = np.maximum.accumulate(trace.end[ops[own]])
        outer[own[1:]] = trace.start[ops[own[1:]]] >= reach[:-1]
    return outer


def launched(trace: Trace, links: Links, ops: Int64) -> tuple[_Line, Int64, Int64]:
    """Sort device work by thread and time of launch, and find the stretch that each op launched."""
    rows = device_rows(trace, links)
    rows = rows[links.launch[rows] >= 0]
    call = links.launch[rows]
    order = np.lexsort((trace.start[rows], trace.start[call], trace.lane[call]))
    rows, call = rows[order], call[order]
    begin, end = np.zeros(ops.size, dtype=np.int64), np.zeros(ops.size, dtype=np.int64)
    bounds = np.searchsorted(trace.lane[call], np.arange(len(trace.lanes) + 1))
    for lane in np.unique(trace.lane[ops]).tolist():
        first, last = bounds[lane], bounds[lane + 1]
        own = np.flatnonzero(trace.lane[ops] == lane)
        called = trace.start[call[first:last]]
        begin[own] = first + np.searchsorted(called, trace.start[ops[own]])
        end[own] = first + np.searchsorted(called, trace.end[ops[own]])
    nowhere = np.zeros(rows.size, dtype=bool)
    line = _Line(
        name="", row=rows, time=trace.duration[rows], gap=np.zeros_like(rows), stops=nowhere,
        products=nowhere, update=np.full(rows.size, -1),
    )  # fmt: skip
    return line, begin, np.maximum(begin, end)


def _under_ops(trace: Trace, links: Links) -> list[_Occurrences]:
    """Find runs by op; if nested ops launched the same kernels, count the innermost."""
    ops = trace.ops.row.astype(np.int64)
    line, begin, end = launched(trace, links, ops)
    keep = (end - begin >= SHORTEST) & (end - begin <= LONGEST_UNDER_OP)
    place = np.full(len(trace), -1, dtype=np.int64)
    place[ops] = np.arange(ops.size)
    above = links.parent_op[ops]
    parent = np.where(above >= 0, place[np.maximum(above, 0)], -1)
    same = (parent >= 0) & (begin == begin[parent]) & (end == end[parent])
    keep[parent[same]] = False
    runs = _equal(trace, "op", line, begin[keep], end[keep], ops[keep])
    return [run for run in runs if run.begin.size >= LEAST]


def _equal(
    trace: Trace, under: Under, line: _Line, begin: Int64, end: Int64, calls: Int64 | None = None
) -> list[_Occurrences]:
    """Group stretches that run the same kernels and, for an op's calls, have the same op."""
    if not begin.size:
        return []
    number = Stretches(trace.text[line.row]).same(begin, end)
    if calls is not None:
        number = number * len(trace.strings) + trace.text[calls]
    sums = line.sums
    return [
        _Occurrences(
            under=under,
            name=trace.string(calls[own[0]]) if calls is not None else line.name,
            line=line,
            begin=begin[own],
            length=int(end[own[0]] - begin[own[0]]),
            time=int((sums[end[own]] - sums[begin[own]]).sum()),
            cpu=int(trace.duration[calls[own]].sum()) if calls is not None else 0,
        )
        for own in groups(number)
    ]


def _lines(trace: Trace, links: Links, communication: Bool) -> list[_Line]:
    """Return each stream's work in order of its start; on a CPU-only trace, the innermost ops."""
    on_device = trace.on_device
    if on_device:
        rows, time = device_rows(trace, links), trace.duration
    else:
        moving = trace.ops.row[~trace.named(_MOVES_NOTHING)[trace.text[trace.ops.row]]]
        above = links.parent_op[moving]
        rows = np.setdiff1d(moving, above[above >= 0])
        time = own_cpu_time(trace, links)
    product = is_product(trace, links) | trace.named(_ALREADY_FUSED)[trace.text]
    stops = communication | np.isin(trace.kind, (Kind.COPY, Kind.FILL))
    update = _updates(trace, links, rows)
    found = []
    for name, chosen in by_lane(trace, rows):
        gap = np.zeros(chosen.size, dtype=np.int64)
        if on_device:
            reach = np.maximum.accumulate(trace.start[chosen] + trace.duration[chosen])
            gap[1:] = np.clip(trace.start[chosen[1:]] - reach[:-1], 0, KERNEL_GAP_NS)
        found.append(
            _Line(
                name=name, row=chosen, time=time[chosen], gap=gap, stops=stops[chosen],
                products=product[chosen], update=update[chosen],
            )
        )  # fmt: skip
    return found


def _updates(trace: Trace, links: Links, rows: NDArray[np.integer]) -> Int64:
    """Return for these rows of the trace the mark of the optimizer's step that launched them."""
    update = np.full(len(trace), -1, dtype=np.int64)
    steps = np.flatnonzero(trace.named(_UPDATE)[trace.text])
    steps = steps[np.isin(trace.kind[steps], (Kind.ANNOTATION, Kind.OP))]
    called = links.launch[rows] if trace.on_device else rows
    rows, called = rows[called >= 0], called[called >= 0]
    for lane in np.unique(trace.lane[steps]):
        own = steps[trace.lane[steps] == lane]
        here = trace.lane[called] == lane
        at = np.searchsorted(trace.start[own], trace.start[called[here]], side="right") - 1
        mark = own[np.maximum(at, 0)]
        inside = (at >= 0) & (trace.start[called[here]] < trace.end[mark])
        update[rows[here]] = np.where(inside, mark, -1)
    return update


def _candidates(trace: Trace, line: _Line) -> list[tuple[int, Int64, int]]:
    """Return (summed time, starts, length) of runs that occur often enough."""
    size, sums = line.row.size, line.sums
    stopped = np.concatenate(([0], np.cumsum(line.stops)))
    stretches = Stretches(trace.text[line.row])
    found = []
    for length in range(SHORTEST, min(LONGEST, size) + 1):
        begin = np.arange(size - length + 1)
        begin = begin[stopped[begin + length] == stopped[begin]]
        if begin.size < LEAST:
            continue
        number = stretches.same(begin, begin + length)
        total = np.bincount(number, weights=sums[begin + length] - sums[begin])
        total[np.bincount(number) < LEAST] = 0
        heavy = np.argsort(-total)[:_TRIED]
        wanted = np.zeros(total.size, dtype=bool)
        wanted[heavy[total[heavy] > 0]] = True
        chosen = np.flatnonzero(wanted[number])
        for own in groups(number[chosen]):
            free = apart(begin[chosen[own]], length)
            if free.size >= LEAST:
                found.append((int((sums[free + length] - sums[free]).sum()), free, length))
    return sorted(found, key=lambda one: -one[0])


def _cover(line: _Line, candidates: list[tuple[int, Int64, int]]) -> list[_Occurrences]:
    """Choose runs, the heaviest first, that do not overlap one chosen before."""
    taken, sums = np.zeros(line.row.size, dtype=bool), line.sums
    runs: list[_Occurrences] = []
    for _, begin, length in candidates:
        inside = begin[:, None] + np.arange(length)
        free = begin[~taken[inside].any(axis=1)]
        if free.size >= LEAST:
            taken[(free[:, None] + np.arange(length)).reshape(-1)] = True
            time = int((sums[free + length] - sums[free]).sum())
            runs.append(
                _Occurrences(
                    under="stream", name=line.name, line=line, begin=free, length=length, time=time
                )
            )
            if len(runs) == ROWS:
                break
    return runs


def _between(trace: Trace, line: _Line) -> list[_Occurrences]:
    """Find the whole runs between two products, copies or collectives.

    An optimizer's step is a run of its own: no kernel serves it and the passes around it.
    """
    breaks = line.stops | line.products
    turns = np.diff(line.update, prepend=-1) != 0
    before = np.concatenate(([True], breaks[:-1])) if breaks.size else breaks
    after = np.concatenate((breaks[1:], [True])) if breaks.size else breaks
    begin = np.flatnonzero(~breaks & (before | turns))
    end = np.flatnonzero(~breaks & (after | np.append(turns[1:], True)[: breaks.size])) + 1
    keep = end - begin >= SHORTEST
    begin, end = begin[keep], end[keep]
    update = line.update[begin]
    runs = []
    for mark in np.unique(np.where(update >= 0, trace.text[update], -1)).tolist():
        own = np.where(update >= 0, trace.text[update], -1) == mark
        found = _equal(trace, "between products", line, begin[own], end[own])
        name = trace.strings[mark] if mark >= 0 else ""
        runs += [replace(run, name=name) for run in found]
    return runs
