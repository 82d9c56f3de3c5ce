"""Device time by category (GEMM, attention, copy): of the window, each step and each module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ratchet.trace.analysis import Steps
from ratchet.trace.analysis.intervals import sums_by
from ratchet.trace.answers.kernels import module_sums
from ratchet.trace.answers.owners import CATEGORIES, Owned
from ratchet.trace.answers.work import Category
from ratchet.trace.read.columns import Int64

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
