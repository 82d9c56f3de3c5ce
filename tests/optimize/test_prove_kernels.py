"""Kernels before they are installed: a library kernel goes in whole or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.kernels.kernel import Kernel
from ratchet.optimize.step.installed import InstalledKernel
from ratchet.optimize.turn import prove_kernels
from ratchet.optimize.turn.prove_kernels import KernelCourt
from ratchet.optimize.turn.schedule import TurnSchedule

ENTRIES = ("made_forward", "made_backward", "made_with_residual")
KERNELS = tuple(
    Kernel(name=name, language="cpp", source=f"// {name}", entry=name) for name in ENTRIES
)


class MadeUpCourt(KernelCourt):
    """Answers from a table: an entry's statuses, one verdict after the other."""

    answers: dict[str, list[str]]
    asked: list[str]

    def known_or_judged(self, judge: Any, kernel: Kernel, problem: Any) -> dict[str, Any] | None:
        return self._judged(judge, kernel, problem)

    def _judged(self, judge: Any, kernel: Kernel, problem: Any) -> dict[str, Any] | None:
        status = self.answers[kernel.entry][self.asked.count(kernel.entry)]
        self.asked.append(kernel.entry)
        return {"status": status, "reason": "made up"}

    def may_be_loaded(self, kernel: Kernel) -> bool:
        given = self.answers[kernel.entry][: self.asked.count(kernel.entry)]
        return "proven" in given

    def _installed(self, library: str, kernel: Kernel) -> InstalledKernel:
        return InstalledKernel(library=library, entry=kernel.entry, hash=kernel.hash, isa="x86")


def hear(
    monkeypatch: pytest.MonkeyPatch, called: tuple[str, ...], **answers: list[str]
) -> MadeUpCourt:
    library = SimpleNamespace(kernels=lambda target: KERNELS)
    monkeypatch.setattr(prove_kernels, "LIBRARY", {"made": library})
    turn = SimpleNamespace(
        device=SimpleNamespace(target="x86"),
        is_own=lambda kind, key: True,
        schedule=TurnSchedule(budget_s=100.0),
        costs=SimpleNamespace(verdict_s=1.0),
    )
    court = MadeUpCourt(turn=turn, wanted=("made",))  # type: ignore[arg-type]
    court.answers, court.asked = answers, []
    problems: Any = [SimpleNamespace(name=name, hash=name) for name in called]
    court.hear("fp32", {"made": problems}, timed=True)
    return court


def test_what_is_proven_at_every_call_site_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = ("made_forward", "made_backward")
    answers = {"made_forward": ["proven"], "made_backward": ["proven"], "made_with_residual": []}
    court = hear(monkeypatch, called, **answers)
    assert [one.entry for one in court.proven["fp32"]["made"]] == list(called)


def test_an_entry_that_is_not_proven_keeps_all_of_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"made_forward": ["proven"], "made_backward": ["correct", "correct"]}
    court = hear(monkeypatch, tuple(answers), **answers, made_with_residual=[])
    assert court.proven["fp32"] == {}
    reason = court.refused["fp32"]["made"]
    assert reason == "made_backward: right, but not proven faster here"
    assert court.asked.count("made_backward") == 2, "an undecided speed is asked once more"


def test_an_undecided_entry_may_be_proven_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"made_forward": ["proven"], "made_backward": ["correct", "proven"]}
    court = hear(monkeypatch, tuple(answers), **answers, made_with_residual=[])
    assert set(court.proven["fp32"]) == {"made"}


def test_a_wrong_entry_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    court = hear(
        monkeypatch,
        ("made_forward",),
        made_forward=["wrong"],
        made_backward=[],
        made_with_residual=[],
    )
    assert court.asked == ["made_forward"]
    assert court.refused["fp32"]["made"].startswith("made_forward: wrong")
