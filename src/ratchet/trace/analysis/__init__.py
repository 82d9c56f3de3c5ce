"""The structure under every answer: who launched what, the window, its parts and its steps.

`analyse` gives all of it for one trace. A window is split exactly: compute + exposed communication
+ exposed copy + idle = window. `links` ties device work to calls, ops and modules; `intervals`
holds sets of time, and sums rows that agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis.intervals import Spans, union
from ratchet.trace.analysis.links import Links, link
from ratchet.trace.read.columns import DEVICE_KINDS, STEP, Bool, Int64, Kind, Trace

DEVICE_WINDOW = "first to last device work that the recording launched"
CPU_WINDOW = "first to last operator"
PARTS = ("compute", "exposed_communication", "exposed_copy", "idle")
SUMMED = ("window", *PARTS, "communication", "copy")  # The times of an identity that several add up


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """One window's time by part, in ns; the four parts sum to the window."""

    label: str
    start: int
    window: int
    compute: int
    exposed_communication: int  # Communication minus compute
    exposed_copy: int  # Copies and fills minus compute and communication
    idle: int
    communication: int  # The union of communication, hidden or not
    copy: int

    def __post_init__(self) -> None:
        parts = self.parts
        assert sum(parts) == self.window and min(parts) >= 0, (self.label, parts, self.window)

    @property
    def parts(self) -> tuple[int, int, int, int]:
        return self.compute, self.exposed_communication, self.exposed_copy, self.idle

    @property
    def times(self) -> dict[str, int]:
        return dict(zip(PARTS, self.parts, strict=True))

    @property
    def overlap(self) -> float | None:
        """Share of communication that compute hides; None without communication."""
        if not self.communication:
            return None
        return 1 - self.exposed_communication / self.communication


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """Three sets of time, and the window that they are measured in."""

    compute: Spans
    communication: Spans
    copy: Spans
    start: int
    end: int
    window_is: str

    @property
    def busy(self) -> Spans:
        return self.compute | self.communication | self.copy

    def windows(self, labels: Sequence[str], start: Int64, end: Int64) -> tuple[Identity, ...]:
        with_communication = self.compute | self.communication
        compute = self.compute.covered(start, end)
        both = with_communication.covered(start, end)
        all_three = (with_communication | self.copy).covered(start, end)
        communication = self.communication.covered(start, end)
        copy = self.copy.covered(start, end)
        return tuple(
            Identity(
                label=label,
                start=int(start[i]),
                window=int(end[i] - start[i]),
                compute=int(compute[i]),
                exposed_communication=int(both[i] - compute[i]),
                exposed_copy=int(all_three[i] - both[i]),
                idle=int(end[i] - start[i] - all_three[i]),
                communication=int(communication[i]),
                copy=int(copy[i]),
            )
            for i, label in enumerate(labels)
        )

    def whole(self, label: str = "all") -> Identity:
        return self.windows([label], np.array([self.start]), np.array([self.end]))[0]


def activity(
    trace: Trace, links: Links, communication: Bool, device: int | None = None
) -> Activity:
    """Sort a trace's time into compute, communication and copies.

    On a device these are kernels, communication kernels, and copies and fills, of one device or of
    all, without work carried in from before the recording. On a CPU-only trace they are operators
    and communication operators; there are no copies.
    """
    if not trace.on_device:
        return _on_cpu(trace, communication)
    work = np.isin(trace.kind, DEVICE_KINDS) & ~links.carried_in
    if device is not None:
        work &= trace.device == device
    kernel = work & (trace.kind == Kind.KERNEL)
    end = trace.end
    return Activity(
        compute=_of(trace, end, kernel & ~communication),
        communication=_of(trace, end, kernel & communication),
        copy=_of(trace, end, work & (trace.kind != Kind.KERNEL)),
        start=int(trace.start[work].min()),
        end=int(end[work].max()),
        window_is=DEVICE_WINDOW,
    )


def by_device(trace: Trace, links: Links, communication: Bool) -> tuple[Identity, ...]:
    """Return the identity of each device if the process used several; empty for one."""
    work = np.isin(trace.kind, DEVICE_KINDS) & ~links.carried_in
    devices = np.unique(trace.device[work]).tolist()
    if len(devices) < 2:
        return ()
    return tuple(
        activity(trace, links, communication, device).whole(f"device {device}")
        for device in devices
    )


def _of(trace: Trace, end: Int64, chosen: Bool) -> Spans:
    return union(trace.start[chosen], end[chosen])


def _on_cpu(trace: Trace, communication: Bool) -> Activity:
    """Sort the time of operators over all threads; a communication op's callees communicate."""
    ops = trace.kind == Kind.OP
    end = trace.end
    nothing = Spans(trace.start[:0], trace.start[:0])
    compute, shared = nothing, nothing
    for lane in np.unique(trace.lane[ops | communication]):
        own = trace.lane == lane
        talk = _of(trace, end, own & communication)
        shared |= talk
        compute |= _of(trace, end, own & ops) - talk
    counted = ops | communication
    if not counted.any():
        counted = np.ones(len(trace), dtype=bool)
    return Activity(
        compute=compute,
        communication=shared,
        copy=nothing,
        start=int(trace.start[counted].min()),
        end=int(end[counted].max()),
        window_is=CPU_WINDOW,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The profiler's steps as windows that tile the whole window."""

    labels: tuple[str, ...]
    start: Int64
    end: Int64
    how: str


_SERVED = re.compile(
    r"^execute_(?:\d+_)?context_(?P<prefill>\d{1,9})\(.*\)_generation_(?P<decode>\d{1,9})\(|"
    r"^execute_diffusion_|^step\[|^\[Executor\] _forward_step"
)
"""Marks around a step of inference: vLLM's and SGLang's with their numbers of requests, xDiT's, and
TensorRT-LLM's."""


def _marked(trace: Trace) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """Return the rows of the steps' marks and their labels: the profiler's, or else inference's.

    Of marks inside one another, the outermost counts.
    """
    marks = trace.kind == Kind.ANNOTATION
    rows = np.flatnonzero(trace.named(STEP)[trace.text] & marks)
    if rows.size:
        return rows, tuple(trace.string(row) for row in rows)
    served = np.flatnonzero(trace.named(_SERVED)[trace.text] & marks)
    kept, labels, end = [], [], None
    for row in served.tolist():
        if end is None or trace.start[row] >= end:
            found = _SERVED.match(trace.string(row))
            counts = found.groupdict() if found else {}
            parts = [f"{kind} {count}" for kind, count in counts.items() if int(count or 0)]
            kept.append(row)
            labels.append(f"{len(kept)}: {', '.join(parts) or trace.string(row)}")
            end = trace.end[row]
    return np.array(kept, dtype=np.intp), tuple(labels)


def steps(trace: Trace, links: Links, whole: Activity) -> Steps | None:
    """Return the steps; None if the trace marks none.

    On a device, a step begins with the first work that it launched. Work that is still queued when
    the CPU begins the next step therefore counts to the step that launched it.
    """
    marked, labels = _marked(trace)
    if not marked.size:
        return None
    marks = trace.start[marked]
    work = np.flatnonzero(links.launch >= 0)
    if trace.on_device and work.size:
        owner = np.searchsorted(marks, trace.start[links.launch[work]], side="right") - 1
        bounds = np.full(marks.size, whole.end, dtype=np.int64)
        np.minimum.at(bounds, np.maximum(owner, 0), trace.start[work])
        bounds = np.minimum.accumulate(bounds[::-1])[::-1]
        how = "from the first device work that a step launched to the next step's"
    else:
        bounds = np.clip(marks, whole.start, whole.end)
        how = "from one step's mark to the next"
    start = np.concatenate(([whole.start], bounds[1:]))
    end = np.concatenate((bounds[1:], [whole.end]))
    return Steps(labels=labels, start=start, end=end, how=how)


KERNEL = re.compile(
    r"nccl(?!\w*Mem)|rccl|oneccl|msccl|ucc_|nvshmem|rocshmem|deep_ep|"
    r"cross_device_(reduce|store)|quick_?reduce|\bmultimem_|symmetric_memory|\bmori(_|::)|"
    r"\bEp(Dispatch|Combine)|(one|two)_?shot_all_?reduce|custom_all_?reduce|"
    r"all_?reduce_?(fusion|kernel|sum|mhc|prototype)|"
    r"^(?!.*(gemm|matmul|_mm_)).*(\b|_)(all_?gather|reduce_?scatter)(_|\b)",
    re.IGNORECASE,
)
"""Names of device kernels that communicate: of the collective libraries, of MoRI's dispatch and
combine, of symmetric memory (multimem), and of custom collectives such as aiter's; never `hip*`."""
CPU_OP = re.compile(r"^(c10d::|gloo:|mpi:|ucc:|_c10d_functional::)")
"""Names of CPU ops and annotations that communicate, for traces without device work."""


def communicates(trace: Trace) -> Bool:
    """Return for each event whether it is a communication kernel (on a CPU-only trace, an op)."""
    if trace.on_device:
        named = trace.named(KERNEL)[trace.text] & (trace.kind == Kind.KERNEL)
        recorded = np.zeros(len(trace), dtype=bool)
        recorded[trace.collectives.row] = True
        return np.asarray(named | (recorded & (trace.kind == Kind.KERNEL)))
    cpu = np.isin(trace.kind, (Kind.OP, Kind.ANNOTATION))
    return np.asarray(trace.named(CPU_OP)[trace.text] & cpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """A trace with what every answer builds on."""

    trace: Trace
    links: Links
    communication: Bool  # True for events that communicate
    activity: Activity
    steps: Steps | None


def analyse(trace: Trace) -> Analysis:
    """Find links, communication, the window and the steps."""
    links = link(trace)
    communication = communicates(trace)
    whole = activity(trace, links, communication)
    return Analysis(
        trace=trace,
        links=links,
        communication=communication,
        activity=whole,
        steps=steps(trace, links, whole),
    )
