"""The terminal's tables of `ratchet history`."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.history.analysis import AnalysedSeries
from ratchet.history.incidents import Incident
from ratchet.report.console import heading, make_console, table
from ratchet.report.history_words import (
    among_words,
    short_revision,
    show_change,
    show_value,
    urgency,
)

MOST_ROWS = 30


def print_history(analysed: Sequence[AnalysedSeries], incidents: Sequence[Incident]) -> None:
    """Print the incidents that need somebody, then the series, the changed ones first."""
    console = make_console()
    if not analysed:
        console.print(
            "No results yet: run ratchet bench on some commits, or ratchet history import FILE."
        )
        return
    waiting = [one for one in incidents if one.state in ("open", "acknowledged")]
    heading(console, f"Incidents that need somebody: {len(waiting)}")
    if waiting:
        rows = []
        for one in waiting:
            worst = one.series[0]
            more = f" and {len(one.series) - 1} more" if len(one.series) > 1 else ""
            rows.append(
                (
                    one.id,
                    one.state,
                    f"{short_revision(one.revision)} {among_words(one)}".rstrip(),
                    show_change(worst.shift.change),
                    worst.key + more,
                )
            )
        console.print(table(("incident", "state", "commit", "change", "why"), rows, left=3))
    heading(console, f"Series: {len(analysed)}")
    ordered = sorted(analysed, key=urgency)
    console.print(
        table(
            ("series", "points", "level now", "changes", "why"),
            [_series_row(one) for one in ordered[:MOST_ROWS]],
        )
    )
    if len(ordered) > MOST_ROWS:
        left = len(ordered) - MOST_ROWS
        console.print(f"and {left} more: --only REGEX chooses, --out PAGE.html shows all")


def _series_row(one: AnalysedSeries) -> tuple[str, ...]:
    series = one.series
    level = [level for _, _, level in one.levels()][-1:]
    said = [
        f"{shift.kind} {show_change(shift.change)} at {short_revision(_revision(one, shift.index))}"
        for shift in one.shifts[-2:]
    ]
    if series.left_out:
        said.append(f"{series.left_out} values are no finite number")
    return (
        series.key,
        str(len(series.values)),
        show_value(level[0] if level else None, series.unit),
        str(len(one.shifts)),
        "; ".join(said),
    )


def _revision(one: AnalysedSeries, index: int) -> str:
    return one.series.revisions[index] or one.series.times[index]
