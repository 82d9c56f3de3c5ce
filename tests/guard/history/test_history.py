"""Series, shifts, incidents and their life."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from history_rows import noisy, revision_of, rows

from ratchet.base.errors import HistoryError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import ObservationBook
from ratchet.guard.history import analyse, analyse_one, gather
from ratchet.guard.history.incidents import Incident, follow, incidents, mark
from ratchet.guard.history.plot import shift_words


@pytest.fixture
def book(tmp_path: Path) -> Iterator[ObservationBook]:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        yield ObservationBook(ledger)


def _found(book: ObservationBook) -> list[Incident]:
    every = gather(book.observations())
    return follow(book, incidents(analyse(every)), [one.key for one in every])


def test_observations_come_back_by_the_time_of_their_commits(book: ObservationBook) -> None:
    written = rows(noisy(0))
    book.record(reversed(written))
    assert book.observations() == written


def test_two_machines_are_two_series() -> None:
    every = gather([*rows(noisy(0), device="a"), *rows(noisy(1) * 2, device="b")])
    assert [one.device for one in every] == ["a", "b"]
    assert all(not one.shifts for one in analyse(every))


def test_values_that_are_no_numbers_are_kept_and_counted(book: ObservationBook) -> None:
    values = noisy(0, factor=1.1)
    values[[3, 70]] = math.nan, math.inf
    book.record(rows(values))
    (series,) = gather(book.observations())
    assert (len(series.values), series.left_out) == (98, 2)
    assert [one.kind for one in analyse_one(series).shifts] == ["regression"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_series_of_few_points_have_no_shift(count: int) -> None:
    found = analyse(gather(rows([1.0] * count)))
    assert [one.shifts for one in found] == [()] * bool(count)


@pytest.mark.parametrize(
    ("metric", "unit", "title"),
    [
        ("step_time_s", "s", "step · step time"),
        ("peak_memory_bytes", "B", "step · peak memory"),
        ("tokens_s", "tokens/s", "step · tokens s"),
        ("value", "s", "step"),
        ("_s", "s", "step · _s"),
    ],
)
def test_a_series_has_a_title_without_the_unit_of_its_values(
    metric: str, unit: str, title: str
) -> None:
    (series,) = gather(rows([1.0], metric=metric, unit=unit))
    assert series.title == title


def test_a_metric_with_two_units_is_refused() -> None:
    with pytest.raises(HistoryError, match="one metric one unit"):
        gather([*rows([1.0]), *rows([1000.0], unit="ms")])


def test_a_new_environment_that_moves_the_level_is_no_regression() -> None:
    software = ["torch 2.12"] * 60 + ["torch 2.13"] * 40
    (one,) = analyse(gather(rows(noisy(2, factor=1.1), software=software)))
    assert [(shift.kind, shift.index) for shift in one.shifts] == [("environment", 60)]
    assert not one.regressed


def test_a_new_environment_without_effect_hides_nothing() -> None:
    software = ["torch 2.12"] * 30 + ["torch 2.13"] * 70
    (one,) = analyse(gather(rows(noisy(3, factor=1.1), software=software)))
    assert [shift.kind for shift in one.shifts] == ["regression"]
    assert one.new_environments == (30,)


@pytest.mark.parametrize(
    ("before", "after", "change", "words"),
    [
        (-1.0, 1.0, 2.0, "-1 to 1"),
        (-2.0, -1.0, 0.5, "-2 to -1"),
        (0.0, 1.0, math.inf, "0 to 1"),
        (1.0, 1.2, 0.2, "+20.0%"),
    ],
)
def test_a_level_that_is_not_above_0_has_no_share(
    before: float, after: float, change: float, words: str
) -> None:
    (found,) = analyse(gather(rows([before] * 20 + [after] * 20)))
    (shift,) = found.shifts
    assert (shift.kind, shift_words(shift)) == ("regression", words)
    assert shift.change == pytest.approx(change)


def test_higher_is_better_turns_the_answer_round() -> None:
    observed = [replace(one, better="higher") for one in rows(noisy(4, factor=1.1))]
    (one,) = analyse(gather(observed))
    assert [shift.kind for shift in one.shifts] == ["improvement"]


def test_one_commit_is_one_incident_over_all_metrics(book: ObservationBook) -> None:
    for seed, metric in enumerate(("time", "memory", "first")):
        book.record(rows(noisy(seed, factor=1.08), metric=metric))
    book.record(rows(noisy(9), metric="quiet"))
    (one,) = _found(book)
    assert len(one.series) == 3
    assert one.state == "open"
    assert one.revision in {revision_of(at) for at in (59, 60, 61)}


def test_other_series_do_not_change_how_sure_a_commit_is() -> None:
    """Another project's commits lie between ours, at the same times."""
    own = rows(noisy(3, factor=1.02), benchmark="ours")
    (alone,) = incidents(analyse(gather(own)))
    assert len(alone.series[0].among) > 1, "its place is in doubt"
    others = [
        replace(one, benchmark=name, revision=f"{name} {one.revision}")
        for name, factor in (("theirs", 1.0), ("stranger", 1.2))
        for one in rows(noisy(4, factor=factor), benchmark=name)
    ]
    found = incidents(analyse(gather(own + others)))
    (ours,) = [one for one in found if one.series[0].key.startswith("ours")]
    assert (ours.revision, ours.series[0].among) == (alone.revision, alone.series[0].among)
    assert [one.key.partition(" ")[0] for one in ours.series] == ["ours"]


def test_the_life_of_an_incident(book: ObservationBook) -> None:
    book.record(rows(noisy(0, factor=1.1)))
    (opened,) = _found(book)
    assert _found(book) == [opened]  # a second look opens nothing
    assert len(book.events()) == 1
    assert mark(book, opened.id[:4], "acknowledged", "mine").state == "acknowledged"
    (one,) = _found(book)
    assert (one.state, one.note) == ("acknowledged", "mine")
    mark(book, opened.id, "resolved", "accepted")
    assert _found(book)[0].state == "resolved"


def test_an_incident_goes_away_with_its_level(book: ObservationBook) -> None:
    values = np.concatenate([noisy(0, factor=1.1), noisy(5)])
    book.record(rows(values[:100]))
    (opened,) = _found(book)
    book.record(rows(values)[100:])
    (gone,) = _found(book)
    assert (gone.id, gone.state) == (opened.id, "went away")
    assert [one.event for one in book.events()] == ["opened", "went_away"]


def test_an_incident_that_nobody_knows(book: ObservationBook) -> None:
    with pytest.raises(HistoryError, match="no incident 'abc'"):
        mark(book, "abc", "resolved", "")


def test_chance_among_many_series_is_left_out() -> None:
    every = gather(
        [one for seed in range(150) for one in rows(noisy(seed), benchmark=f"bench {seed}")]
    )
    assert sum(bool(one.shifts) for one in analyse(every, at_least=0.0)) <= 1
