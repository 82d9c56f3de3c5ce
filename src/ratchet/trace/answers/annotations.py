"""Time by the marks of the user and of libraries (`record_function`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ratchet.trace.analysis.links import Links
from ratchet.trace.analysis.nesting import nest
from ratchet.trace.answers.kernels import device_rows
from ratchet.trace.read.columns import Kind, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotationRow:
    """All spans of one mark; times in ns, inner marks included."""

    name: str
    count: int
    cpu: int
    device: int
    """Summed device time of the work launched inside, on the mark's own thread."""
    launches: int


def marks(trace: Trace, links: Links) -> tuple[AnnotationRow, ...]:
    """Return the marks by device time, then by CPU time. Steps are left out."""
    chosen = np.flatnonzero(np.isin(trace.kind, (Kind.ANNOTATION, Kind.RUNTIME)))
    tree = nest(trace.lane[chosen], trace.start[chosen], trace.duration[chosen])
    mark = trace.kind[chosen] == Kind.ANNOTATION
    above = tree.nearest(mark)
    place = np.full(len(trace), -1, dtype=np.int64)
    place[chosen] = np.arange(chosen.size)
    rows = device_rows(trace, links)
    rows = rows[links.launch[rows] >= 0]
    launch = place[links.launch[rows]]
    time = np.bincount(launch, weights=trace.duration[rows], minlength=chosen.size)
    started = np.bincount(launch, minlength=chosen.size).astype(np.int64)
    device = time.astype(np.int64)
    for level in reversed(tree.levels):
        inner = level[above[level] >= 0]
        np.add.at(device, above[inner], device[inner])
        np.add.at(started, above[inner], started[inner])
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for at in np.flatnonzero(mark).tolist():
        row = int(chosen[at])
        total = sums[trace.string(row)]
        for i, value in enumerate((1, trace.duration[row], device[at], started[at])):
            total[i] += int(value)
    table = [
        AnnotationRow(name=name, count=n, cpu=cpu, device=gpu, launches=calls)
        for name, (n, cpu, gpu, calls) in sums.items()
        if not name.startswith("ProfilerStep")
    ]
    return tuple(sorted(table, key=lambda row: (-row.device, -row.cpu)))
