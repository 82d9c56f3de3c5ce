"""The part that all formats share: a figure's series, its interval, and what an export left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import Observation

_ROUNDING = 1e-9
"""Rounding of an end by a program that printed fewer digits of it than of the value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """The number of things that an export holds."""

    results: int
    series: int
    left_out_results: int
    left_out_series: int
    """Series that no result of is written."""
    why: str
    """Why something was left out; empty if nothing was."""


def series_of(one: Observation) -> tuple[str, str, str]:
    """Return what names the series of a figure."""
    return one.benchmark, one.metric, one.device


def exported(given: Sequence[Observation], kept: Sequence[Observation], why: str) -> Exported:
    """Count what an export holds of what it was given; `why` is the format's limit."""
    every, held = ({series_of(one) for one in rows} for rows in (given, kept))
    return Exported(
        results=len(kept),
        series=len(held),
        left_out_results=len(given) - len(kept),
        left_out_series=len(every - held),
        why=why if len(given) > len(kept) else "",
    )


def check_interval(value: float, low: float | None, high: float | None, where: str) -> None:
    """Raise a HistoryError if a value lies outside its interval."""
    spare = _ROUNDING * abs(value)
    below, above = (
        low is not None and value < low - spare,
        high is not None and value > high + spare,
    )
    if below or above:
        raise HistoryError(
            f"{where}: the value {value!r} lies outside its interval, low {low!r} to high "
            f"{high!r}: correct the line"
        )
