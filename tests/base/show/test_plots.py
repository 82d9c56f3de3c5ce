"""Plots of results over commits."""

from __future__ import annotations

import math

from ratchet.base.show import model as m
from ratchet.base.show.figures import PlotPoint, points_plot
from ratchet.base.show.page import render_page

POINTS = [
    PlotPoint(at=float(at), value=1.0 + at / 10, title=f"commit {at}", low=0.9, high=2.0)
    for at in range(5)
]


def test_points_carry_titles_intervals_levels_and_marks() -> None:
    plot = points_plot(
        [*POINTS, PlotPoint(at=5.0, value=math.nan)],
        levels=[(-0.5, 2.5, 1.1), (2.5, 5.5, 1.4)],
        marks=[(2.5, "regression", "slower <b>")],
        x_title="results",
        y_title="time, s",
        show=lambda value: f"{value:.1f}",
    )
    intervals, levels, points = plot.series
    assert [title for _, title in points.titled] == [f"commit {at}" for at in range(5)]
    assert intervals.path.count("M") == 5 and levels.path.count("M") == 2
    assert [tick.label for tick in plot.x_ticks] == ["0", "1", "2", "3", "4", "5"]
    assert plot.marks[0].left == 50.0
    page = render_page(m.ResultReport(sections=(m.Figure("plot", plot, "history", "points"),)))
    assert page.count("<title>commit") == 5
    assert 'class="divider regression" style="left:50.0%" title="slower &lt;b&gt;"' in page
