"""The history of results: incidents that need somebody first, then every series."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from ratchet.base.show import model as m
from ratchet.base.show.figures import Plot, around, dots, line_path
from ratchet.base.show.page import own_script, render_page
from ratchet.base.show.words import ABSENT, show_value
from ratchet.guard.history import AnalysedSeries, Shift
from ratchet.guard.history.csv_file import Exported
from ratchet.guard.history.incidents import Incident
from ratchet.guard.history.plot import (
    MOST_POINTS,
    Names,
    axis_of,
    series_plot,
    shift_words,
    short_revision,
)

MOST_ROWS: Final = 30
MOST_KEYS: Final = 6
WAITING: Final = ("open", "acknowledged")
STATES: Final = (*WAITING, "went away", "resolved")
LEGEND: Final = (
    ("regression", "regression", ""),
    ("improvement", "improvement", ""),
    ("environment", "moved with its environment", ""),
    ("divider", "environment changed, same level", ""),
    ("ink", "level", ""),
    ("best_compile", "result, with its interval", ""),
)

INCIDENTS = (
    m.Column("incident", "id"),
    m.Column("state", "state", lambda state: state_cell(state)),
    m.Column("commit", lambda one: _commit(one)),
    m.number("change", lambda one: shift_words(one.series[0].shift) if one.series else ABSENT),
    m.why("why", lambda one: _worst(one), on="terminal"),
    m.why("series", lambda one: _keys(one), on="page"),
)
SERIES = (
    m.Column("series", lambda one: one.series.key),
    m.number("points", lambda one: str(len(one.series.values))),
    m.number("level now", lambda one: show_value(one.level, one.series.unit)),
    m.number("changes", lambda one: str(len(one.shifts))),
    m.why("why", lambda one: shifts_words(one)),
)


def history_report(
    analysed: Sequence[AnalysedSeries], incidents: Sequence[Incident]
) -> m.ResultReport:
    """Describe the incidents that need somebody, then the series, the changed ones first."""
    waiting = [one for one in incidents if one.state in WAITING]
    ordered = sorted(analysed, key=urgency)
    left = f"and {len(ordered) - MOST_ROWS} more: --only REGEX chooses, --out PAGE.html shows all"
    title = f"Incidents that need somebody: {len(waiting)}"
    nothing = "No results yet: run ratchet bench on some commits, or ratchet history import FILE."
    sections = m.blocks(
        m.section(title, m.ResultTable(INCIDENTS, waiting) if waiting else "None."),
        m.section(
            f"Series: {len(analysed)}",
            m.ResultTable(SERIES, ordered[:MOST_ROWS]),
            left if len(ordered) > MOST_ROWS else "",
        ),
    )
    return m.ResultReport(sections=sections) if analysed else m.ResultReport(headline=nothing)


def render_history_page(analysed: Sequence[AnalysedSeries], incidents: Sequence[Incident]) -> str:
    """Return the page as HTML: a click on a series opens its plot."""
    shown = sorted((one for one in analysed if len(one.series.values)), key=urgency)
    ordered = sorted(incidents, key=lambda one: (STATES.index(one.state), -one.worst))
    table = m.ResultTable(
        INCIDENTS, ordered, marked=lambda one: "" if one.state in WAITING else "soft"
    )
    names = names_of(incidents)
    return render_page(
        m.ResultReport(
            title="History",
            heading="history",
            headline=f"{len(shown)} series, {sum(one.regressed for one in shown)} regressed",
            sections=(
                m.section("Incidents", table if incidents else "None."),
                m.section(
                    "Series",
                    m.Figure("legend", LEGEND),
                    m.Figure("small_multiples", [_tile(one, names) for one in shown]),
                ),
            ),
            extras=own_script("ratchet.guard.history", "history.js"),
        )
    )


def names_of(incidents: Sequence[Incident]) -> Names:
    return {(each.key, each.shift.index): one.id for one in incidents for each in one.series}


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesTile:
    """A series on the page: folded as a small multiple, and open as a plot."""

    id: str
    key: str
    title: str
    device: str
    level: str
    words: str
    tone: str
    points: str  # Paths in a box of 100 by 100, as those of the plot
    path: str
    marks: tuple[tuple[float, str], ...]
    plot: Plot


def _tile(one: AnalysedSeries, names: Names) -> SeriesTile:
    """Draw a series; `names` has the incident of each of its regressions."""
    series = one.series
    axis = axis_of(series, max(0, len(series.values) - MOST_POINTS))
    values = series.values[axis.first :].tolist()
    levels = axis.levels(one)
    shifts = [shift for shift in one.shifts if shift.index >= axis.first]
    # Spikes would flatten everything else: the folded scale leaves out the most extreme.
    low, high = (float(v) for v in np.quantile(values, (0.04, 0.96)))
    scale = around([low, high, *(level for *_, level in levels)])
    across = axis.width
    newest = one.shifts[-1] if one.shifts else None
    return SeriesTile(
        id=_anchor(series.key),
        key=series.key,
        title=series.title,
        device=series.device,
        level=show_value(one.level, series.unit),
        words="" if newest is None else f"{newest.kind} {shift_words(newest)}",
        tone=tone_of(one),
        points=dots(
            (across.percent(at), 100 - scale.percent(value))
            for at, value in zip(axis.places, values, strict=True)
        ),
        path="".join(line_path(((a, y), (b, y)), across, scale) for a, b, y in levels),
        marks=tuple((across.percent(axis.before(s.index)), s.kind) for s in shifts),
        plot=series_plot(one, names),
    )


def tone_of(one: AnalysedSeries) -> str:
    """Return what a series is coloured by: `regression` until code mends it, or its last change."""
    return "regression" if one.regressed else one.shifts[-1].kind if one.shifts else "quiet"


def state_cell(state: str) -> m.Span:
    """Return an incident's state in its colour."""
    return m.Span(state, f"state-{state.replace(' ', '-')}")


def _anchor(key: str) -> str:
    return f"series-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _commit(one: Incident) -> m.Inline:
    short = short_revision(one.revision)
    said = f"{short} {among_words(one)}".rstrip()
    note = f" {one.committed_at[:10]} {one.note}".rstrip()
    return m.Span(said, full=one.revision if short != one.revision else ""), m.Span(note, "note")


def _worst(one: Incident) -> str:
    more = f" and {len(one.series) - 1} more" if len(one.series) > 1 else ""
    return f"{one.series[0].key}{more}" if one.series else ""


def _keys(one: Incident) -> m.Inline:
    """Return the series of an incident, each a link that opens it."""
    return series_of_incident(one, lambda key: m.Span(key, href=f"#{_anchor(key)}"))


def series_of_incident(one: Incident, link: Callable[[str], m.Span]) -> m.Inline:
    """Return the series of an incident with their changes; `link` shows the name of one."""
    more = len(one.series) - MOST_KEYS
    found: list[str | m.Span] = []
    for each in one.series[:MOST_KEYS]:
        found += [", " if found else "", link(each.key)]
        found += [f" {shift_words(each.shift)}"]
    return (*found, f" and {more} more") if more > 0 else tuple(found)


def shifts_words(one: AnalysedSeries) -> str:
    series = one.series
    said = []
    for shift in one.shifts[-2:]:
        at = short_revision(series.revisions[shift.index] or series.times[shift.index])
        said.append(f"{shift.kind} {shift_words(shift)} at {at}")
    if series.left_out:
        said.append(f"{series.left_out} values are no finite number")
    return "; ".join(said)


def left_out_words(found: Exported) -> str:
    """Say what an export could not hold, and why; empty if it holds all."""
    if not found.why:
        return ""
    every = found.series + found.left_out_series
    return (
        f"; left out: {found.left_out_results} results, and {found.left_out_series} of {every} "
        f"series altogether, since {found.why} (--format csv holds all)"
    )


def urgency(one: AnalysedSeries) -> tuple[bool, bool, bool, str]:
    """Return what orders series: the regressed, those that code changed, the others that moved."""
    by_code = any(shift.kind != "environment" for shift in one.shifts)
    return (not one.regressed, not by_code, not one.shifts, one.series.key)


def among_words(incident: Incident) -> str:
    """Say how sure the commit is: `or one of 2 next to it` if others fit as well."""
    if not incident.series:
        return ""
    shared = set(incident.series[0].among)
    for one in incident.series[1:]:
        shared &= set(one.among)
    others = len(shared - {incident.revision})
    if not others:
        return ""
    return "or the one next to it" if others == 1 else f"or one of {others} next to it"


def history_document(
    analysed: Sequence[AnalysedSeries], incidents: Sequence[Incident]
) -> dict[str, object]:
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
        "series": [_series_document(one) for one in analysed],
    }


def export_document(found: Exported, path: str) -> dict[str, object]:
    """Return how much an export holds, and what it left out."""
    return {
        "exported": found.results,
        "series": found.series,
        "left_out": {"results": found.left_out_results, "series": found.left_out_series},
        "why": found.why,
        "path": path,
    }


def _series_document(one: AnalysedSeries) -> dict[str, object]:
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


def _shift(shift: Shift) -> dict[str, object]:
    change = shift.change if shift.before else None
    return {**asdict(shift), "change": change}
