"""An arm's OpenMP threads sleep while they wait, except while its steps are timed."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from ratchet.judge.workers import patience
from ratchet.judge.workers.arm import ArmWorker
from ratchet.judge.workers.patience import Patience


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of the teams that were started; the library is a stand-in that notes them."""
    found: list[int] = []

    def parallel(work: object, data: object, size: ctypes.c_uint, flags: object) -> None:
        found.append(size.value)

    monkeypatch.setattr(patience, "_loaded", lambda: SimpleNamespace(GOMP_parallel=parallel))
    monkeypatch.setattr(patience, "cores", lambda: 2)
    yield found


class Stepped:
    """An arm that notes how many threads the process has while it is asked something."""

    calls = ("profile", "gradients")
    timed_calls = ("profile",)

    def __init__(self) -> None:
        self.threads: dict[str, int] = {}
        self._note("start")

    def _note(self, what: str) -> None:
        self.threads[what] = threading.active_count()

    def step(self, iterations: int) -> None:
        self._note(f"{iterations} steps")

    def profile(self) -> None:
        self._note("profile")

    def gradients(self) -> None:
        self._note("gradients")


def test_only_what_is_timed_runs_without_patience(teams: list[int]) -> None:
    worker, before = ArmWorker(), threading.active_count()
    sys.modules["stepped_arm"] = SimpleNamespace(make=Stepped)  # type: ignore[assignment]
    try:
        worker.answer(
            {
                **{"do": "start", "factory": "stepped_arm:make", "arguments": {}},
                "then": [{"do": "run", "iterations": 1, "timed": True}],
            },
            [],
        )
    finally:
        del sys.modules["stepped_arm"]
    worker.answer({"do": "run", "iterations": 2, "timed": False}, [])
    worker.answer({"do": "run", "iterations": 3, "timed": True}, [])
    for method in Stepped.calls:
        worker.answer({"do": "call", "method": method, "arguments": {}}, [])
    seen = {what: count - before for what, count in worker._arm.threads.items()}
    patient = ("start", "1 steps", "2 steps", "gradients")
    assert seen == {**dict.fromkeys(patient, 1), "3 steps": 0, "profile": 0}
    assert threading.active_count() == before
    assert teams
    assert set(teams) == {2}


def test_nested_patience_ends_with_the_outermost(teams: list[int]) -> None:
    patient, before = Patience(), threading.active_count()
    with patient:
        with patient:
            assert threading.active_count() == before + 1
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_an_error_inside_passes_and_the_team_ends(teams: list[int]) -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="mine"), Patience():
        raise ValueError("mine")
    assert threading.active_count() == before


@pytest.mark.parametrize("found", [1, 1_000])
def test_one_core_or_very_many_need_none(
    teams: list[int], monkeypatch: pytest.MonkeyPatch, found: int
) -> None:
    monkeypatch.setattr(patience, "cores", lambda: found)
    with Patience():
        pass
    assert teams == []


def test_a_process_without_openmp_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_loaded", lambda: None)
    monkeypatch.setattr(patience, "cores", lambda: 2)
    before = threading.active_count()
    with Patience():
        pass
    assert threading.active_count() == before


def _tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_real_team_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    torch.ones(1 << 20).add_(1)  # the library is loaded and has its own team
    if patience._loaded() is None:
        pytest.skip("this torch does not use GNU's OpenMP library")
    monkeypatch.setattr(patience, "cores", lambda: 3)
    before, began = _tasks(), threading.Event()
    held = patience.Patience()
    parallel = patience._loaded().GOMP_parallel  # type: ignore[union-attr]

    def counted(*arguments: object) -> None:
        parallel(*arguments)
        began.set()

    monkeypatch.setattr(patience, "_loaded", lambda: SimpleNamespace(GOMP_parallel=counted))
    with held:
        assert began.wait(30)
        own = _tasks() - before  # others may end meanwhile
        assert len(own) == 3  # the thread that holds the team, and two more
    for _ in range(500):
        if not own & _tasks():
            break
        began.clear()
        began.wait(0.01)
    assert not own & _tasks()
