"""The clock of a turn: what the ledger remembers is not paid twice, and counts all the same.

And what runs beside a step: nothing of torch's own that no step on cores needs.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.base.devices.probe import probe
from ratchet.base.errors import OutOfTime
from ratchet.base.ledger import Ledger
from ratchet.train.turn.arm import prepare_torch
from ratchet.train.turn.schedule import CLOSING, TurnSchedule
from ratchet.train.turn.settings import Settings
from ratchet.train.turn.state import Turn

FOUND: dict[str, Any] = {"found": 1}
CLOSING_S = CLOSING.of(100.0)


class Clock:
    """A monotonic clock that moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


def start(folder: Path, clock: Clock, budget_s: float = 100.0) -> Turn:
    return Turn(
        settings=Settings(workload="llama-tiny", budget_s=budget_s),
        ledger=Ledger.open(f"sqlite:///{folder / 'ledger.db'}"),
        device=probe("cpu"),
        ceilings=None,
        software={"ratchet": "0"},
        software_fingerprint="s",
        listener=lambda event, details: None,
        schedule=TurnSchedule(budget_s=budget_s, started_s=clock.now_s),
    )


def work(clock: Clock, takes_s: float) -> dict[str, Any]:
    clock.now_s += takes_s
    return FOUND


def never() -> dict[str, Any]:
    raise AssertionError("it was in the ledger")


def test_a_second_turn_spends_what_the_first_did_in_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with start(tmp_path, clock) as turn:
        turn.memo("screening", "a", dict, lambda: work(clock, 30.0))
        turn.memo("screening", "b", dict, lambda: work(clock, 40.0))
        assert turn.schedule.left_s == pytest.approx(30.0 - CLOSING_S)
    with start(tmp_path, clock) as turn:
        assert turn.schedule.left_s == pytest.approx(100.0 - CLOSING_S)
        assert turn.memo("screening", "a", dict, never) == FOUND
        assert turn.schedule.left_s == pytest.approx(70.0 - CLOSING_S)
        assert turn.memo("screening", "b", dict, never) == FOUND
        with turn.schedule.until(50.0):
            assert turn.schedule.left_s == 0.0
        assert turn.schedule.left_s == pytest.approx(30.0 - CLOSING_S)
        assert turn.schedule.elapsed_s == 0.0
        assert turn.recalled == 2


def test_a_larger_budget_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with start(tmp_path, clock) as turn:
        turn.memo("screening", "a", dict, lambda: work(clock, 90.0))
    with start(tmp_path, clock, budget_s=200.0) as turn:
        turn.memo("screening", "a", dict, never)
        turn.memo("screening", "b", dict, lambda: work(clock, 10.0))
        assert turn.schedule.spent_s == pytest.approx(100.0)
        assert turn.schedule.elapsed_s == pytest.approx(10.0)


def test_the_clock_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with start(tmp_path, clock) as turn:
        turn.memo("screening", "a", dict, lambda: work(clock, 5.0))
    with start(tmp_path, clock) as turn:
        clock.now_s += 50.0
        turn.memo("screening", "a", dict, never)
        assert turn.schedule.spent_s == pytest.approx(50.0)


def test_a_stage_ends_with_the_one_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with start(tmp_path, clock) as turn:
        with turn.schedule.until(40.0):
            with turn.schedule.until(60.0):
                assert turn.schedule.left_s == pytest.approx(40.0)
            with turn.schedule.until(20.0):
                assert turn.schedule.deadline_s == pytest.approx(clock.now_s + 20.0)
        assert turn.schedule.left_s == pytest.approx(100.0 - CLOSING_S)


def test_late_evidence_takes_no_more_than_its_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with start(tmp_path, clock, budget_s=1000.0) as turn:
        turn.memo("screening", "a", dict, lambda: work(clock, 500.0))
    with start(tmp_path, clock) as turn, turn.schedule.until(40.0):
        assert turn.memo("screening", "a", dict, never) == FOUND
        assert turn.schedule.spent_s == pytest.approx(40.0)


def test_what_had_no_time_is_not_begun_again_in_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def cut() -> dict[str, Any]:
        clock.now_s += 40.0
        raise OutOfTime("the time is over")

    with start(tmp_path, clock) as turn, turn.schedule.until(40.0), pytest.raises(OutOfTime):
        turn.memo("screening", "a", dict, cut)
    with start(tmp_path, clock) as turn:
        with turn.schedule.until(40.0), pytest.raises(OutOfTime):
            turn.memo("screening", "a", dict, never)
        assert turn.schedule.spent_s == pytest.approx(40.0)
        with turn.schedule.until(90.0):
            assert turn.memo("screening", "a", dict, lambda: FOUND) == FOUND


def test_a_turn_that_compared_nothing_leaves_no_timings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def run(found: dict[str, Any], wanted: Any, *, finish: dict[str, Any] | None) -> Turn:
        with start(tmp_path, clock) as turn:
            turn.forget_fruitless()
            assert turn.memo("screening", "a", dict, wanted) == found
            identity = turn.ledger.start_turn(turn.settings.key(), {}, fingerprint=turn.fingerprint)
            if finish is not None:
                turn.ledger.finish_turn(identity, finish)
            return turn

    slow, quick = {"ratio": 0.5}, {"ratio": 1.5}
    run(slow, lambda: work(clock, 80.0) and slow, finish={"speedup": {}})
    killed = run(quick, lambda: quick, finish=None)
    assert killed.recalled == 0 and killed.schedule.spent_s < 1
    resumed = run(quick, never, finish={"speedup": {"best_compile": {"ratio": 1.2}}})
    assert resumed.recalled == 1
    assert run(quick, never, finish=None).recalled == 1
    wide = {"speedup": {"best_compile": {"ratio": 1.2}}, "floor": {"low": 0.52, "high": 1.94}}
    proven = run(quick, never, finish={**wide, "recipe_is": "proven"})
    assert proven.recalled == 1
    noisy = run(quick, never, finish={**wide, "recipe_is": "rival"})
    assert noisy.recalled == 1
    assert run(slow, lambda: slow, finish=None).recalled == 0


@pytest.mark.parametrize(("device", "stay_away"), [("cpu", True), ("cuda", False)])
def test_triton_s_compiling_processes_stay_away_from_cores(
    device: str, stay_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_WARM_POOL", "")  # so that it is undone
    monkeypatch.delenv("TORCH_WARM_POOL")
    prepare_torch({"device": device})
    assert (os.environ.get("TORCH_WARM_POOL") == "0") is stay_away
