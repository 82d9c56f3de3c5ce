"""Idle time of the device by cause, and the cost of launches."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ratchet.trace.analysis import Activity
from ratchet.trace.analysis.intervals import Spans, union
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import SMALL_KERNEL_NS, device_rows
from ratchet.trace.read.columns import Bool, Kind, Trace

LOADING = re.compile(r"DataLoader|_next_data|dataloader\.py\(\d+\): __next__", re.IGNORECASE)
SYNCHRONISE = re.compile(
    r"^(cuda|hip)\w*Synchronize|^(cu|hip)\w*Synchronize|^(cuda|hip)Memcpy(WithStream)?$|"
    r"^(cuda|hip)(Malloc|Free)$|aten::_local_scalar_dense|aten::item"
)
KERNEL_GAP_NS = 10_000
"""A shorter gap between two pieces of queued work is the device's own turn-around."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """Idle time by cause, in ns; the first four sum exactly to the identity's idle."""

    data_loading: int = 0  # The CPU was in a data loader
    synchronisation: int = 0  # The CPU waited for the device and then had nothing queued
    host_bound: int  # The next work was launched after the gap began: the CPU was late
    kernel_gap: int = 0  # The next work was already queued, or no launch is known
    turn_around: int = 0
    """The kernel gaps, with at most 10 µs of each: a longer gap has another cause."""
    gaps: int
    longest: int
    waited_in: str = ""  # The call that holds the most of `synchronisation`


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchCost:
    """The cost of starting device work; times in ns."""

    count: int
    cpu: int  # Summed time of the runtime calls that started device work
    delay_median: int  # Median time from the call's start to the work's
    delay_90: int
    small: int  # Pieces of device work shorter than `small_below`
    small_time: int
    small_below: int
    outrun: int  # Pieces of device work that were shorter than the call that started them


def idle(trace: Trace, links: Links, activity: Activity) -> Idle:
    """Split the window's idle time: each piece of a gap has the first cause that applies.

    First data loading; then host-bound, from the start of the gap to the launch of the work that
    ends it (or synchronisation, while the CPU was in a synchronising call); then kernel gap.
    """
    gaps = activity.busy.gaps(activity.start, activity.end)
    longest = int((gaps.end - gaps.start).max(initial=0))
    if not trace.on_device or not gaps.start.size:
        return Idle(host_bound=gaps.length, gaps=gaps.start.size, longest=longest)
    end = trace.end

    def spans(wanted: Bool, *kinds: Kind) -> Spans:
        rows = np.flatnonzero(wanted[trace.text] & np.isin(trace.kind, kinds))
        return union(trace.start[rows], end[rows])

    in_loader = gaps & spans(trace.named(LOADING), Kind.ANNOTATION, Kind.PYTHON, Kind.OP)
    waits_in = trace.named(SYNCHRONISE)
    waited = spans(waits_in, Kind.RUNTIME, Kind.OP)
    late = _late(trace, links, gaps) - in_loader
    queued = gaps - in_loader - late
    synchronised = late & waited
    data, waits = in_loader.length, synchronised.length
    host = late.length - waits
    texts = np.arange(waits_in.size)
    by_call = {
        trace.strings[text]: (synchronised & spans(texts == text, Kind.RUNTIME, Kind.OP)).length
        for text in np.flatnonzero(waits_in).tolist()
    }
    return Idle(
        data_loading=data,
        synchronisation=waits,
        host_bound=host,
        kernel_gap=gaps.length - data - waits - host,
        turn_around=int(np.minimum(queued.end - queued.start, KERNEL_GAP_NS).sum()),
        gaps=gaps.start.size,
        longest=longest,
        waited_in=max(by_call, key=by_call.__getitem__) if waits else "",
    )


def _late(trace: Trace, links: Links, gaps: Spans) -> Spans:
    """Return each gap's time before the launch of the work that ends it."""
    rows = device_rows(trace, links)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    following = np.searchsorted(trace.start[rows], gaps.end)
    next_row = rows[np.minimum(following, rows.size - 1)]
    launch = links.launch[next_row]
    called = np.where(launch >= 0, trace.end[np.maximum(launch, 0)], gaps.start)
    stop = np.clip(called, gaps.start, gaps.end)
    return union(gaps.start, stop)


def launches(trace: Trace, links: Links) -> LaunchCost:
    rows = device_rows(trace, links)
    known = rows[links.launch[rows] >= 0]
    calls = links.launch[known]
    delay = np.maximum(trace.start[known] - trace.start[calls], 0)
    small = trace.duration[rows] < SMALL_KERNEL_NS
    return LaunchCost(
        count=known.size,
        cpu=int(trace.duration[np.unique(calls)].sum()),
        delay_median=int(np.median(delay)) if known.size else 0,
        delay_90=int(np.quantile(delay, 0.9)) if known.size else 0,
        small=int(small.sum()),
        small_time=int(trace.duration[rows][small].sum()),
        small_below=SMALL_KERNEL_NS,
        outrun=int((trace.duration[known] < trace.duration[calls]).sum()),
    )
