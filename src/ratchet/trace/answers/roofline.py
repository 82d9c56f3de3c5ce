"""Ops against the device's ceilings, and the time that could still be won."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ratchet.base.devices import catalogue
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.devices.ceilings import Ceilings, Roofline
from ratchet.base.devices.ceilings import roofline as measured
from ratchet.trace.analysis.intervals import alike
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import device_time_by_op, own_cpu_time
from ratchet.trace.answers.shapes import TYPES, work
from ratchet.trace.read.columns import Trace

_PEAKS = {
    "fp32": ("matrix_tf32", "matrix_fp32", "vector_fp32"),
    "bf16": ("matrix_bf16",),
    "fp16": ("matrix_fp16",),
    "fp64": ("matrix_fp64", "vector_fp64"),
    "fp8": ("matrix_fp8",),
}
"""The catalogue's peaks that bound a type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RooflineRow:
    """All calls of one op with one set of shapes. FLOPs and bytes are of all calls together."""

    name: str
    shapes: str
    dtype: str
    count: int
    time: int  # Device time, in ns; own CPU time on a CPU-only trace. Callees are included.
    flops: int
    size_bytes: int
    ceiling: str  # Source of the device's ceilings, or the reason why there are none
    bound: Literal["compute", "memory", "unknown"]
    least: int  # The time at the ceiling, in ns; 0 if the device's ceilings are not known
    roof_flops_per_s: float  # The compute ceiling; 0 if it is not known
    roof_bytes_per_s: float  # The bandwidth ceiling; 0 if it is not known

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.time * 1e9 if self.time else 0.0

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.size_bytes if self.size_bytes else 0.0

    @property
    def could_win(self) -> int:
        """Time above the ceiling's, in ns; 0 if the ceiling is unknown."""
        return max(self.time - self.least, 0) if self.least else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rooflines:
    """A device's rooflines by short type name."""

    of: Mapping[str, Roofline]
    source: str


def paper_ceilings(trace: Trace) -> Rooflines:
    """Return the catalogue's peaks of the trace's device; none if it is not in the catalogue."""
    device = next((one for one in trace.devices if one.name), None)
    if device is None:
        return Rooflines(of={}, source="the trace names no device")
    entry = catalogue.load().match(device.name, compute_units=device.compute_units)
    if entry is None:
        return Rooflines(of={}, source=f"{device.name} is not in the catalogue")
    return _on_paper(entry)


def named_ceilings(name: str) -> Rooflines:
    """Return the catalogue's peaks of a device by name; DeviceError if it is not there."""
    known = catalogue.load()
    return _on_paper(known.match(name) or known[name])


def _on_paper(entry: CatalogueDevice) -> Rooflines:
    bandwidth = entry.memory_bytes_per_s()
    rooflines = {}
    for short, peaks in _PEAKS.items():
        rates = [rate for peak in peaks if (rate := entry.peak_flops_per_s(peak))]
        if rates and bandwidth:
            rooflines[short] = Roofline(flops_per_s=max(rates), bytes_per_s=bandwidth)
    return Rooflines(of=rooflines, source=f"{entry.name}, on paper")


def measured_ceilings(rates: Ceilings, device: str) -> Rooflines:
    """Return the rooflines of rates that were measured on the trace's device."""
    return Rooflines(
        of={dtype: measured(rates, dtype=dtype) for dtype in rates.flops_per_s},
        source=f"{device}, measured",
    )


def roofline(
    trace: Trace, links: Links, ceilings: Rooflines | None = None
) -> tuple[RooflineRow, ...]:
    """Return the ops whose FLOPs follow from their shapes, by the time that could still be won."""
    if trace.on_device:
        time, _ = device_time_by_op(trace, links)
    else:
        time = own_cpu_time(trace, links)
    for level in reversed(links.tree.levels):  # callees count, so the deepest come first
        own = links.chosen[level]
        above = links.parent_op[own]
        inner = (above >= 0) & (time[own] > 0)
        np.add.at(time, above[inner], time[own[inner]])
    table = trace.ops
    used = np.flatnonzero(time[table.row] > 0)
    if not used.size:
        return ()
    first, group = alike(
        trace.text[table.row[used]], table.dims[used], table.types[used], table.concrete[used]
    )
    count = np.bincount(group)
    total = np.bincount(group, weights=time[table.row[used]]).astype(np.int64)
    ceilings = ceilings or paper_ceilings(trace)
    rows = []
    for i, place in enumerate(used[first]):
        name = trace.string(table.row[place])
        dims, types = trace.strings[table.dims[place]], trace.strings[table.types[place]]
        found = work(name, dims, types, trace.strings[table.concrete[place]])
        if found is None:
            continue
        short = TYPES.get(found.dtype.lower(), found.dtype)
        flops, size = found.flops * int(count[i]), found.size_bytes * int(count[i])
        roof = ceilings.of.get(short)
        rows.append(
            RooflineRow(
                name=name,
                shapes=dims,
                dtype=short,
                count=int(count[i]),
                time=int(total[i]),
                flops=flops,
                size_bytes=size,
                ceiling=ceilings.source,
                bound=roof.bound(flops, size) if roof else "unknown",
                least=round(roof.time_bound_s(flops, size) * 1e9) if roof else 0,
                roof_flops_per_s=roof.flops_per_s if roof else 0.0,
                roof_bytes_per_s=roof.bytes_per_s if roof else 0.0,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.could_win, -row.time)))
