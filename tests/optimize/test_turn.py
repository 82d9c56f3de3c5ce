"""The clock of a turn: what the ledger remembers is not paid twice, and counts all the same."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.devices.probe import probe
from ratchet.ledger import Ledger
from ratchet.optimize import loop
from ratchet.optimize.settings import Settings
from ratchet.optimize.turn import Turn

FOUND: dict[str, Any] = {"found": 1}


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
        started_s=clock.now_s,
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
        turn.memo("screening", "a", lambda: work(clock, 30.0))
        turn.memo("screening", "b", lambda: work(clock, 40.0))
        assert turn.left_s() == pytest.approx(30.0)
    with start(tmp_path, clock) as turn:
        assert turn.left_s() == pytest.approx(100.0)
        assert turn.memo("screening", "a", never) == FOUND
        assert turn.left_s() == pytest.approx(70.0)
        assert turn.memo("screening", "b", never) == FOUND
        assert turn.left_s(0.5) == 0.0
        assert turn.left_s() == pytest.approx(30.0)
        assert turn.elapsed_s == 0.0
        assert turn.recalled == 2


def test_a_larger_budget_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with start(tmp_path, clock) as turn:
        turn.memo("screening", "a", lambda: work(clock, 90.0))
    with start(tmp_path, clock, budget_s=200.0) as turn:
        turn.memo("screening", "a", never)
        turn.memo("screening", "b", lambda: work(clock, 10.0))
        assert turn.spent_s == pytest.approx(100.0)
        assert turn.elapsed_s == pytest.approx(10.0)


def test_the_clock_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with start(tmp_path, clock) as turn:
        turn.memo("screening", "a", lambda: work(clock, 5.0))
    with start(tmp_path, clock) as turn:
        clock.now_s += 50.0
        turn.memo("screening", "a", never)
        assert turn.spent_s == pytest.approx(50.0)


@pytest.mark.parametrize("spent_share", [0.0, 0.3, 0.45, 0.5, 0.6, 0.75, 0.9, 1.2])
def test_kernels_get_a_share_however_long_the_rivals_took(spent_share: float) -> None:
    late = loop._lateness(spent_share)
    end = loop.KERNELS_UNTIL + late
    assert late >= 0
    assert end >= min(spent_share + loop.KERNELS_LEAST, loop.KERNELS_LATEST)
    assert loop.SAME_UNTIL + late < 1.0
