"""All answers of one trace: `report(trace)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.base import drawn_by
from ratchet.trace.analysis import Identity, analyse, by_device
from ratchet.trace.analysis.links import Links, link
from ratchet.trace.answers.ceilings import Rooflines
from ratchet.trace.answers.collectives import Bubble, CollectiveRow, bubble, collectives
from ratchet.trace.answers.counters import CounterRow, KernelRun, counters, unlinked
from ratchet.trace.answers.critical_path import CriticalPath, critical_path
from ratchet.trace.answers.idle import Idle, LaunchCost, idle, launches
from ratchet.trace.answers.kernels import (
    AnnotationRow,
    KernelRow,
    ModuleRow,
    OpRow,
    kernels,
    marks,
    module_calls,
    modules,
    ops,
)
from ratchet.trace.answers.memory import MemoryUse, memory
from ratchet.trace.answers.owners import Capture, CategoryRow, Owned, categories
from ratchet.trace.answers.precision import PrecisionRow, matmuls
from ratchet.trace.answers.queues import CopyRow, QueueRow, StreamRow, copies, queues, streams
from ratchet.trace.answers.roofline import RooflineRow, roofline
from ratchet.trace.answers.sequences import SequenceRow, sequences
from ratchet.trace.answers.sources import Compiled, Recompute, compiled, recompute
from ratchet.trace.answers.timeline import LANES, BandwidthRow, Timeline, bandwidth, timeline
from ratchet.trace.read.columns import Platform, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedIn:
    """Device work from before the recording, which the window leaves out."""

    count: int
    time: int  # Summed, in ns
    kernels: dict[str, int]  # Summed time by name, in ns, the longest first


def carried_in(trace: Trace, links: Links) -> CarriedIn:
    """Sum the device work of the time before the recording."""
    rows = np.flatnonzero(links.carried_in)
    time: Counter[str] = Counter()
    for row, duration in zip(rows.tolist(), trace.duration[rows].tolist(), strict=True):
        time[trace.string(row)] += duration
    return CarriedIn(count=rows.size, time=time.total(), kernels=dict(time.most_common()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One rank's answers. Times in ns, sizes in bytes."""

    name: str
    platform: Platform
    on_device: bool  # True if device work was recorded. If not, all times are CPU times.
    device: str
    rank: int | None
    epoch: int  # The time at which the trace's clock read 0, in ns; 0 if unknown
    events: int
    window_is: str
    steps_are: str
    identity: Identity
    steps: tuple[Identity, ...]
    by_device: tuple[Identity, ...]
    """Empty for one device. If a process used several, `identity` is of their union."""
    carried_in: CarriedIn
    kernels: tuple[KernelRow, ...]
    ops: tuple[OpRow, ...]
    categories: tuple[CategoryRow, ...]
    modules: tuple[ModuleRow, ...]
    annotations: tuple[AnnotationRow, ...]
    collectives: tuple[CollectiveRow, ...]
    copies: tuple[CopyRow, ...]
    streams: tuple[StreamRow, ...]
    queues: tuple[QueueRow, ...]  # Only streams with launches, those with most first
    bandwidth: tuple[BandwidthRow, ...]
    sequences: tuple[SequenceRow, ...]
    critical_path: CriticalPath
    counters: tuple[CounterRow, ...]  # Empty unless the recording took performance counters
    idle: Idle
    launches: LaunchCost
    memory: MemoryUse | None
    recompute: Recompute
    compiled: Compiled | None
    bubble: Bubble | None
    matmuls: tuple[PrecisionRow, ...]
    roofline: tuple[RooflineRow, ...]
    timeline: Timeline
    faults: tuple[str, ...]

    _repr_html_ = drawn_by("ratchet.trace.show:trace_report")


def report(
    trace: Trace,
    ceilings: Rooflines | None = None,
    counted: Sequence[KernelRun] = (),
    capture: Trace | None = None,
) -> Report:
    """Compute all answers of one trace.

    `ceilings` are by default those that are published of the trace's device. `counted` is what
    `counter_files.kernel_runs` found in the trace's file. `capture` is the trace in which the
    graphs that this one replays were captured, if it is another.
    """
    found = analyse(trace)
    links, whole, marked = found.links, found.activity, found.steps
    communication = found.communication
    captured = None if capture is None else Capture(capture, link(capture))
    owned = Owned(trace, links, communication, captured)
    calls = module_calls(trace, links)
    sent = collectives(trace, links, communication, whole)
    return Report(
        name=trace.name,
        platform=trace.platform,
        on_device=trace.on_device,
        device=trace.device_name,
        rank=trace.rank,
        epoch=trace.epoch,
        events=len(trace),
        window_is=whole.window_is,
        steps_are=marked.how if marked else "",
        identity=whole.whole(),
        steps=whole.windows(marked.labels, marked.start, marked.end) if marked else (),
        by_device=by_device(trace, links, communication),
        carried_in=carried_in(trace, links),
        kernels=owned.captured(kernels(trace, links, communication)),
        ops=ops(trace, links),
        categories=categories(owned, marked, calls),
        modules=modules(trace, links, calls),
        annotations=marks(trace, links),
        collectives=sent,
        copies=copies(trace, links),
        streams=streams(trace, links, whole),
        queues=queues(trace, links, whole)[:LANES],
        bandwidth=bandwidth(trace, links, whole),
        sequences=sequences(trace, links, communication),
        critical_path=critical_path(trace, links, communication, whole, marked),
        counters=counters(trace, links, counted),
        idle=idle(trace, links, whole),
        launches=launches(trace, links),
        memory=memory(trace, links),
        recompute=recompute(trace, links),
        compiled=compiled(trace),
        bubble=bubble(whole, sent),
        matmuls=matmuls(trace, links),
        roofline=roofline(owned, ceilings),
        timeline=timeline(trace, links, communication, whole),
        faults=tuple(filter(None, (*trace.faults, unlinked(trace, counted)))),
    )
