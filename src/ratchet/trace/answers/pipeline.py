"""Pipeline parallelism: the time during which a stage has nothing to compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratchet.trace.analysis.identity import Activity
from ratchet.trace.analysis.intervals import union
from ratchet.trace.answers.collectives import CollectiveRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Bubble:
    """A stage's bubble in the window, in ns."""

    waiting: int
    """Time in sends or receives that no compute hides."""
    idle: int
    """Time with nothing on the device."""
    share: float
    """Share of the window that both take."""


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
