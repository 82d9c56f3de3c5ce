"""Everything that one trace answers: `report(trace)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.trace.bandwidth import BandwidthRow, bandwidth
from ratchet.trace.collectives import CollectiveRow, collectives
from ratchet.trace.columns import Bool, Trace
from ratchet.trace.communication import communicates
from ratchet.trace.compiled import Compiled, Recompute, compiled, recompute
from ratchet.trace.counter_files import KernelRun
from ratchet.trace.counters import CounterRow, counters, unlinked
from ratchet.trace.critical_path import CriticalPath, critical_path
from ratchet.trace.documents import document as document
from ratchet.trace.identity import Activity, Identity, Steps, activity, by_device, steps
from ratchet.trace.idle import Idle, Launches, idle, launches
from ratchet.trace.kernels import KernelRow, ModuleRow, OpRow, kernels, modules, ops
from ratchet.trace.links import Links, link
from ratchet.trace.marks import AnnotationRow, marks
from ratchet.trace.matmuls import PrecisionRow, matmuls
from ratchet.trace.memory import Memory, memory
from ratchet.trace.pipeline import Bubble, bubble
from ratchet.trace.queues import QueueRow, queues
from ratchet.trace.roofline import Ceilings, RooflineRow, roofline
from ratchet.trace.sequences import SequenceRow, sequences
from ratchet.trace.streams import CopyRow, StreamRow, copies, streams
from ratchet.trace.timeline import LANES, Timeline, timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedIn:
    """Device work of before the recording, which the window leaves out."""

    count: int
    time: int
    """Summed, in ns."""
    kernels: dict[str, int]
    """Summed time by name, in ns, the longest first."""


def carried_in(trace: Trace, links: Links) -> CarriedIn:
    """What the device still did of the time before the recording."""
    rows = np.flatnonzero(links.carried_in)
    time: Counter[str] = Counter()
    for row, duration in zip(rows.tolist(), trace.duration[rows].tolist(), strict=True):
        time[trace.string(row)] += duration
    return CarriedIn(count=rows.size, time=time.total(), kernels=dict(time.most_common()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One rank's answers. Times in ns, sizes in bytes."""

    name: str
    platform: str
    on_device: bool
    """Whether device work was recorded; without any, every time is a CPU's."""
    device: str
    rank: int | None
    epoch: int
    """When the trace's clock read 0, in ns, where it says so; else 0."""
    events: int
    window_is: str
    steps_are: str
    identity: Identity
    steps: tuple[Identity, ...]
    by_device: tuple[Identity, ...]
    """Where one process used several devices; `identity` is of their union."""
    carried_in: CarriedIn
    kernels: tuple[KernelRow, ...]
    ops: tuple[OpRow, ...]
    modules: tuple[ModuleRow, ...]
    annotations: tuple[AnnotationRow, ...]
    collectives: tuple[CollectiveRow, ...]
    copies: tuple[CopyRow, ...]
    streams: tuple[StreamRow, ...]
    queues: tuple[QueueRow, ...]
    """Streams with launches, those with most first."""
    bandwidth: tuple[BandwidthRow, ...]
    sequences: tuple[SequenceRow, ...]
    critical_path: CriticalPath
    counters: tuple[CounterRow, ...]
    """Where the recording took performance counters."""
    idle: Idle
    launches: Launches
    memory: Memory | None
    recompute: Recompute
    compiled: Compiled | None
    bubble: Bubble | None
    matmuls: tuple[PrecisionRow, ...]
    roofline: tuple[RooflineRow, ...]
    timeline: Timeline
    faults: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """A trace with what every answer builds on."""

    trace: Trace
    links: Links
    communication: Bool
    """For each event, whether it communicates."""
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


def report(
    trace: Trace, ceilings: Ceilings | None = None, counted: Sequence[KernelRun] = ()
) -> Report:
    """All answers of one trace.

    `ceilings` are the device's measured ones, else the catalogue's; `counted` is what
    `counter_files.kernel_runs` found in the trace's file.
    """
    found = analyse(trace)
    links, whole, marked = found.links, found.activity, found.steps
    communication = found.communication
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
        kernels=kernels(trace, links, communication),
        ops=ops(trace, links),
        modules=modules(trace, links),
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
        compiled=compiled(trace, links),
        bubble=bubble(whole, sent),
        matmuls=matmuls(trace, links),
        roofline=roofline(trace, links, ceilings),
        timeline=timeline(trace, links, communication, whole),
        faults=tuple(filter(None, (*map(str, trace.faults), unlinked(trace, counted)))),
    )
