"""The op that each piece of work is for, what it must at least do; time by category of work."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis import Steps
from ratchet.trace.analysis.captures import joined
from ratchet.trace.analysis.intervals import alike, groups, sums_by
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import KernelRow, module_paths, module_sums, work_of
from ratchet.trace.answers.sources import Place, Places
from ratchet.trace.answers.work import (
    PRODUCTS,
    Category,
    Launched,
    category_of,
    rule_of,
    work,
)
from ratchet.trace.answers.work.call import OpWork, Shape, parse_shapes, shape_of
from ratchet.trace.answers.work.optimizer import KERNEL, gradients
from ratchet.trace.answers.work.products import experts
from ratchet.trace.read.columns import Bool, Int32, Int64, Trace


@dataclass(frozen=True, slots=True)
class Capture:
    """A trace that may hold the capture of the graphs that another one replays."""

    trace: Trace
    links: Links


CATEGORIES: tuple[Category, ...] = get_args(Category)
_ACCUMULATES = re.compile(r"^torch::autograd::AccumulateGrad$")


class Owned:
    """All device work in the window (on a CPU-only trace, the ops' own time), by owner.

    The owner of a piece of work is the innermost op around it whose work is known; casts and
    splits inside a product are the product's. Each piece has one owner. That of a kernel of a
    graph's replay is the op that captured it, if `capture` (by default the trace itself) has it.
    """

    def __init__(
        self, trace: Trace, links: Links, communication: Bool, capture: Capture | None = None
    ) -> None:
        rows, op, time = work_of(trace, links)
        busy = time > 0
        self.trace, self.links = trace, links
        self.rows, self.op, self.time = rows[busy], op[busy], time[busy]
        text = trace.text[self.rows].astype(np.int64)
        launch = links.launch[self.rows]
        grid = np.where(launch >= 0, _of_launches(trace, "grid")[launch], -1)
        ops = _Ops(trace, links, self.op, text, grid, trace.on_device)
        self._ops = [ops]
        self.owner = ops.owners_of(self.op)
        """By piece of work, a number for `written`, `work_of` and `module_of`; -1 for none."""
        self.call = np.where(self.owner >= 0, self.owner, self.rows)
        """By piece of work, equal for the work of one call."""
        self.kind = ops.kinds_of(self.owner)
        """By piece of work, equal for ops of one name, shapes, types and values; -1 for none."""
        self._join(capture or Capture(trace, links))
        self.category = self._categories(communication)
        """By piece of work, a place in `CATEGORIES`."""

    def _join(self, capture: Capture) -> None:
        """Give the kernels of replayed graphs the ops that captured them."""
        size = len(self.trace)
        source = joined(self.trace, self.links, capture.trace)[self.rows]
        own = np.flatnonzero(source >= 0)  # A compiled region around the replay says less
        if not own.size:
            return
        source = source[own]
        op = capture.links.op[source]
        text, grid = (_of_launches(capture.trace, one)[source] for one in ("name", "grid"))
        ops = _Ops(capture.trace, capture.links, op, text, grid, on_device=True)
        owner = ops.owners_of(op)
        found = owner >= 0
        own, owner = own[found], owner[found]
        self._ops.append(ops)
        self.owner[own] = size + owner
        # One op is captured once and called by each replay.
        replay = self.links.launch[self.rows[own]]
        self.call[own] = size + owner + len(capture.trace) * (replay + 1)
        self.kind[own] = self._ops[0].kinds + ops.kinds_of(owner)

    def _at(self, owner: int) -> tuple[_Ops, int]:
        size = len(self.trace)
        return (self._ops[0], owner) if owner < size else (self._ops[1], owner - size)

    def work_of(self, owner: int) -> OpWork | None:
        """Return the least work of an op; None if it is not known, or counted inside it."""
        ops, row = self._at(owner)
        return ops.work_of(row) if owner >= 0 else None

    def written(self, owner: int) -> tuple[str, str]:
        """Return an op's name and shapes."""
        ops, row = self._at(owner)
        return ops.written(row)

    def place_of(self, owner: int) -> Place:
        if owner < 0:
            return Place("", "")
        ops, row = self._at(owner)
        return ops.places.of(row)

    def captured(self, rows: Sequence[KernelRow]) -> tuple[KernelRow, ...]:
        """Return kernels' rows in which replayed graphs have the ops that captured them."""
        size = len(self.trace)
        joined_here = np.flatnonzero(self.owner >= size)
        found = []
        by_name = {int(self.trace.text[self.rows[own[0]]]): own for own in (
            joined_here[one] for one in groups(self.trace.text[self.rows[joined_here]])
        )}  # fmt: skip
        number = {self.trace.strings[text]: text for text in by_name}
        for row in rows:
            own = by_name.get(number.get(row.name, -1))
            if own is None:
                found.append(row)
                continue
            chief = int(self.owner[own[np.argmax(self.time[own])]])
            op, shapes = self.written(chief)
            unlinked = row.unlinked - int((self.op[own] < 0).sum())
            module = self.modules_of(np.array([chief]))[chief]
            found.append(replace(row, op=op, shapes=shapes, module=module, unlinked=unlinked))
        return tuple(found)

    def modules_of(self, owners: Int64) -> dict[int, str]:
        """Return the module path of each of these owners; empty if none is known."""
        found = {-1: ""}
        size = len(self.trace)
        for ops, first, end in zip(self._ops, (0, size), (size, np.inf), strict=False):
            own = np.unique(owners[(owners >= first) & (owners < end)])
            paths = module_paths(ops.trace, ops.links, own - first)
            found |= dict(zip(own.tolist(), paths, strict=True))
        return found

    def _categories(self, communication: Bool) -> Int64:
        talks = communication[self.rows]
        first, group = alike(self.kind, self.trace.text[self.rows], talks)
        found = []
        for at in first.tolist():
            owner = int(self.owner[at])
            op = self.written(owner)[0] if owner >= 0 else ""
            kernel = self.trace.string(self.rows[at])
            found.append("communication" if talks[at] else category_of(op, kernel))
        number = np.array([CATEGORIES.index(one) for one in found], dtype=np.int64)
        return number[group] if number.size else number


class _Ops:
    """The ops of one trace that have work, with the least work of each call."""

    def __init__(
        self, trace: Trace, links: Links, op: Int64, text: Int64, grid: Int64, on_device: bool
    ) -> None:
        """Take the op around each piece of work; its kernel's name and grid among the strings."""
        self._pieces = op, text, grid
        self.places = Places(trace, links)
        self.trace, self.links, self._on_device = trace, links, on_device
        self._signature = np.full(len(trace), -1, dtype=np.int32)
        self._work: list[OpWork | None] = []
        self._owner, self._counts = self._owners(op, text)

    @property
    def kinds(self) -> int:
        """The number of kinds that `kinds_of` tells apart."""
        return 2 * len(self._work)

    def owners_of(self, op: Int64) -> Int64:
        return np.where(op >= 0, self._owner[np.maximum(op, 0)], -1).astype(np.int64)

    def kinds_of(self, owner: Int64) -> Int64:
        row = np.maximum(owner, 0)
        kind = 2 * self._signature[row].astype(np.int64) + self._counts[row]
        return np.where(owner >= 0, kind, -1)

    def work_of(self, row: int) -> OpWork | None:
        signature = self._signature[row] if self._counts[row] else -1
        return self._work[signature] if signature >= 0 else None

    def written(self, row: int) -> tuple[str, str]:
        place = np.searchsorted(self.trace.ops.row, row)
        return self.trace.string(row), self.trace.strings[self.trace.ops.dims[place]]

    def _launched(self, row: int) -> Launched:
        """Return the kernels of an op that may hide its weights."""
        known = rule_of(self.trace.string(row))
        if known is None or known[1] is not experts:
            return ()
        op, text, grid = self._pieces
        strings = self.trace.strings
        own = np.flatnonzero((op == row) & (text >= 0) & (grid >= 0))
        return tuple((strings[text[at]], strings[grid[at]]) for at in own.tolist())

    def _owners(self, op: Int64, text: Int64) -> tuple[Int32, Bool]:
        """Find the owner of each op's work and whether its own counts, by row of the trace."""
        trace, links, table = self.trace, self.links, self.trace.ops
        busy = np.zeros(len(trace), dtype=bool)
        busy[op[op >= 0]] = True
        for level in reversed(links.tree.levels):
            inner = links.chosen[level]
            above = links.parent_op[inner]
            busy[above[(above >= 0) & busy[inner]]] = True
        used = np.flatnonzero(busy[table.row])
        if not used.size:
            return np.full(len(trace), -1, dtype=np.int32), np.zeros(len(trace), dtype=bool)
        first, group = alike(
            trace.text[table.row[used]], table.dims[used], table.types[used], table.concrete[used]
        )
        self._signature[table.row[used]] = group
        firsts = used[first]
        self._work = self._works(firsts, op, text)
        rules = [rule_of(trace.string(table.row[at])) for at in firsts]
        product = np.array([one is not None and one[0] in PRODUCTS for one in rules])
        return _owners(links, self._signature, self._work, product, self._on_device)

    def _works(self, firsts: NDArray[np.intp], op: Int64, text: Int64) -> list[OpWork | None]:
        trace, table = self.trace, self.trace.ops
        found = gradients(_gradient_shapes(trace))
        linked = (op >= 0) & (text >= 0)
        counted = linked & trace.named(KERNEL)[text]
        launches = np.bincount(op[counted], minlength=len(trace))
        kernel = np.full(len(trace), -1, dtype=np.int64)
        kernel[op[linked][::-1]] = text[linked][::-1]
        return [
            work(
                trace.string(row),
                trace.strings[table.dims[at]],
                trace.strings[table.types[at]],
                trace.strings[table.concrete[at]],
                kernel=trace.strings[kernel[row]] if kernel[row] >= 0 else "",
                found=found,
                launches=int(launches[row]),
                launched=self._launched(row),
            )
            for at, row in zip(firsts.tolist(), table.row[firsts].tolist(), strict=True)
        ]


def _of_launches(trace: Trace, column: str) -> Int64:
    """Return a column of the launching calls by row of the trace; -1 where there is none."""
    values = np.full(len(trace), -1, dtype=np.int64)
    values[trace.launches.row] = getattr(trace.launches, column)
    return values


def _owners(
    links: Links,
    signature: Int32,
    works: Sequence[OpWork | None],
    product: Bool,
    on_device: bool,
) -> tuple[Int32, Bool]:
    """Return for each op the one whose work it is part of, and whether its own work counts.

    Of calls inside one another that are the same work, one counts: of products the one with the
    most FLOPs, of others on a CPU the one with the most bytes (on a device, a call that only wraps
    another launches nothing), of equals the innermost. All inside a product is its own.
    """
    has, place = signature >= 0, np.maximum(signature, 0)
    known = np.array([one is not None for one in works])[place] & has
    is_product = product[place] & known
    flops = np.array([one.flops if one else 0 for one in works], dtype=np.float64)[place]
    size = np.array([one.size_bytes if one else 0 for one in works], dtype=np.float64)[place]
    above = links.parent_op
    levels = [links.chosen[level] for level in links.tree.levels]

    def largest(amount: NDArray[np.float64]) -> Bool:
        inside = np.full(signature.size, -1.0)
        for level in reversed(levels):
            inner = level[above[level] >= 0]
            most = np.maximum(inside[inner], amount[inner])
            np.maximum.at(inside, above[inner], most)
        return np.asarray(amount > inside)

    is_product &= largest(np.where(is_product, flops, -1.0))
    other = known & ~product[place]
    if not on_device:
        other &= largest(np.where(other, size, -1.0))
    counts = is_product | other
    owner = np.arange(signature.size, dtype=np.int32)
    for level in levels:
        inner = level[above[level] >= 0]
        outer = owner[above[inner]]
        kept = is_product[outer] | (~counts[inner] & counts[outer])
        owner[inner[kept]] = outer[kept]
    return owner, counts


def _gradient_shapes(trace: Trace) -> list[Shape]:
    """Return the shapes of the gradients that the autograd engine accumulated."""
    table = trace.ops
    wanted = trace.named(_ACCUMULATES)[trace.text[table.row]]
    found = []
    for dims in table.dims[wanted].tolist():
        entry = parse_shapes(trace.strings[dims])
        shape = shape_of(entry[0]) if entry else None
        if shape is not None:
            found.append(shape)
    return found


_PHASES = 4  # Forward, backward, recompute, and work that no op launched


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoryRow:
    """The summed device time of one category; own CPU time on a CPU-only trace. Times in ns."""

    step: str  # Empty for the whole window
    module: str  # Empty for all; a module includes its callees
    category: Category
    time: int
    share: float  # As a share of all categories of this step or module
    forward: int
    backward: int
    recompute: int
    unlinked: int  # Work that no op launched, whose phase is not known


def categories(
    owned: Owned, steps: Steps | None, calls: Mapping[int, str]
) -> tuple[CategoryRow, ...]:
    """Return the categories of the window, of each step and of each module, the largest first.

    `calls` is what `module_calls` found. A step's rows are of the work that begins in it. The
    window's rows sum to all work, and those of the steps to the window's.
    """
    trace, links = owned.trace, owned.links
    op = np.maximum(owned.op, 0)
    phase = np.where(links.recompute[op], 2, np.where(links.backward[op], 1, 0))
    phase = np.where(owned.op < 0, 3, phase)
    part = owned.category * _PHASES + phase
    parts = len(CATEGORIES) * _PHASES
    found = _rows(sums_by(part, owned.time, parts), "", "")
    if steps is not None and len(steps.labels) > 1:
        at = np.searchsorted(steps.start, trace.start[owned.rows], side="right") - 1
        for number, label in enumerate(steps.labels):
            own = np.maximum(at, 0) == number
            found += _rows(sums_by(part[own], owned.time[own], parts), label, "")
    modules = module_sums(links, calls, owned.op, owned.time, part, parts)
    for path in sorted(modules, key=lambda path: -sum(modules[path])):
        found += _rows(np.array(modules[path], dtype=np.int64), "", path)
    return tuple(found)


def category_times(owned: Owned) -> dict[Category, int]:
    sums = sums_by(owned.category, owned.time, len(CATEGORIES)).tolist()
    return {category: time for category, time in zip(CATEGORIES, sums, strict=True) if time}


def _rows(sums: Int64, step: str, module: str) -> list[CategoryRow]:
    by_phase = sums.reshape(len(CATEGORIES), _PHASES).tolist()
    total = max(int(sums.sum()), 1)
    rows = [
        CategoryRow(
            step=step,
            module=module,
            category=category,
            time=sum(times),
            share=sum(times) / total,
            forward=times[0],
            backward=times[1],
            recompute=times[2],
            unlinked=times[3],
        )
        for category, times in zip(CATEGORIES, by_phase, strict=True)
        if sum(times)
    ]
    return sorted(rows, key=lambda row: -row.time)
