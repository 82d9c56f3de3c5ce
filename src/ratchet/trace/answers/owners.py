"""The op that each piece of work is for, what that op must at least do, and its category."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis.intervals import alike
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import work_of
from ratchet.trace.answers.work import PRODUCTS, Category, category_of, rule_of, work
from ratchet.trace.answers.work.call import OpWork, Shape, parse_shapes, shape_of
from ratchet.trace.answers.work.optimizer import KERNEL, gradients
from ratchet.trace.read.columns import Bool, Int64, Trace

CATEGORIES: tuple[Category, ...] = get_args(Category)
_ACCUMULATES = re.compile(r"^torch::autograd::AccumulateGrad$")


class Owned:
    """All device work in the window (on a CPU-only trace, the ops' own time), by owner.

    The owner of a piece of work is the innermost op around it whose work is known; casts and
    splits inside a product are the product's. Each piece has one owner, -1 if no op launched it.
    """

    def __init__(self, trace: Trace, links: Links, communication: Bool) -> None:
        rows, op, time = work_of(trace, links)
        busy = time > 0
        self.trace, self.links = trace, links
        self.rows, self.op, self.time = rows[busy], op[busy], time[busy]
        self.signature = np.full(len(trace), -1, dtype=np.int64)
        """By row of the trace, equal for ops of one name, shapes, types and values."""
        self._place = np.full(len(trace), -1, dtype=np.int64)
        self._place[trace.ops.row] = np.arange(trace.ops.row.size)
        self._work: list[OpWork | None] = []
        owner, self.counts = self._owners()
        self.owner = np.where(self.op >= 0, owner[np.maximum(self.op, 0)], -1)
        self.category = self._categories(communication)
        """By piece of work, a place in `CATEGORIES`."""

    def work_of(self, row: int) -> OpWork | None:
        """Return the least work of an op; None if it is not known, or counted inside it."""
        signature = self.signature[row] if row >= 0 and self.counts[row] else -1
        return self._work[signature] if signature >= 0 else None

    def written(self, row: int) -> tuple[str, str]:
        """Return an op's name and shapes."""
        dims = self.trace.ops.dims[self._place[row]]
        return self.trace.string(row), self.trace.strings[dims]

    def _owners(self) -> tuple[Int64, Bool]:
        """Find the owner of each op's work and whether its own counts, by row of the trace."""
        trace, links, table = self.trace, self.links, self.trace.ops
        busy = np.zeros(len(trace), dtype=bool)
        busy[self.op[self.op >= 0]] = True
        for level in reversed(links.tree.levels):
            inner = links.chosen[level]
            above = links.parent_op[inner]
            busy[above[(above >= 0) & busy[inner]]] = True
        used = np.flatnonzero(busy[table.row])
        if not used.size:
            return np.full(len(trace), -1, dtype=np.int64), np.zeros(len(trace), dtype=bool)
        first, group = alike(
            trace.text[table.row[used]], table.dims[used], table.types[used], table.concrete[used]
        )
        self.signature[table.row[used]] = group
        firsts = used[first]
        self._work = self._works(firsts)
        rules = [rule_of(trace.string(table.row[at])) for at in firsts]
        product = np.array([one is not None and one[0] in PRODUCTS for one in rules])
        return _owners(links, self.signature, self._work, product)

    def _works(self, firsts: NDArray[np.intp]) -> list[OpWork | None]:
        trace, table = self.trace, self.trace.ops
        found = gradients(_gradient_shapes(trace))
        linked = self.op >= 0
        counted = linked & trace.named(KERNEL)[trace.text[self.rows]]
        launches = np.bincount(self.op[counted], minlength=len(trace))
        kernel = np.full(len(trace), -1, dtype=np.int64)
        kernel[self.op[linked][::-1]] = self.rows[linked][::-1]
        return [
            work(
                trace.string(row),
                trace.strings[table.dims[at]],
                trace.strings[table.types[at]],
                trace.strings[table.concrete[at]],
                kernel=trace.string(kernel[row]) if kernel[row] >= 0 else "",
                found=found,
                launches=int(launches[row]),
            )
            for at, row in zip(firsts.tolist(), table.row[firsts].tolist(), strict=True)
        ]

    def _categories(self, communication: Bool) -> Int64:
        trace = self.trace
        talks = communication[self.rows]
        name = np.where(self.owner >= 0, trace.text[np.maximum(self.owner, 0)], -1)
        first, group = alike(name, trace.text[self.rows], talks)
        found = [
            "communication"
            if talks[at]
            else category_of(trace.strings[name[at]] if name[at] >= 0 else "",
                             trace.string(self.rows[at]))
            for at in first.tolist()
        ]  # fmt: skip
        number = np.array([CATEGORIES.index(one) for one in found], dtype=np.int64)
        return number[group] if number.size else number


def _owners(
    links: Links, signature: Int64, works: Sequence[OpWork | None], product: Bool
) -> tuple[Int64, Bool]:
    """Return for each op the one whose work it is part of, and whether its own work counts.

    Of calls inside one another that are the same work, one counts: of products the one with the
    most FLOPs, of others the one with the most bytes, of equals the innermost. All that runs inside
    a product is its own.
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
    counts = is_product | (other & largest(np.where(other, size, -1.0)))
    owner = np.arange(signature.size, dtype=np.int64)
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
