"""Plots of results over commits or time, and the ticks of a time axis."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.base.show import model as m
from ratchet.base.show.figures import PlotPoint, Scale, points_plot, time_ticks
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


@pytest.mark.parametrize(
    ("begun", "ended", "labels"),
    [
        ("2026-01-31", "2026-02-03", ["2026-01-31", "2026-02-01", "2026-02-02", "2026-02-03"]),
        ("2026-01-31T10:00", "2026-01-31T10:03", ["10:00", "10:01", "10:02", "10:03"]),
        ("2025-11-15", "2026-03-15", ["2025-12", "2026-01", "2026-02", "2026-03"]),
        ("2024-06-01", "2028-02-01", ["2025", "2026", "2027", "2028"]),
    ],
)
def test_moments_of_a_time_axis_are_round(begun: str, ended: str, labels: list[str]) -> None:
    low, high = (
        datetime.fromisoformat(one).replace(tzinfo=UTC).timestamp() for one in (begun, ended)
    )
    found = time_ticks(Scale(low=low, high=high))
    assert [one.label for one in found] == labels


@given(st.floats(0, 2e9), st.floats(120, 1e9))
def test_a_time_axis_is_never_crowded(low: float, length: float) -> None:
    found = time_ticks(Scale(low=low, high=low + length))
    assert len(found) <= 6
    assert all(0 <= one.percent <= 100 for one in found)
