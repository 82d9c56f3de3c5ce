"""The distinct calls of a trace's ops: sizes, types, strides and values, and their times."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import Raw, Struct, field
from numpy.typing import NDArray

from ratchet.base.errors import TraceError
from ratchet.base.json_value import Json
from ratchet.trace.analysis.analyse import Analysis
from ratchet.trace.answers.kernels import ops as op_rows
from ratchet.trace.answers.sequences.sequences import launched
from ratchet.trace.read.columns import PLATFORMS, Int64, Kind, Trace
from ratchet.trace.read.digits import nanoseconds
from ratchet.trace.read.events import NOTHING
from ratchet.trace.read.stream import raw_events
from ratchet.trace.replay.recorded import Recorded


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """All calls of an op with the same inputs."""

    recorded: Recorded
    count: int
    time: int
    """Summed, in ns: device time of all launched work, or CPU time on a CPU-only trace."""


class _Arguments(Struct, gc=False):
    dims: Raw = field(default=NOTHING, name="Input Dims")
    types: Raw = field(default=NOTHING, name="Input type")
    strides: Raw = field(default=NOTHING, name="Input Strides")
    values: Raw = field(default=NOTHING, name="Concrete Inputs")


class _Event(Struct, gc=False):
    name: Json = ""
    ph: Json = ""
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: _Arguments | None = None


def costly_ops(found: Analysis, count: int) -> tuple[str, ...]:
    """Return the aten ops with most device time of their own; on a CPU-only trace, CPU time."""
    times: dict[str, int] = {}
    on_device = found.trace.on_device
    for row in op_rows(found.trace, found.links):
        if row.name.startswith("aten::"):
            times[row.name] = times.get(row.name, 0) + (row.device if on_device else row.cpu_own)
    ranked = sorted(times, key=lambda name: -times[name])
    return tuple(name for name in ranked if times[name] > 0)[:count]


def calls(
    path: Path, found: Analysis, names: Sequence[str], note: Callable[[str], None]
) -> tuple[Call, ...]:
    """Return the distinct calls of these ops, those that took most time first.

    TraceError if the file is not a Chrome trace, lacks one of the ops, or was recorded without
    shapes.
    """
    trace = found.trace
    missing = [name for name in names if name not in trace.strings]
    if missing:
        raise TraceError(
            f"{path.name} has no call of {', '.join(missing)}: `ratchet trace report` lists its ops"
        )
    wanted = set(names)
    time = _times(found, wanted)
    sums: dict[tuple[str, bytes, bytes, bytes, bytes], list[int]] = {}
    for events in raw_events(path, _Event, note):
        own = [event for event in events if event.name in wanted and event.ph == "X"]
        start = nanoseconds([event.ts for event in own]).tolist()
        length = nanoseconds([event.dur for event in own]).tolist()
        for event, begun, took in zip(own, start, length, strict=True):
            key = (event.name, begun, took)
            if event.args is None or not event.args.dims or key not in time:
                continue
            given = event.args
            inputs = (bytes(given.dims), bytes(given.types), bytes(given.strides),
                      bytes(given.values))  # fmt: skip
            total = sums.setdefault((event.name, *inputs), [0, 0])
            total[0] += 1
            total[1] += time[key].pop() if time[key] else 0
    if not sums:
        raise TraceError(
            f"{path.name} has no shapes: record it with record_shapes=True, as `ratchet trace "
            "record` does"
        )
    made = [
        Call(
            recorded=Recorded(
                op=op,
                dims=_entries(dims) or (),
                types=tuple(map(str, _entries(types) or ())),
                strides=_entries(strides),
                values=None if (known := _entries(values)) is None else tuple(map(str, known)),
            ),
            count=count,
            time=took,
        )
        for (op, dims, types, strides, values), (count, took) in sums.items()
    ]
    return tuple(sorted(made, key=lambda call: -call.time))


def _times(found: Analysis, names: set[str]) -> dict[tuple[str, int, int], list[int]]:
    """Return the time to count for each call, by its (name, start, duration)."""
    trace = found.trace
    rows = trace.rows(Kind.OP)
    rows = rows[np.isin(trace.text[rows], [i for i, s in enumerate(trace.strings) if s in names])]
    took = _on_device(found, rows) if trace.on_device else trace.duration[rows]
    times: dict[tuple[str, int, int], list[int]] = {}
    for row, time in zip(rows.tolist(), took.tolist(), strict=True):
        key = (trace.string(row), int(trace.start[row]), int(trace.duration[row]))
        times.setdefault(key, []).append(time)
    return times


def _on_device(found: Analysis, rows: NDArray[np.intp]) -> Int64:
    line, begin, end = launched(found.trace, found.links, rows)
    sums = line.sums
    return np.asarray(sums[end] - sums[begin], dtype=np.int64)


def _entries(text: bytes) -> tuple[Json, ...] | None:
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return tuple(value) if isinstance(value, list) else None


def traced_on(trace: Trace) -> str:
    """Name the device that a trace was recorded on."""
    return trace.device_name or PLATFORMS[trace.platform]
