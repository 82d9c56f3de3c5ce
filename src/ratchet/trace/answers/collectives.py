"""Collectives: bytes, algorithm and bus bandwidth, exposed time; and the bubble of a pipeline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from ratchet.trace.analysis import Activity
from ratchet.trace.analysis.intervals import union
from ratchet.trace.analysis.links import Links
from ratchet.trace.read.columns import Bool, Kind, Trace

ELEMENT_BYTES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4,
    "double": 8, "float64": 8, "long": 8, "long int": 8, "int64": 8, "complexfloat": 8,
    "half": 2, "float16": 2, "bfloat16": 2, "c10::half": 2, "c10::bfloat16": 2,
    "short": 2, "short int": 2, "int16": 2,
    "byte": 1, "char": 1, "int8": 1, "uint8": 1, "bool": 1, "unsigned char": 1, "signed char": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
    "c10::float8_e4m3fnuz": 1, "c10::float8_e5m2fnuz": 1,
    "complexdouble": 16, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
"""Bytes of an element by the names that profilers use, in lower case."""
_ALGORITHMS = (
    ("all_reduce", re.compile(r"all_?reduce|allreduce|cross_device_reduce|quick_?reduce", re.I)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all_gather", re.compile(r"all_?gather", re.I)),
    ("all_to_all", re.compile(r"all_?to_?all|\bEp(Dispatch|Combine)|deep_ep", re.I)),
    ("broadcast", re.compile(r"broadcast", re.I)),
    ("send_recv", re.compile(r"send|recv", re.I)),
    ("reduce", re.compile(r"reduce", re.I)),
)


SEND_RECV_KERNEL: Final = re.compile(r"^(nccl|rccl)\w*SendRecv", re.I)
UNTOLD: Final = "send_recv or all_to_all"
"""The operation of a send-receive kernel without its caller: NCCL runs both as one."""
BACKEND_RUN: Final = re.compile(r"gloo:|mpi:|ucc:")
"""Beginning of the names under which a CPU backend records its runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRow:
    """One communication kernel; times in ns, bandwidths in bytes a second (0 if unknown)."""

    kernel: str
    operation: str  # all_reduce, all_gather, ...; `unknown` if neither the record nor the name says
    group: str
    ranks: int
    size_bytes: int
    """Per rank, as the collective libraries' tests count it; 0 if the trace does not say."""
    start: int
    duration: int
    exposed: int  # The part that no compute kernel hid
    algorithm_bandwidth: float
    bus_bandwidth: float
    linked: bool


def collectives(
    trace: Trace, links: Links, communication: Bool, activity: Activity
) -> tuple[CollectiveRow, ...]:
    """Return every communication kernel of the window, in order of time."""
    wanted = communication & ~links.carried_in
    wanted &= trace.kind == Kind.KERNEL if trace.on_device else True
    rows = np.flatnonzero(wanted)
    if not trace.on_device:
        # A CPU backend's own runs, if it recorded any, without the ops that issue or await them.
        runs = [row for row in rows.tolist() if BACKEND_RUN.match(trace.string(row))]
        rows = np.array(runs, dtype=np.intp) if runs else rows
    end = trace.end
    hidden = activity.compute.covered(trace.start[rows], end[rows])
    recorded = {int(row): i for i, row in enumerate(trace.collectives.row)}
    table = []
    for row, covered in zip(rows.tolist(), hidden.tolist(), strict=True):
        known = (recorded[one] for one in (row, *links.ops_around(row)) if one in recorded)
        operation, size, ranks, group = _facts(trace, links, row, next(known, -1))
        duration = int(trace.duration[row])
        rate = size / duration * 1e9 if duration and size else 0.0
        table.append(
            CollectiveRow(
                kernel=trace.string(row),
                operation=operation,
                group=group,
                ranks=ranks,
                size_bytes=size,
                start=int(trace.start[row]),
                duration=duration,
                exposed=duration - covered,
                algorithm_bandwidth=rate,
                bus_bandwidth=rate * bus_factor(operation, ranks),
                linked=bool(links.op[row] >= 0),
            )
        )
    return tuple(table)


def bus_factor(operation: str, ranks: int) -> float:
    """Return bus over algorithm bandwidth (nccl-tests' doc/PERFORMANCE.md); 0 if ranks are unknown.

    2(n-1)/n for all-reduce, (n-1)/n for gather, scatter and all-to-all, 1 for the rest.
    """
    if ranks < 1:
        return 0.0
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def operation_of(name: str) -> str:
    """Return the collective that a recorded name or a kernel's name stands for."""
    found = (operation for operation, pattern in _ALGORITHMS if pattern.search(name))
    return next(found, "unknown")


def _facts(trace: Trace, links: Links, row: int, said: int) -> tuple[str, int, int, str]:
    """Return (operation, bytes, ranks, group) of one kernel by a record, or -1 without one."""
    if said < 0:
        mark = int(links.mark[row])
        callers = (mark,) if mark >= 0 else links.ops_around(row)
        found = (operation_of(trace.string(one)) for one in callers)
        operation = next((one for one in found if one != "unknown"), "")
        if not operation and mark < 0:
            operation = operation_of(trace.string(row))
            is_told = operation != "send_recv" or not SEND_RECV_KERNEL.search(trace.string(row))
            operation = operation if is_told else UNTOLD
        return operation or "unknown", 0, 0, ""
    record = trace.collectives
    operation = operation_of(trace.strings[record.name[said]])
    if operation == "unknown":
        operation = operation_of(trace.string(row))
    width = ELEMENT_BYTES.get(trace.strings[record.dtype[said]].lower(), 0)
    # The larger buffer is the whole message: the output of a gather, the input of a scatter.
    elements = max(int(record.elements_in[said]), int(record.elements_out[said]), 0)
    ranks = max(int(record.group_size[said]), 0)
    return operation, elements * width, ranks, trace.strings[record.group[said]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bubble:
    """A stage's bubble in the window, in ns."""

    waiting: int  # Time in sends or receives that no compute hides
    idle: int  # Time with nothing on the device
    share: float  # Share of the window that both take


def bubble(activity: Activity, collectives: tuple[CollectiveRow, ...]) -> Bubble | None:
    """Return the bubble of a rank that sends to or receives from a neighbour; None for others."""
    transfers = [row for row in collectives if row.operation == "send_recv"]
    if not transfers:
        return None
    start = np.array([row.start for row in transfers], dtype=np.int64)
    end = start + np.array([row.duration for row in transfers], dtype=np.int64)
    order = np.argsort(start)
    waiting = (union(start[order], end[order]) - activity.compute).length
    idle = activity.busy.gaps(activity.start, activity.end).length
    window = max(activity.end - activity.start, 1)
    return Bubble(waiting=waiting, idle=idle, share=(waiting + idle) / window)
