"""The JSON document of `ratchet history show`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ratchet.history.analysis import AnalysedSeries, Shift
from ratchet.history.formats.figures import Exported
from ratchet.history.incidents import Incident


def history_document(
    analysed: Sequence[AnalysedSeries], incidents: Sequence[Incident]
) -> dict[str, Any]:
    """Return the series with their changes and levels, and the incidents."""
    return {
        "incidents": [
            {
                **{n: getattr(one, n) for n in ("id", "state", "revision", "committed_at", "note")},
                "series": [
                    {"series": each.key, "among": each.among, "back": each.back}
                    | _shift(each.shift)
                    for each in one.series
                ],
            }
            for one in incidents
        ],
        "series": [_series(one) for one in analysed],
    }


def export_document(found: Exported, path: str) -> dict[str, Any]:
    """Return how much an export holds, and what it left out."""
    return {
        "exported": found.results,
        "series": found.series,
        "left_out": {"results": found.left_out_results, "series": found.left_out_series},
        "why": found.why,
        "path": path,
    }


def _series(one: AnalysedSeries) -> dict[str, Any]:
    series = one.series
    names = ("benchmark", "metric", "unit", "better", "device", "left_out")
    return {
        **{name: getattr(series, name) for name in names},
        "points": len(series.values),
        "regressed": one.regressed,
        "levels": [
            {"start": start, "end": end, "median": level} for start, end, level in one.levels()
        ],
        "changes": [
            _shift(shift)
            | {"revision": series.revisions[shift.index], "time": series.times[shift.index]}
            for shift in one.shifts
        ],
        "new_environments": list(one.new_environments),
    }


def _shift(shift: Shift) -> dict[str, Any]:
    change = shift.change if shift.before else None
    return {**asdict(shift), "change": change}
