"""A trace with its links, its window and its steps: `analyse(trace)`."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.trace.analysis.communication import communicates
from ratchet.trace.analysis.identity import Activity, Steps, activity, steps
from ratchet.trace.analysis.links import Links, link
from ratchet.trace.read.columns import Bool, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """A trace with what every answer builds on."""

    trace: Trace
    links: Links
    communication: Bool
    """True for events that communicate."""
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
