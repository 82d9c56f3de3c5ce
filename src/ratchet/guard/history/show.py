"""The history of results: incidents that need somebody first, then every series.

On the page a click on a series opens it in one large plot with zoom and hover. Bokeh's JavaScript
comes out of its wheel, so the file opens offline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ratchet.base.errors import HistoryError
from ratchet.base.show import model as m
from ratchet.base.show.figures import Scale, around
from ratchet.base.show.page import render_page
from ratchet.base.show.words import ABSENT, show_change, show_value
from ratchet.guard.history.csv_file import Exported
from ratchet.guard.history.incidents import Incident
from ratchet.guard.history.series import AnalysedSeries, Shift

MOST_POINTS: Final = 2000
"""Limit of one series on the page; a longer one keeps its newest."""
MOST_ROWS: Final = 30
MOST_KEYS: Final = 6
WAITING: Final = ("open", "acknowledged")
STATES: Final = (*WAITING, "went away", "resolved")
POLICY: Final = "script-src 'unsafe-inline' 'unsafe-eval'"
"""Bokeh compiles functions. Nothing is loaded all the same."""
_WIDTH, _HEIGHT = 240, 56
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
    m.number(
        "change", lambda one: show_change(one.series[0].shift.change) if one.series else ABSENT
    ),
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
    """Return the page as HTML.

    Raises:
        HistoryError: bokeh is not installed.
    """
    head, plot = _bokeh()
    shown = [one for one in analysed if len(one.series.values)]
    shown.sort(key=urgency)
    ordered = sorted(incidents, key=lambda one: (STATES.index(one.state), -one.worst))
    table = m.ResultTable(
        INCIDENTS, ordered, marked=lambda one: "" if one.state in WAITING else "soft"
    )
    detail = Markup('<div id="detail"><h3 id="detail-title"></h3>{}</div>').format(Markup(plot))
    return render_page(
        m.ResultReport(
            title="History",
            heading="history",
            headline=f"{len(shown)} series, {sum(one.regressed for one in shown)} regressed",
            sections=(
                m.section("Incidents", table if incidents else "None."),
                m.section(
                    "Series",
                    m.Figure("raw", detail),
                    m.Figure("legend", _LEGEND),
                    m.Figure("small_multiples", [_tile(one) for one in shown]),
                ),
            ),
            extras={"policy": POLICY, "head": Markup(head), "tail": _script(shown)},
        )
    )


def _script(shown: Sequence[AnalysedSeries]) -> Markup:
    """Return the figures of every series, and the script that draws one."""
    data = json.dumps({one.series.key: _columns(one) for one in shown}, separators=(",", ":"))
    code = resources.files("ratchet.guard.history").joinpath("history.js").read_text("utf-8")
    # In a script element only "<" could end the data.
    return Markup(
        '<script type="application/json" id="data">{}</script>\n<script>\n{}</script>'
    ).format(Markup(data.replace("<", "\\u003c")), Markup(code))


def _bokeh() -> tuple[str, str]:
    """Return the scripts, and the markup of an empty plot whose data the page sets."""
    try:
        from bokeh.embed import components
        from bokeh.models import ColumnDataSource, CustomJSTickFormatter, HoverTool
        from bokeh.plotting import figure
        from bokeh.resources import Resources
    except ModuleNotFoundError as error:
        raise HistoryError(
            "the history page needs bokeh: pip install 'torch-ratchet[guard]'"
        ) from error
    names = {
        "points": ("x", "y", "low", "high", "commit", "time", "environment"),
        "levels": ("x0", "x1", "y"),
        "changes": ("x", "kind", "change", "color"),
    }
    sources = {n: ColumnDataSource({c: [] for c in cs}, name=n) for n, cs in names.items()}
    plot = figure(
        height=360,
        sizing_mode="stretch_width",
        tools="xpan,xwheel_zoom,box_zoom,reset,save",
        active_scroll="xwheel_zoom",
        name="history",
        x_axis_label="results, the oldest first",
    )
    plot.segment("x", "low", "x", "high", source=sources["points"], color="#9bb3d1", line_width=2)
    dots = plot.scatter("x", "y", source=sources["points"], size=5, color="#2f5d9b")
    plot.segment("x0", "y", "x1", "y", source=sources["levels"], color="#222222", line_width=2)
    lines = plot.vspan(x="x", source=sources["changes"], line_color="color", line_width=2)
    plot.yaxis.formatter = CustomJSTickFormatter(code="return tick.toPrecision(4)")
    said = [(name, f"@{name}") for name in ("commit", "time", "environment")]
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("value", "@y{0.000000}"), *said]))
    plot.add_tools(HoverTool(renderers=[lines], tooltips=[("@kind", "@change")]))
    script, place = components(plot)
    return Resources(mode="inline", components=["bokeh"]).render(), place + script


def _columns(one: AnalysedSeries) -> dict[str, object]:
    series = one.series
    first = max(0, len(series.values) - MOST_POINTS)
    tones = {"regression": "#c0392b", "improvement": "#2e8b57", "environment": "#8e7cc3"}
    changes = [shift for shift in one.shifts if shift.index >= first]
    known = {shift.index for shift in one.shifts}
    quiet = [at for at in one.new_environments if at >= first and at not in known]
    return {
        "unit": series.unit,
        "points": {
            "x": list(range(first, len(series.values))),
            "y": series.values[first:].tolist(),
            "low": _ends(series.lows, series.values, first),
            "high": _ends(series.highs, series.values, first),
            "commit": [short_revision(one) for one in series.revisions[first:]],
            "time": list(series.times[first:]),
            "environment": list(series.environments[first:]),
        },
        "levels": {
            "x0": [max(first, start) - 0.5 for start, end, _ in one.levels() if end > first],
            "x1": [end - 0.5 for _, end, _ in one.levels() if end > first],
            "y": [level for _, end, level in one.levels() if end > first],
        },
        "changes": {
            "x": [shift.index - 0.5 for shift in changes] + [at - 0.5 for at in quiet],
            "kind": [shift.kind for shift in changes]
            + ["new environment, same level"] * len(quiet),
            "change": [show_change(shift.change) for shift in changes] + [""] * len(quiet),
            "color": [tones[shift.kind] for shift in changes] + ["#d9d2e9"] * len(quiet),
        },
    }


def _ends(ends: NDArray[np.float64], values: NDArray[np.float64], first: int) -> list[float]:
    found = np.where(np.isfinite(ends), ends, values)[first:]
    return [float(one) for one in found]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesTile:
    """One small multiple."""

    key: str
    title: str
    device: str
    level: str
    words: str
    tone: str
    points: str
    path: str
    marks: tuple[tuple[float, str], ...]
    width: int = _WIDTH
    height: int = _HEIGHT


def _tile(one: AnalysedSeries) -> SeriesTile:
    series = one.series
    values = series.values[-MOST_POINTS:]
    first = len(series.values) - len(values)
    # Spikes would flatten everything else: the scale leaves out the most extreme.
    low, high = (float(v) for v in np.quantile(values, (0.04, 0.96)))
    levels = [level for _, _, level in one.levels()]
    scale = around([low, high, *levels], log=False)
    across = Scale(low=first - 0.5, high=len(series.values) - 0.5)

    def place(x: float, y: float) -> str:
        up = min(max(100 - scale.percent(y), 0.0), 100.0)
        return f"{across.percent(x) * _WIDTH / 100:.1f} {up * _HEIGHT / 100:.1f}"

    dots = " ".join(f"M{place(first + at, float(y))}h0" for at, y in enumerate(values))
    steps = " ".join(
        f"M{place(max(first, start) - 0.5, y)}L{place(end - 0.5, y)}"
        for start, end, y in one.levels()
        if end > first
    )
    newest = one.shifts[-1] if one.shifts else None
    return SeriesTile(
        key=series.key,
        title=f"{series.benchmark} · {series.metric}",
        device=series.device,
        level=show_value(levels[-1], series.unit),
        words="" if newest is None else f"{newest.kind} {show_change(newest.change)}",
        tone="regression" if one.regressed else newest.kind if newest else "quiet",
        points=dots,
        path=steps,
        marks=tuple(
            (across.percent(shift.index - 0.5) * _WIDTH / 100, shift.kind)
            for shift in one.shifts
            if shift.index >= first
        ),
    )


def _commit(one: Incident) -> m.Inline:
    short = short_revision(one.revision)
    said = f"{short} {among_words(one)}".rstrip()
    note = f" {one.committed_at[:10]} {one.note}".rstrip()
    return m.Span(said, full=one.revision if short != one.revision else ""), m.Span(note, "note")


def _worst(one: Incident) -> str:
    more = f" and {len(one.series) - 1} more" if len(one.series) > 1 else ""
    return f"{one.series[0].key}{more}" if one.series else ""


def _keys(one: Incident) -> m.Inline:
    """Return the series of an incident, each a button that shows it."""
    button = Markup('<button class="link" data-key="{0}">{0}</button> {1}<br>')
    shown = [button.format(each.key, show_change(each.shift.change)) for each in one.series]
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
        said.append(f"{shift.kind} {show_change(shift.change)} at {at}")
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
