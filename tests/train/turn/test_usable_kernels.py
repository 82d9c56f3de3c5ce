"""Kernels before they are installed: a library kernel goes in whole or not at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from own_recipes import MadeUpJudge

from ratchet.base.ledger import Ledger
from ratchet.judge.court import machines
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Verdict
from ratchet.train.recipe.installed import InstalledKernel
from ratchet.train.turn import judge_kernels
from ratchet.train.turn.judge_kernels import KernelTrials
from ratchet.train.turn.schedule import Costs, TurnSchedule

ENTRIES = ("made_forward", "made_backward", "made_with_residual")
KERNELS = tuple(
    Kernel(name=name, language="cpp", source=f"// {name}", entry=name) for name in ENTRIES
)


class Table:
    """A court with a table: an entry's statuses, one verdict after the other."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers, self.asked = answers, list[str]()
        self.ahead: list[str] = []
        self.disproven = False  # True if each is wrong on some other problem

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None: ...

    def known(self, *_: Any) -> None: ...

    def last(self, *_: Any) -> None: ...

    def judge(self, kernel: Kernel, problem: Any, *_: Any, fresh: bool, then: Kernel | None) -> Any:
        self.ahead += [then.entry] if then is not None else []
        status: Any = self.answers[kernel.entry][self.asked.count(kernel.entry)]
        self.asked.append(kernel.entry)
        verdict = Verdict(
            status=status,
            reason="made up",
            isolation="none",
            kernel_hash=kernel.hash,
            problem_hash=problem.hash,
        )
        return SimpleNamespace(verdict=verdict, kernel=kernel, problem=problem)

    def is_right(self, kernel: Kernel) -> bool:
        given = self.answers[kernel.entry][: self.asked.count(kernel.entry)]
        return "correct" in given and not self.disproven


class MadeUpTrials(KernelTrials):
    def _installed(self, library: str, kernel: Kernel) -> InstalledKernel:
        return InstalledKernel(library=library, entry=kernel.entry, hash=kernel.hash, isa="x86")


def judged(
    monkeypatch: pytest.MonkeyPatch,
    called: tuple[str, ...],
    *,
    alternatives: tuple[str, ...] = (),
    disproven: bool = False,
    **answers: list[str],
) -> tuple[MadeUpTrials, Table]:
    table = Table(answers)
    table.disproven = disproven
    monkeypatch.setattr(judge_kernels, "Court", lambda ledger: table)
    library = SimpleNamespace(kernels=lambda target: KERNELS, alternatives=alternatives)
    monkeypatch.setattr(judge_kernels, "LIBRARY", {"made": library})
    turn = SimpleNamespace(
        device=SimpleNamespace(target="x86", index=0),
        arms=SimpleNamespace(are_busy=False),
        ledger=None,
        is_own=lambda kind, key: True,
        schedule=TurnSchedule(budget_s=100.0),
        costs=Costs(verdict_s=1.0),
        tell=lambda *_, **__: None,
        memo=lambda *_: None,
    )
    trials = MadeUpTrials(turn=turn, wanted=("made",))  # type: ignore[arg-type]
    problems: Any = [
        SimpleNamespace(
            name=name, untimed=lambda name=name: SimpleNamespace(name=name, hash=f"{name} untimed")
        )
        for name in called
    ]
    trials.judge_wanted("fp32", {"made": problems})
    return trials, table


def test_what_is_right_at_every_call_site_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = ("made_forward", "made_backward")
    answers = {"made_forward": ["correct"], "made_backward": ["correct"], "made_with_residual": []}
    trials, table = judged(monkeypatch, called, **answers)
    assert [one.entry for one in trials.usable["fp32"]["made"]] == list(called)
    assert table.ahead == ["made_backward"], "the next compiler starts beside a verdict"


def test_an_entry_that_is_not_right_keeps_all_of_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"made_forward": ["correct"], "made_backward": ["wrong"]}
    trials, table = judged(monkeypatch, tuple(answers), **answers, made_with_residual=[])
    assert trials.usable["fp32"] == {}
    assert trials.refused["fp32"]["made"].startswith("made_backward: wrong")
    assert table.asked == ["made_forward", "made_backward"]


def test_after_an_entry_that_is_not_right_no_other_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {"made_forward": ["wrong"], "made_backward": []}
    trials, table = judged(monkeypatch, tuple(answers), **answers, made_with_residual=[])
    assert trials.refused["fp32"]["made"].startswith("made_forward: wrong")
    assert table.asked == ["made_forward"]


def test_what_another_problem_disproves_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"made_forward": ["correct"], "made_backward": [], "made_with_residual": []}
    trials, _ = judged(monkeypatch, ("made_forward",), disproven=True, **answers)
    assert trials.refused["fp32"]["made"].endswith("disproven on another problem")


@pytest.mark.parametrize(
    ("first", "second", "installed"),
    [
        ("correct", "never asked", "made_forward"),
        ("wrong", "correct", "made_backward"),
        ("wrong", "wrong", None),
    ],
)
def test_of_alternatives_the_first_that_is_right_is_enough(
    first: str, second: str, installed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = ("made_forward", "made_backward")
    answers = {"made_forward": [first], "made_backward": [second], "made_with_residual": []}
    trials, _ = judged(monkeypatch, called, alternatives=called, **answers)
    found = [one.entry for one in trials.usable["fp32"].get("made", ())]
    assert found == ([installed] if installed else [])
    assert ("made" in trials.refused["fp32"]) == (installed is None)


def test_what_a_turn_judged_is_recalled_by_every_other_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "KernelJudge", MadeUpJudge())
    problem = find_problem("squared_relu").at("ci")
    notes: list[str] = []
    recalled: list[str] = []
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        turn: Any = SimpleNamespace(
            device=SimpleNamespace(target="x86", index=0),
            arms=SimpleNamespace(are_busy=False),
            ledger=ledger,
            is_own=lambda kind, key: False,
            known=lambda kind, key: recalled.append(key),
            schedule=TurnSchedule(budget_s=100.0),
            costs=Costs(verdict_s=1.0),
            tell=lambda event, **_: notes.append(event),
            memo=lambda *_: None,
        )
        trials = KernelTrials(turn=turn, wanted=())
        with Court(ledger) as court:
            for _ in range(2):
                judged = trials.known_or_judged(court, KERNELS[0], problem)
                assert judged is not None and judged.verdict.status == "proven"
        assert notes == ["judging", "judged"] and len(recalled) == 1
    with Court(str(tmp_path / "ledger.db")) as court:
        assert court.judge(KERNELS[0], problem, Terms()).recalled
