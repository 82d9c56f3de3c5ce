"""Judges that are kept, and few rounds for those that do not ask for speed."""

from __future__ import annotations

import pytest
from answers import PatientJudge

from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.timing import plan


@pytest.fixture(scope="session")
def court(kept_judges: dict[int | None, KernelJudge]) -> KernelJudge:
    """A judge with one thread."""
    return kept_judges.setdefault(1, PatientJudge(threads=1))


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches of four rounds, one look, four calls a batch: nothing is proven by two."""
    monkeypatch.setattr(plan, "LAUNCHES", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 4)
    monkeypatch.setattr(plan, "LOOKS", 1)
    monkeypatch.setattr(plan, "MAX_CALLS", 4)


@pytest.fixture
def gains_are_seen(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds of four launches, by which what is far faster is proven: see test_judge_gains."""
    monkeypatch.setattr(plan, "LAUNCHES", 4)
