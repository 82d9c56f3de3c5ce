"""The court: what one caller had judged, every other one recalls; what is kept, and what is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import ratchet
from ratchet.base.errors import LedgerError
from ratchet.base.files import LEDGER
from ratchet.base.ledger import Ledger
from ratchet.judge.court import calls, machines
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Screening, Status, Verdict

KERNEL = Kernel(name="k", language="cpp", source="int x;", entry="squared_relu")


@dataclass
class StrawJudge:
    """Stands in for KernelJudge."""

    status: Status = "proven"
    asked: list[int | None] = field(default_factory=list)
    """Threads of each verdict."""
    threads: int | None = None
    screened: list[tuple[list[str], str]] = field(default_factory=list)
    """Languages and device of each screening."""

    def __call__(self, *, threads: int | None = None) -> StrawJudge:
        self.threads = threads
        return self

    def begin(self, language: str) -> None: ...

    def describe(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        raise AssertionError("nothing is read from a file")

    def judge(self, kernel: Kernel, problem: Problem, **terms: Any) -> Verdict:
        self.asked.append(self.threads)
        return Verdict(
            status=self.status,
            reason="made up",
            environment={"judge": revision(terms["target"])},
            isolation="none",
            kernel_hash=kernel.hash,
            problem_hash=problem.hash,
        )

    def screen(
        self, problem: Problem, kernels: Sequence[Kernel], *, device: str, **_: object
    ) -> list[Screening]:
        self.screened.append(([one.language for one in kernels], device))
        return [Screening(kernel_hash=one.hash, status="screened", reason="") for one in kernels]

    def close(self) -> None: ...


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> StrawJudge:
    made = StrawJudge()
    monkeypatch.setattr(machines, "KernelJudge", made)
    return made


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger that the environment names."""
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger.db"))
    return tmp_path / "ledger.db"


def problem() -> Problem:
    return find_problem("squared_relu").at("ci")


def test_what_a_library_call_proved_is_known_to_every_other_caller(
    judge: StrawJudge, ledger: Path
) -> None:
    assert ratchet.judge(KERNEL, problem()).status == "proven"
    with Court(str(ledger)) as court:
        assert court.is_proven(KERNEL)
        found = court.judge(KERNEL, problem(), Terms(time_limit_s=180.0))
        assert found.recalled and found.kernel == KERNEL and found.problem == problem()
        assert [one.recalled for one in court.judge_all([KERNEL], problem(), Terms())] == [True]
        assert not court.judge(KERNEL, problem(), Terms(), fresh=True).recalled
    assert len(judge.asked) == 2


def test_a_library_call_is_always_judged_anew(judge: StrawJudge, ledger: Path) -> None:
    for _ in range(2):
        ratchet.judge(KERNEL, problem())
    assert len(judge.asked) == 2


@pytest.mark.parametrize(
    ("terms", "together", "verdicts"),
    [
        (Terms(device="cuda"), ["cpp", "torch", "triton"], 1),
        (Terms(device="cpu"), ["cpp", "torch"], 2),
        (Terms(device="cuda", target="gfx942"), ["cpp", "torch"], 2),
    ],
)
def test_what_runs_as_it_is_is_screened_together_and_the_rest_by_short_verdicts(
    terms: Terms, together: list[str], verdicts: int, judge: StrawJudge, ledger: Path
) -> None:
    kernels = [
        Kernel(name="k", language=language, source=f"# {language}", entry="squared_relu")
        for language in ("cpp", "triton", "hip", "torch")
    ]
    with Court(str(ledger)) as court:
        found = court.screen(kernels, problem(), terms)
        assert court.last(kernels[1], problem()) is None
    assert [one.kernel_hash for one in found] == [one.hash for one in kernels]
    ((languages, device),) = judge.screened
    assert sorted(languages) == together and device == terms.device
    assert len(judge.asked) == verdicts


def test_emulated_verdicts_say_nothing_of_this_device(judge: StrawJudge, ledger: Path) -> None:
    with Court(str(ledger)) as court:
        court.judge(KERNEL, problem(), Terms())
        judge.status = "wrong"
        for _ in range(20):
            court.judge(KERNEL, problem(), Terms(target="gfx942"), fresh=True)
        assert court.is_proven(KERNEL)
        here, hash = court.fingerprint, problem().hash
        assert len(court.ledger.proven_kernels(hash, here, judge=revision())) == 1
        last, known = court.last(KERNEL, problem()), court.known(KERNEL, problem(), Terms())
        emulated = court.last(KERNEL, problem(), Terms(target="gfx942"))
        assert court.last(KERNEL, problem(), Terms(target="gfx1100")) is None
    assert last is not None and last.verdict.status == "proven"
    assert known is not None and known.verdict.status == "proven"
    assert emulated is not None and emulated.verdict.status == "wrong"


def test_a_verdict_whose_seed_was_known_is_not_kept(judge: StrawJudge, ledger: Path) -> None:
    assert ratchet.judge(KERNEL, problem(), seed=3).status == "proven"
    with Court(str(ledger)) as court:
        assert court.last(KERNEL, problem()) is None and not court.is_proven(KERNEL)


def test_fewer_threads_are_another_device(judge: StrawJudge, ledger: Path) -> None:
    with Court(str(ledger)) as all_of_it, Court(str(ledger), threads=1) as one:
        one.judge(KERNEL, problem(), Terms())
        if all_of_it.device.threads > 1:
            assert not all_of_it.is_proven(KERNEL)
        assert one.is_proven(KERNEL)


def test_a_time_out_under_a_short_limit_does_not_disprove(judge: StrawJudge, ledger: Path) -> None:
    with Court(str(ledger)) as court:
        court.judge(KERNEL, problem(), Terms())
        judge.status = "timed_out"
        court.judge(KERNEL, problem(), Terms(time_limit_s=5.0), fresh=True)
        assert court.is_proven(KERNEL)
        court.judge(KERNEL, problem(), Terms(), fresh=True)
        assert not court.is_proven(KERNEL)


def unusable(folder: Path) -> Path:
    (folder / "file").write_text("no folder")
    return folder / "file" / "ledger.db"


def locked(self: Ledger, *_: object, **__: object) -> None:
    raise LedgerError("the ledger is locked")


def test_a_ledger_that_is_named_must_work(
    judge: StrawJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEDGER, str(unusable(tmp_path)))
    with pytest.raises(LedgerError) as caught:
        ratchet.judge(KERNEL, problem())
    assert "\n" not in str(caught.value)
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger.db"))
    monkeypatch.setattr(Ledger, "record_verdict", locked)
    with pytest.raises(LedgerError, match="is locked"):
        ratchet.judge(KERNEL, problem())


@pytest.mark.parametrize("fails", [unusable, lambda folder: folder / "ledger.db"])
def test_a_default_ledger_that_fails_costs_a_warning_and_no_verdict(
    judge: StrawJudge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails: Callable[[Path], Path],
) -> None:
    monkeypatch.delenv(LEDGER, raising=False)
    default = fails(tmp_path)
    monkeypatch.setattr("ratchet.base.files.default_ledger", lambda: default)
    monkeypatch.setattr(Ledger, "record_verdict", locked)
    with caplog.at_level(logging.WARNING, calls.__name__.rpartition(".")[0]):
        assert ratchet.judge(KERNEL, problem()).status == "proven"
    assert any(
        "not stored" in one.getMessage() or "not kept" in one.getMessage() for one in caplog.records
    )
