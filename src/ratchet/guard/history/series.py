"""Series of results over commits, one for each benchmark, metric and machine."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass

import numpy as np

from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import Better, Observation
from ratchet.base.measure import FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class HistorySeries:
    """One metric of one benchmark on one machine, by the time of its commits."""

    benchmark: str
    metric: str
    unit: str
    better: Better
    device: str
    values: FloatArray
    lows: FloatArray
    """NaN where no interval is known."""
    highs: FloatArray
    revisions: tuple[str, ...]
    times: tuple[str, ...]
    environments: tuple[str, ...]
    left_out: int
    """Values that are no finite number."""

    @property
    def key(self) -> str:
        """Return what names the series in a ledger."""
        return key_of(self)


def key_of(one: Observation | HistorySeries) -> str:
    """Return what names the series of a figure in a ledger."""
    return f"{one.benchmark} | {one.metric} | {one.device}"


def gather(observations: Iterable[Observation]) -> list[HistorySeries]:
    """Group observations, which are in the order of their commits, into series by name.

    Raises:
        HistoryError: a series changes its unit or direction.
    """
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for one in observations:
        groups.setdefault((one.benchmark, one.metric, one.device), []).append(one)
    return [_series(rows) for _, rows in sorted(groups.items())]


def compiled(only: str) -> re.Pattern[str]:
    """Return a user's regular expression; HistoryError if it is none."""
    try:
        return re.compile(only)
    except re.error as error:
        raise HistoryError(f"--only {only!r} is no regular expression: {error}") from error


def check_matched(only: str, matched: Sized, every: Sequence[str]) -> None:
    """Raise a HistoryError if a regular expression matches none of the series that there are."""
    if every and not matched:
        raise HistoryError(
            f"--only {only!r} matches none of {len(every)} series; the first is {every[0]!r}"
        )


def _series(rows: Sequence[Observation]) -> HistorySeries:
    last = rows[-1]
    for row in rows:
        if (row.unit, row.better) != (last.unit, last.better):
            raise HistoryError(
                f"{row.benchmark!r} {row.metric} is in {row.unit or 'no unit'} ({row.better} is "
                f"better) and in {last.unit or 'no unit'} ({last.better}): give one metric one unit"
            )
    kept = [row for row in rows if math.isfinite(row.value)]
    return HistorySeries(
        benchmark=last.benchmark,
        metric=last.metric,
        unit=last.unit,
        better=last.better,
        device=last.device,
        values=_array([row.value for row in kept]),
        lows=_array([row.low for row in kept]),
        highs=_array([row.high for row in kept]),
        revisions=tuple(row.revision for row in kept),
        times=tuple(row.committed_at for row in kept),
        environments=tuple(row.software for row in kept),
        left_out=len(rows) - len(kept),
    )


def _array(values: Sequence[float | None]) -> FloatArray:
    return np.asarray([math.nan if one is None else one for one in values], dtype=np.float64)
