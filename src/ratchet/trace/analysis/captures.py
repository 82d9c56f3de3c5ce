"""Kernels of a CUDA or HIP graph's replay, and the calls that captured them.

A replay is one call, so its kernels have no op. The capture launched the same kernels in the same
order, with the ops around each launch.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from ratchet.trace.analysis.intervals import groups
from ratchet.trace.analysis.links import Links
from ratchet.trace.read.columns import DEVICE_KINDS, Int64, Kind, Trace

_BEGIN = re.compile(r"StreamBeginCapture")
_END = re.compile(r"StreamEndCapture")
_REPLAY = re.compile(r"GraphLaunch")
_LAUNCH = re.compile(r"Launch\w*Kernel|LaunchCooperative|Memcpy|Memset|Memory\w*Async")
_Names = tuple[str, ...]  # Empty names are not known


def captures(trace: Trace) -> list[Int64]:
    """Return the captured calls of each graph, in order: rows of the trace."""
    calls = trace.rows(Kind.RUNTIME)
    text = trace.text[calls]
    begin, end = (calls[trace.named(name)[text]] for name in (_BEGIN, _END))
    launches = calls[trace.named(_LAUNCH)[text] & ~trace.named(_REPLAY)[text]]
    found = []
    for first in begin.tolist():
        lane = trace.lane[first]
        last = end[(end > first) & (trace.lane[end] == lane)]
        if last.size:
            own = launches[(launches > first) & (launches < last[0])]
            found.append(own[trace.lane[own] == lane].astype(np.int64))
    return found


def replays(trace: Trace, links: Links) -> list[Int64]:
    """Return the device work of each replay of a graph, in order: rows of the trace."""
    rows = trace.rows(*DEVICE_KINDS)
    launch = links.launch[rows]
    again = (launch >= 0) & trace.named(_REPLAY)[trace.text[np.maximum(launch, 0)]]
    rows, launch = rows[again].astype(np.int64), launch[again]
    return [rows[own] for own in groups(launch)]


def joined(trace: Trace, links: Links, capture: Trace) -> Int64:
    """Return for each row of the trace the call in `capture` that captured it; -1 for none.

    A replay and a capture fit if they have as many pieces of work, and no name differs; or if the
    capture ends with a few calls more, and all names are known. Several that fit are taken in turn,
    as a model's layers are captured and replayed.
    """
    source = np.full(len(trace), -1, dtype=np.int64)
    made = captures(capture)
    if not made:
        return source
    named = np.full(len(capture), -1, dtype=np.int64)
    named[capture.launches.row] = capture.launches.name
    names = [
        tuple(capture.strings[n] if n >= 0 else "" for n in named[own].tolist()) for own in made
    ]
    fitting: dict[_Names, list[int]] = {}
    turns: Counter[_Names] = Counter()
    for rows in replays(trace, links):
        ran = tuple(trace.string(r) if trace.kind[r] == Kind.KERNEL else "" for r in rows.tolist())
        if ran not in fitting:
            numbers = range(len(names))
            fitting[ran] = [n for n in numbers if _fit(names[n], ran)] or [
                n for n in numbers if _begins_with(names[n], ran)
            ]
        if fitting[ran]:
            source[rows] = made[fitting[ran][turns[ran] % len(fitting[ran])]][: rows.size]
            turns[ran] += 1
    return source


_MORE = 0.01
"""Share of its calls that a capture may have after the replayed ones."""


def _begins_with(captured: _Names, ran: _Names) -> bool:
    most = len(ran) + int(_MORE * len(ran))
    return len(ran) < len(captured) <= most and captured[: len(ran)] == ran


def _fit(captured: _Names, ran: _Names) -> bool:
    return len(captured) == len(ran) and all(
        one == other or not (one and other) for one, other in zip(captured, ran, strict=True)
    )
