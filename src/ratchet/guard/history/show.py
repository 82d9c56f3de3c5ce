"""The history of results: incidents that need somebody first, then every series."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from markupsafe import Markup

from ratchet.base.show import model as m
from ratchet.base.show.figures import Plot, PlotPoint, Scale, around, dots, line_path, points_plot
from ratchet.base.show.page import own_script, render_page
from ratchet.base.show.words import ABSENT, show_change, show_value
from ratchet.guard.history import AnalysedSeries, HistorySeries, Shift
from ratchet.guard.history.csv_file import Exported
from ratchet.guard.history.incidents import Incident

MOST_POINTS: Final = 2000  # Limit of one series on the page; a longer one keeps its newest
MOST_ROWS: Final = 30
MOST_KEYS: Final = 6
WAITING: Final = ("open", "acknowledged")
STATES: Final = (*WAITING, "went away", "resolved")
_LEGEND: Final = (
    ("regression", "regression", ""),
    ("improvement", "improvement", ""),
    ("environment", "environment changed", ""),
    ("ink", "level", ""),
    ("best_compile", "result, with its interval", ""),
)

INCIDENTS = (
    m.Column("incident", "id"),
    m.Column("state", "state", lambda state: m.Span(state, f"state-{state.replace(' ', '-')}")),
    m.Column("commit", lambda one: _commit(one)),
    m.number("change", lambda one: shift_words(one.series[0].shift) if one.series else ABSENT),
    m.why("why", lambda one: _worst(one), on="terminal"),
    m.why("series", lambda one: _keys(one), on="page"),
)
SERIES = (
    m.Column("series", lambda one: one.series.key),
    m.number("points", lambda one: str(len(one.series.values))),
    m.number("level now", lambda one: _level(one)),
    m.number("changes", lambda one: str(len(one.shifts))),
    m.why("why", lambda one: _shifts(one)),
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
    names = {(each.key, each.shift.index): one.id for one in incidents for each in one.series}
    return render_page(
        m.ResultReport(
            title="History",
            heading="history",
            headline=f"{len(shown)} series, {sum(one.regressed for one in shown)} regressed",
            sections=(
                m.section("Incidents", table if incidents else "None."),
                m.section(
                    "Series",
                    m.Figure("legend", _LEGEND),
                    m.Figure("small_multiples", [_tile(one, names) for one in shown]),
                ),
            ),
            extras=own_script("ratchet.guard.history", "history.js"),
        )
    )


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
    count: int
    plot: Plot


def _tile(one: AnalysedSeries, names: Mapping[tuple[str, int], str]) -> SeriesTile:
    """Draw a series; `names` has the incident of each of its regressions."""
    series = one.series
    first = max(0, len(series.values) - MOST_POINTS)
    values = series.values[first:].tolist()
    levels = [
        (max(first, start) - 0.5, end - 0.5, level)
        for start, end, level in one.levels()
        if end > first
    ]
    shifts = [shift for shift in one.shifts if shift.index >= first]
    # Spikes would flatten everything else: the folded scale leaves out the most extreme.
    low, high = (float(v) for v in np.quantile(values, (0.04, 0.96)))
    scale = around([low, high, *(level for *_, level in levels)])
    across = Scale(low=first - 0.5, high=len(series.values) - 0.5)
    newest = one.shifts[-1] if one.shifts else None
    return SeriesTile(
        id=_anchor(series.key),
        key=series.key,
        title=f"{series.benchmark} · {series.metric}",
        device=series.device,
        level=show_value(levels[-1][-1], series.unit),
        words="" if newest is None else f"{newest.kind} {shift_words(newest)}",
        tone="regression" if one.regressed else newest.kind if newest else "quiet",
        points=dots(
            (across.percent(at), 100 - scale.percent(value))
            for at, value in enumerate(values, first)
        ),
        path="".join(line_path(((a, y), (b, y)), across, scale) for a, b, y in levels),
        marks=tuple((across.percent(shift.index - 0.5), shift.kind) for shift in shifts),
        count=len(values),
        plot=points_plot(
            [_point(series, at) for at in range(first, len(series.values))],
            levels=levels,
            marks=_marks(one, shifts, first, names),
            x_title="results, the oldest first",
            y_title=series.unit,
            show=lambda value: f"{value:.4g}",
        ),
    )


def _point(series: HistorySeries, at: int) -> PlotPoint:
    value, low, high = (float(ends[at]) for ends in (series.values, series.lows, series.highs))
    known = math.isfinite(low) and math.isfinite(high)
    span = f" [{low:.6g}, {high:.6g}]" if known else ""
    said = (short_revision(series.revisions[at]), series.times[at], series.environments[at])
    return PlotPoint(
        at=at,
        value=value,
        title="\n".join([f"{value:.6g} {series.unit}{span}", *filter(None, said)]),
        low=low if known else None,
        high=high if known else None,
    )


def _marks(
    one: AnalysedSeries, shifts: Sequence[Shift], first: int, names: Mapping[tuple[str, int], str]
) -> Iterator[tuple[float, str, str]]:
    """Yield where the level or the environment changed: place, look, and what a reader hovers."""
    for shift in shifts:
        incident = names.get((one.series.key, shift.index), "")
        said = f"{shift.kind} {shift_words(shift)}"
        yield shift.index - 0.5, shift.kind, said + (f", incident {incident}" if incident else "")
    known = {shift.index for shift in shifts}
    for at in one.new_environments:
        if at >= first and at not in known:
            yield at - 0.5, "", "new environment, same level"


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
    link = Markup('<a href="#{}">{}</a> {}<br>')
    shown = [
        link.format(_anchor(each.key), each.key, shift_words(each.shift)) for each in one.series
    ]
    more = len(shown) - MOST_KEYS
    return m.Span(Markup("").join(shown[:MOST_KEYS]) + (f"and {more} more" if more > 0 else ""))


def _level(one: AnalysedSeries) -> str:
    levels = [level for _, _, level in one.levels()]
    return show_value(levels[-1] if levels else None, one.series.unit)


def _shifts(one: AnalysedSeries) -> str:
    series = one.series
    said = []
    for shift in one.shifts[-2:]:
        at = short_revision(series.revisions[shift.index] or series.times[shift.index])
        said.append(f"{shift.kind} {shift_words(shift)} at {at}")
    if series.left_out:
        said.append(f"{series.left_out} values are no finite number")
    return "; ".join(said)


def shift_words(shift: Shift) -> str:
    """Format a change: +2.1%, or both levels where one is not above 0 and a share says nothing."""
    if shift.before > 0 and shift.after > 0:
        return show_change(shift.change)
    return f"{shift.before:.4g} to {shift.after:.4g}"


def left_out_words(found: Exported) -> str:
    """Say what an export could not hold, and why; empty if it holds all."""
    if not found.why:
        return ""
    every = found.series + found.left_out_series
    return (
        f"; left out: {found.left_out_results} results, and {found.left_out_series} of {every} "
        f"series altogether, since {found.why} (--format csv holds all)"
    )


def short_revision(revision: str) -> str:
    """Return the first digits of a commit's hash; other names stay whole."""
    hash, plus, rest = revision.partition("+")
    digits = len(hash) == 40 and all(one in "0123456789abcdef" for one in hash)
    return (hash[:10] if digits else hash) + plus + rest


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
