"""Ops against the device's ceilings, and the time that could still be won."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis.intervals import alike, groups, sums_by
from ratchet.trace.answers.ceilings import Rooflines, trace_ceilings
from ratchet.trace.answers.kernels import tile_of
from ratchet.trace.answers.owners import CATEGORIES, Owned
from ratchet.trace.answers.precision import TYPES
from ratchet.trace.answers.sources import Place, fused_ops
from ratchet.trace.answers.work import Category
from ratchet.trace.answers.work.call import NOT_KNOWN, SIZE, OpWork
from ratchet.trace.read.columns import Int64, Kind, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class RooflineRow:
    """All calls of one op with one set of shapes. FLOPs and bytes are of all calls together.

    Every piece of work is in one row: that of the innermost op around it whose work is known, but
    casts and splits inside a product are the product's. Work whose least is not known, and work
    that no op launched, has rows with a `least` of 0; communication has none.
    """

    name: str
    shapes: str
    dtype: str
    category: Category
    count: int
    time: int  # Device time, in ns; own CPU time on a CPU-only trace. Callees are included.
    shortest: int  # Time of the shortest call, in ns
    longest: int
    spread: float  # Standard deviation of the calls' times, in ns
    flops: int  # 0 if not known
    size_bytes: int  # 0 if not known
    flops_from: str  # Where the FLOPs are from, or `not known`
    bytes_from: str
    kernel: str  # The kernel that took most of the time; empty on a CPU-only trace
    module: str  # The module that most of the time belongs to; empty if none is known
    region: str  # The compiled region around it; empty if there is none
    source: str  # The user's innermost line of Python around it; empty if the trace has no stacks
    ceiling: str  # Source of the device's ceilings, or the reason why there are none
    bound: Literal["compute", "memory", "unknown"]
    least: int  # The time at the ceiling, in ns; 0 if it is not known
    roof_flops_per_s: float  # The compute ceiling; 0 if it is not known
    roof_bytes_per_s: float  # The bandwidth ceiling; 0 if it is not known
    paper: int  # The time at the maker's peaks, in ns; 0 if they are not known

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.time * 1e9 if self.time else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.time * 1e9 if self.time else 0.0

    @property
    def intensity(self) -> float:
        return self.flops / self.size_bytes if self.size_bytes else 0.0

    @property
    def tile(self) -> str:
        """The kernel's tile, instruction set and split, as far as its name tells them."""
        found = tile_of(self.kernel)
        split = (
            found.split if found.split in ("", "split-K", "stream-K") else f"split {found.split}"
        )
        return " ".join(filter(None, (found.tile, found.isa, split)))

    @property
    def fused(self) -> tuple[str, ...]:
        """The ops that Inductor fused into the kernel."""
        return fused_ops(self.kernel)

    @property
    def could_win(self) -> int:
        """Time above the ceiling's, in ns; 0 if the ceiling is unknown."""
        return max(self.time - self.least, 0) if self.least else 0

    @property
    def known(self) -> bool:
        """True if FLOPs or bytes are known, whether the device's ceilings are or not."""
        return bool(self.flops or self.size_bytes)


def roofline(owned: Owned, ceilings: Rooflines | None = None) -> tuple[RooflineRow, ...]:
    """Return all work but communication, by the time that could still be won."""
    trace = owned.trace
    chosen = np.flatnonzero(owned.category != CATEGORIES.index("communication"))
    rows, time, owner = owned.rows[chosen], owned.time[chosen], owned.owner[chosen]
    call, category, kind = owned.call[chosen], owned.category[chosen], owned.kind[chosen]
    ceilings = ceilings or trace_ceilings(trace)
    paths = owned.modules_of(owner)
    # Work without an op is grouped by its own name.
    _, group = alike(kind, np.where(owner >= 0, -1, trace.text[rows]))
    made = []
    for own in groups(group):
        chief = int(own[np.argmax(time[own])])
        at = int(owner[chief])
        calls, number = np.unique(call[own], return_inverse=True)
        name, shapes = owned.written(at) if at >= 0 else (trace.string(rows[chief]), "")
        made.append(
            _row(
                name, shapes, owned.work_of(at) or _moved(trace, rows[own]),
                sums_by(number.reshape(-1), time[own], calls.size), ceilings,
                category=CATEGORIES[category[chief]],
                kernel=trace.string(rows[chief]) if trace.on_device else "",
                module=paths[at],
                place=owned.place_of(at),
            )
        )  # fmt: skip
    return tuple(sorted(made, key=lambda row: (-row.could_win, -row.time)))


def _row(
    name: str,
    shapes: str,
    least: OpWork | None,
    each: Int64,
    ceilings: Rooflines,
    *,
    category: Category,
    kernel: str,
    module: str,
    place: Place,
) -> RooflineRow:
    count = each.size
    dtype = "" if least is None else TYPES.get(least.dtype.lower(), least.dtype)
    roof = None if least is None else ceilings.at(dtype, least.size_bytes, least.product)
    paper = None if least is None else ceilings.paper_at(dtype)
    flops, size = (0, 0) if least is None else (least.flops * count, least.size_bytes * count)
    return RooflineRow(
        name=name,
        shapes=shapes,
        dtype=dtype,
        category=category,
        count=count,
        time=int(each.sum()),
        shortest=int(each.min()),
        longest=int(each.max()),
        spread=float(each.std()),
        flops=flops,
        size_bytes=size,
        flops_from=NOT_KNOWN if least is None else least.flops_from,
        bytes_from=NOT_KNOWN if least is None else least.bytes_from,
        kernel=kernel,
        module=module,
        region=place.region,
        source=place.source,
        ceiling=ceilings.source_of(dtype),
        bound=roof.bound(flops, size) if roof else "unknown",
        least=max(round(roof.time_bound_s(flops, size) * 1e9), 1) if roof else 0,
        roof_flops_per_s=roof.flops_per_s if roof else 0.0,
        roof_bytes_per_s=roof.bytes_per_s if roof else 0.0,
        paper=max(round(paper.time_bound_s(flops, size) * 1e9), 1) if paper else 0,
    )


def _moved(trace: Trace, rows: NDArray[np.intp]) -> OpWork | None:
    """Return the mean work of copies and fills by their recorded size; None for kernels."""
    size = trace.size[rows]
    if not (np.isin(trace.kind[rows], (Kind.COPY, Kind.FILL)) & (size > 0)).all():
        return None
    # Between two places of the device's memory, the data are read and written there.
    twice = 1 + ("DtoD" in trace.string(rows[0]))
    return OpWork(
        flops=0, size_bytes=twice * int(size.mean()), dtype="", flops_from=SIZE, bytes_from=SIZE
    )
