"""The page of `ratchet history`: incidents first, then all series as small multiples.

A click on a tile opens the series in one large plot with zoom and hover. Bokeh's JavaScript comes
out of its wheel, so the file opens offline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from ratchet.base.errors import HistoryError
from ratchet.history.analysis import AnalysedSeries
from ratchet.history.incidents import Incident
from ratchet.report.environment import page_environment
from ratchet.report.history_words import (
    among_words,
    short_revision,
    show_change,
    show_value,
    urgency,
)
from ratchet.report.scale import Scale, around

MOST_POINTS: Final = 2000
"""Of one series on the page; a longer one keeps its newest."""
_WIDTH, _HEIGHT = 240, 56


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesTile:
    """One small multiple."""

    key: str
    title: str
    device: str
    level: str
    words: str
    tone: str
    points: Markup
    path: Markup
    marks: tuple[tuple[float, str], ...]


def render_history_page(analysed: Sequence[AnalysedSeries], incidents: Sequence[Incident]) -> str:
    """Return the page as HTML.

    Raises:
        HistoryError: bokeh is not installed.
    """
    head, body = _bokeh()
    shown = [one for one in analysed if len(one.series.values)]
    shown.sort(key=urgency)
    page = page_environment().get_template("history.html")
    data = {one.series.key: _columns(one) for one in shown}
    return page.render(
        incidents=sorted(incidents, key=lambda one: (_rank(one), -one.worst)),
        tiles=[_tile(one) for one in shown],
        regressed=sum(one.regressed for one in shown),
        width=_WIDTH,
        height=_HEIGHT,
        # In a script element only "<" could end the data.
        data=Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")),
        bokeh_head=Markup(head),
        bokeh_body=Markup(body),
        among_words=among_words,
        short_revision=short_revision,
        show_change=show_change,
    )


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


def _columns(one: AnalysedSeries) -> dict[str, Any]:
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


def _ends(ends: Any, values: Any, first: int) -> list[float]:
    found = np.where(np.isfinite(ends), ends, values)[first:]
    return [float(one) for one in found]


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
        points=Markup(dots),
        path=Markup(steps),
        marks=tuple(
            (across.percent(shift.index - 0.5) * _WIDTH / 100, shift.kind)
            for shift in one.shifts
            if shift.index >= first
        ),
    )


def _rank(one: Incident) -> int:
    return ("open", "acknowledged", "went away", "resolved").index(one.state)
