"""The rows that commands append: each fingerprint described, and no turn left open by a mistake."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratchet.base.errors import RatchetError, WorkloadError
from ratchet.judge.court import machines
from ratchet.judge.court.court import Court
from ratchet.judge.court.suite import Question, Suite, SuiteRun
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Verdict
from ratchet.train.turn import bench, loop
from ratchet.train.turn.settings import Settings

TABLES = ("problems", "kernels", "verdicts", "measurements", "evidence", "recipes", "turns")


def rows(ledger: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(ledger)
    try:
        return list(connection.execute(query))
    finally:
        connection.close()


def assert_described(ledger: Path) -> None:
    """Every fingerprint that a row refers to has a row that says what it stands for."""
    for column, table in (("device", "devices"), ("software", "software")):
        described = {one for (one,) in rows(ledger, f"SELECT {column} FROM {table}")}
        used = {one for name in TABLES for (one,) in rows(ledger, f"SELECT {column} FROM {name}")}
        assert used and used <= described, (column, used, described)


@dataclass
class FakeArm:
    spec: Any

    def __enter__(self) -> FakeArm:
        return self

    def __exit__(self, *_: object) -> None: ...

    def call(self, method: str, **_: object) -> dict[str, Any]:
        times = {"step_time_s": 1.0, "low_s": 0.9, "high_s": 1.1, "first_step_s": 2.0}
        what = {"workload": "llama-tiny", "device": "cpu", "precision": "fp32", "unit": "tokens"}
        counts = {"steps": 3, "parameters": 1, "flops_per_step": 1, "peak_memory_bytes": 1000}
        found = {"compile_mode": None, "tokens_per_s": 1.0, "mfu": 0.0, "loss": None}
        return {**times, **what, **counts, **found}


class FakeJudge:
    def __init__(self, *, threads: int | None = None) -> None: ...

    def judge(self, kernel: Kernel, problem: Any, **_: object) -> Verdict:
        return Verdict(
            status="correct",
            reason="",
            isolation="none",
            kernel_hash=kernel.hash,
            problem_hash=problem.hash,
        )

    def close(self) -> None: ...


def test_bench_describes_what_its_rows_refer_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ArmProcess", FakeArm)
    ledger = tmp_path / "ledger.db"
    bench.bench_all(["llama-tiny"], options={"device": "cpu"}, steps=3, ledger=str(ledger))
    assert_described(ledger)
    assert len(rows(ledger, "SELECT revision FROM observations")) == 3


def test_a_verdict_s_fingerprint_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger.db"
    kernel = Kernel(name="k", language="cpp", source="", entry="k")
    monkeypatch.setattr(machines, "KernelJudge", FakeJudge)
    with Court(str(ledger)) as court:
        court.judge(kernel, find_problem("squared_relu").at("ci"), Terms(device="cpu"))
    assert_described(ledger)


def test_a_mistake_leaves_no_turn_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(turn: object) -> dict[str, Any]:
        raise WorkloadError("no such workload")

    monkeypatch.setattr(loop, "_ceilings", lambda device: None)
    monkeypatch.setattr(loop, "describe", raises)
    ledger = tmp_path / "ledger.db"
    asked = Settings(
        workload="llama-tiny", options={"device": "cpu"}, out=tmp_path, ledger=str(ledger)
    )
    with pytest.raises(WorkloadError):
        loop.optimize(asked)
    assert [event for (event,) in rows(ledger, "SELECT event FROM turns")] == ["started", "failed"]
    assert_described(ledger)


@pytest.mark.parametrize("seed", [-1, 2**32, 10**24])
def test_a_seed_that_is_none_is_refused_at_once(seed: int, tmp_path: Path) -> None:
    with pytest.raises(RatchetError, match=f"seed {seed}"):
        loop.check_settings(Settings(workload="llama-tiny", seed=seed, out=tmp_path))


def test_a_verdict_is_reported_once_it_is_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, reported = tmp_path / "ledger.db", []
    kernel = Kernel(name="k", language="cpp", source="", entry="k")
    problem = find_problem("squared_relu").at("ci")
    questions = tuple(Question(name=name, read=lambda _: (problem, kernel)) for name in "ab")
    asked = Suite(name="two", candidate="mine", tier="ci", questions=questions)
    monkeypatch.setattr(machines, "KernelJudge", FakeJudge)
    with Court(str(ledger)) as court:
        run = SuiteRun(suite=asked, court=court, terms=Terms(device="cpu"), fresh=True)
        run.run(lambda row, _: reported.append(len(rows(ledger, "SELECT id FROM verdicts"))))
    assert reported == [1, 2]
