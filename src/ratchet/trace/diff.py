"""Two traces held against each other; the rows add up to the difference of the windows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ratchet.errors import TraceError
from ratchet.trace.columns import Kind
from ratchet.trace.kernels import device_rows, module_paths, own_cpu_time
from ratchet.trace.report import Analysis

State = Literal["slower", "faster", "same", "new", "gone"]
Key = tuple[str, str]
Work = dict[str, tuple[int, int]]
"""(time in ns, count) by kernel name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffRow:
    """One module and op in both traces; device times in ns."""

    module: str
    op: str
    before: int
    after: int
    count_before: int
    count_after: int
    kernels_before: tuple[str, ...]
    """Kernels of this op that only the first trace ran."""
    kernels_after: tuple[str, ...]
    """Kernels of this op that only the second ran."""

    @property
    def change(self) -> int:
        return self.after - self.before

    @property
    def state(self) -> State:
        if not self.count_before:
            return "new"
        if not self.count_after:
            return "gone"
        return "slower" if self.change > 0 else "faster" if self.change < 0 else "same"


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """What changed from one trace to another; times in ns.

    `window_change` = the rows' changes + `hidden_change` + `idle_change`, exactly.
    """

    name_before: str
    name_after: str
    window_before: int
    window_after: int
    rows: tuple[DiffRow, ...]
    """The largest change first, in either direction."""
    hidden_change: int
    """Change of the time in which pieces of device work ran beside each other, negated."""
    idle_change: int
    parts_change: dict[str, int]
    """Change of each part of the identity."""

    @property
    def window_change(self) -> int:
        return self.window_after - self.window_before

    def __post_init__(self) -> None:
        work = sum(row.change for row in self.rows)
        assert work + self.hidden_change + self.idle_change == self.window_change


def diff(before: Analysis, after: Analysis) -> Diff:
    """Compare device work by module and op, then by kernel; also across vendors.

    TraceError where exactly one of the two recorded device work: they cannot be matched.
    """
    if before.trace.on_device != after.trace.on_device:
        missing = after if before.trace.on_device else before
        raise TraceError(
            f"{missing.trace.name} holds no device work and the other does: compare two traces of "
            "the same sort"
        )
    first, second = _work(before), _work(after)
    rows = [_row(key, first.get(key, {}), second.get(key, {})) for key in {**first, **second}]
    whole = (before.activity.whole(), after.activity.whole())
    idle_change = whole[1].idle - whole[0].idle
    window_change = whole[1].window - whole[0].window
    return Diff(
        name_before=before.trace.name,
        name_after=after.trace.name,
        window_before=whole[0].window,
        window_after=whole[1].window,
        rows=tuple(sorted(rows, key=lambda row: -abs(row.change))),
        hidden_change=window_change - idle_change - sum(row.change for row in rows),
        idle_change=idle_change,
        parts_change={
            name: getattr(whole[1], name) - getattr(whole[0], name)
            for name in ("compute", "exposed_communication", "exposed_copy", "idle")
        },
    )


def _work(side: Analysis) -> dict[Key, Work]:
    """Kernels by (module, op); CPU ops on a CPU-only trace."""
    trace, links = side.trace, side.links
    if trace.on_device:
        rows = device_rows(trace, links)
        op = links.op[rows]
        time = trace.duration[rows]
    else:
        rows = op = trace.rows(Kind.OP)
        time = own_cpu_time(trace, links)[rows]
    module = module_paths(trace, links, np.asarray(op, dtype=np.int64))
    work: dict[Key, Work] = defaultdict(dict)
    for row, own, path, duration in zip(
        rows.tolist(), op.tolist(), module, time.tolist(), strict=True
    ):
        key = (path, trace.string(own) if own >= 0 else "")
        name = trace.string(row)
        if own < 0:
            key = ("", name)
        total, count = work[key].get(name, (0, 0))
        work[key][name] = (total + duration, count + 1)
    return work


def _row(
    key: Key, before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]
) -> DiffRow:
    return DiffRow(
        module=key[0],
        op=key[1],
        before=sum(time for time, _ in before.values()),
        after=sum(time for time, _ in after.values()),
        count_before=sum(count for _, count in before.values()),
        count_after=sum(count for _, count in after.values()),
        kernels_before=tuple(sorted(set(before) - set(after))),
        kernels_after=tuple(sorted(set(after) - set(before))),
    )
