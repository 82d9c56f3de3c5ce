"""More calls are compared before a kernel is proven, where few were while it was timed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.judge.trial import sample
from ratchet.judge.trial.open_problem import Record
from ratchet.judge.trial.sample import ENOUGH_COMPARED, CaseTiming, compare_more


class Arm:
    """Counts what is compared of batches of two calls."""

    runs = 0

    def __init__(self, *_: object) -> None:
        self.checked = 0

    def begin(self, _: object) -> None:
        self.batch = 0

    def sample(self, calls: dict[int, int]) -> None:
        self.sampled = calls

    def run(self, _: int) -> None:
        Arm.runs += 1

    def check_due(self) -> None:
        self.checked += self.sampled[self.batch]
        self.batch += 1

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("compared", "limit_s", "runs"),
    [(12, 60.0, (ENOUGH_COMPARED - 12) // 2), (12, 0.0, 1), (ENOUGH_COMPARED, 60.0, 0)],
    ids=["few", "slowly", "enough"],
)
def test_until_enough_were_compared(
    compared: int, limit_s: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "COMPARING_S", limit_s)
    monkeypatch.setattr(sample, "CandidateArm", Arm)
    monkeypatch.setattr(sample, "RoundSeeds", lambda *_, **__: None)
    monkeypatch.setattr(sample, "warm", lambda *_: 0.0)
    monkeypatch.setattr(sample, "calls_of", lambda *_: 2)
    monkeypatch.setattr(Arm, "runs", 0)
    rivalry: Any = SimpleNamespace(opened=None, record=Record())

    @contextlib.contextmanager
    def launch(_: int) -> Iterator[Any]:
        yield SimpleNamespace(pause=lambda: None)

    timing = CaseTiming(case=0, name="timed", samples=[], checked=compared)
    compare_more(timing, rivalry, launch)
    assert Arm.runs == runs
    checks = [one.check for one in rivalry.record.evidence]
    assert checks == ["right while timed on timed, again"][:runs]
