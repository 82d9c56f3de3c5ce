"""Traces with a part of their events taken out, as if they had never been recorded."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from ratchet.trace.read.columns import Bool, Collectives, Kind, NamedLaunches, Ops, Trace

Part = TypeVar("Part", Ops, Collectives, NamedLaunches)
COLUMNS = (
    "kind", "text", "start", "duration", "lane", "correlation", "external", "stream", "device",
    "size",
)  # fmt: skip


def kept(trace: Trace, keep: Bool) -> Trace:
    """Only the events that `keep` says."""
    place = np.cumsum(keep) - 1
    columns: dict[str, Any] = {name: getattr(trace, name)[keep] for name in COLUMNS}
    return replace(
        trace,
        **columns,
        ops=_kept(trace.ops, keep, place),
        collectives=_kept(trace.collectives, keep, place),
        launches=_kept(trace.launches, keep, place),
    )


def _kept(part: Part, keep: Bool, place: np.ndarray) -> Part:
    own = keep[part.row]
    columns = {field.name: getattr(part, field.name)[own] for field in fields(part)}
    return replace(part, **columns | {"row": place[columns["row"]].astype(np.int32)})


def without(trace: Trace, *kinds: Kind) -> Trace:
    """Everything but the events of these kinds."""
    return kept(trace, ~np.isin(trace.kind, kinds))


def only(trace: Trace, *kinds: Kind) -> Trace:
    """Nothing but the events of these kinds."""
    return kept(trace, np.isin(trace.kind, kinds))
