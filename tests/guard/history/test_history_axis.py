"""The axis of a series: dates where they tell results apart, else commits in their order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from history_rows import revision_of, rows

from ratchet.base.show.figures import Scale, time_ticks
from ratchet.guard.history import gather
from ratchet.guard.history.plot import ResultsAxis, axis_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def axis(times: list[str]) -> ResultsAxis:
    given = [
        replace(one, committed_at=time)
        for one, time in zip(rows([1.0] * len(times)), times, strict=True)
    ]
    return axis_of(gather(given)[0])


def at(*hours: float) -> list[str]:
    return [(START + timedelta(hours=one)).isoformat(timespec="seconds") for one in hours]


def test_dates_are_drawn_to_scale() -> None:
    found = axis(at(0, 24, 96))
    assert found.title == "date of the commit (UTC), 2026-01-01 to 2026-01-05"
    assert found.places[1] - found.places[0] == 24 * 3600
    assert found.before(1) == pytest.approx(START.timestamp() + 12 * 3600)
    assert (found.before(0), found.before(3)) == (found.width.low, found.width.high)


@pytest.mark.parametrize(
    "times",
    [
        at(*(one / 60 for one in range(20)), 2000),  # one burst, and one result much later
        at(*[0.0] * 5),
        ["", "", ""],
        ["soon", "later"],
        at(0),
        ["0001-01-01T00:00:00-14:00", "9999-12-31T23:59:59+00:00"],
        ["1969-12-31T23:59:59", "2026-01-01"],
    ],
)
def test_else_commits_stand_in_their_order(times: list[str]) -> None:
    found = axis(times)
    assert found.title.startswith("commits in their order")
    assert list(found.places) == list(range(len(times)))
    assert found.ticks[0].label and len(found.ticks) <= 5


def test_commits_are_named_where_one_date_says_nothing() -> None:
    assert axis(at(*[0.0] * 3)).ticks[0].label == revision_of(0)[:8]


@pytest.mark.parametrize("days", [1e-4, 0.01, 0.3, 1, 3, 10, 40, 200, 1000, 9000, 40_000])
def test_moments_on_an_axis_are_round_and_few(days: float) -> None:
    low = START.timestamp() + 12_345
    found = time_ticks(Scale(low=low, high=low + days * 86_400))
    assert len(found) <= 8
    assert len({one.label for one in found}) == len(found)
    places = [one.percent for one in found]
    assert places == sorted(places) and all(0 <= one <= 100 for one in places)
    assert found or days < 0.001
