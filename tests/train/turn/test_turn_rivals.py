"""The rivals: what is said where torch.compile gives none, and who counts as the fastest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_turns import CEILINGS, World, run

from ratchet.base.errors import ArmFailure, CompilerMissing
from ratchet.base.measure.sitting import Sitting
from ratchet.train.levers import Situation
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.turn import rivals as rivals_module
from ratchet.train.turn.rivals import Baseline, RivalModes
from ratchet.train.turn.schedule import Costs, TurnSchedule
from ratchet.train.turn.screen import LeverScreening
from ratchet.train.workloads.config import StepConfig

WRITTEN = with_config(StepConfig(), {})


def situation(bf16_is_slow: str | None = None) -> Situation:
    return Situation(
        device_kind="cpu",
        vendor="AMD",
        target="portable",
        cores=2,
        written=StepConfig(),
        optimizer_is_adamw=True,
        has_attention=True,
        trainable_bytes=0,
        peak_memory_bytes=0,
        memory_bytes=1,
        bf16_is_slow=bf16_is_slow,
    )


def costs() -> Costs:
    """Starts that were seen: max-autotune compiles longer."""
    seen = Costs()
    for mode, setup_s in ((None, 1.0), ("default", 10.0), ("max-autotune", 30.0)):
        seen.note_setup(with_config(StepConfig(compile_mode=mode), {}), setup_s)
    return seen


def turn(keep_precision: bool = False) -> Any:
    return SimpleNamespace(
        settings=SimpleNamespace(keep_precision=keep_precision, budget_s=1000.0, launches=3),
        device=SimpleNamespace(kind="cpu"),
        schedule=TurnSchedule(budget_s=1000.0),
        arms=SimpleNamespace(drop=lambda candidate: None, is_live=lambda candidate: False),
        holds=lambda kind, key: True,
        leave_out=lambda *what, **more: None,
        costs=costs(),
    )


def find_baseline(turn: Any, written: Candidate, situation: Situation) -> Baseline:
    """Time every rival, the cheapest first."""
    found = RivalModes(turn=turn, written=written, situation=situation, sitting=Sitting())
    found.first()
    while found.next_one() is not None:
        found.time_next()
    return found.baseline()


def screening(ratio: float, *, passed: bool = True) -> LeverScreening:
    return LeverScreening(
        passed=passed,
        reason="" if passed else "BackendCompilerFailed: " + "no " * 500,
        ratio=ratio,
        low=ratio,
        high=ratio,
        answer="faster" if ratio > 1 else "slower",
        step_time_s=1.0,
        setup_s=1.0,
    )


def rivals(monkeypatch: pytest.MonkeyPatch, times_s: dict[tuple[str, str], float]) -> None:
    """Step times by mode and precision; eager takes 1 s; a mode that is not named fails."""

    def time_s(candidate: Candidate) -> float:
        config = candidate.config
        if config.compile_mode is None:
            return 1.0
        return times_s.get((config.compile_mode, config.precision), 0.0)

    def screen(
        turn: Any, incumbent: Candidate, challenger: Candidate, oracle: Any
    ) -> LeverScreening:
        assert incumbent.key() != challenger.key()
        if not time_s(challenger):
            return screening(0.0, passed=False)
        return screening(time_s(incumbent) / time_s(challenger))

    monkeypatch.setattr(rivals_module, "screen", screen)
    monkeypatch.setattr(rivals_module, "expect", lambda *asked: None)


def test_the_fastest_of_all_modes_is_the_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    rivals(
        monkeypatch,
        {
            ("default", "fp32"): 0.8,
            ("default", "bf16_autocast"): 0.6,
            ("max-autotune", "fp32"): 0.7,
            ("max-autotune", "bf16_autocast"): 0.65,
        },
    )
    found = find_baseline(turn(), WRITTEN, situation())
    assert (found.best.config.compile_mode, found.best.config.precision) == (
        "default",
        "bf16_autocast",
    )
    assert found.best_same is not None
    assert (found.best_same.config.compile_mode, found.best_same.config.precision) == (
        "max-autotune",
        "fp32",
    )
    assert len(found.rivals) == 4


@pytest.mark.parametrize(("half", "mode"), [(0.05, "default"), (0.01, "max-autotune")])
def test_a_rival_that_cannot_be_told_apart_takes_no_place(
    monkeypatch: pytest.MonkeyPatch, half: float, mode: str
) -> None:
    ratios = {"default": 1.25, "max-autotune": 1.02}

    def screen(turn: Any, incumbent: Candidate, challenger: Candidate, oracle: Any) -> Any:
        ratio = ratios[str(challenger.config.compile_mode)]
        return dataclasses.replace(screening(ratio), low=ratio - half, high=ratio + half)

    monkeypatch.setattr(rivals_module, "screen", screen)
    monkeypatch.setattr(rivals_module, "expect", lambda *asked: None)
    found = find_baseline(turn(keep_precision=True), WRITTEN, situation())
    assert found.best_same is not None
    assert found.best.config.compile_mode == found.best_same.config.compile_mode == mode


def test_a_recipe_is_proven_against_a_mode_that_is_faster(tmp_path: Path) -> None:
    world = World(factors={"attention": 0.9, "compile_mode=max-autotune": 0.95}, ceilings=CEILINGS)
    found = run(world, tmp_path, 1800.0, keep_precision=True)
    assert found.result.best_compile.startswith("torch.compile max-autotune")
    assert found.result.recipe_is == "proven"
    ratio = found.result.speedup["vs_compile"]
    assert ratio is not None and ratio.ratio == pytest.approx(1 / 0.9, rel=0.02), "in one mode"


def test_a_rival_slower_than_eager_is_still_the_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    rivals(monkeypatch, {("default", "fp32"): 2.0})
    found = find_baseline(turn(keep_precision=True), WRITTEN, situation())
    assert found.best is found.best_same
    assert found.best.config.compile_mode == "default"


def test_only_another_precision_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    rivals(monkeypatch, {("default", "bf16_autocast"): 0.6})
    found = find_baseline(turn(), WRITTEN, situation())
    assert found.best.config.precision == "bf16_autocast"


def test_bf16_that_cannot_win_is_named_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    rivals(monkeypatch, {("default", "fp32"): 0.8, ("default", "bf16_autocast"): 0.1})
    found = find_baseline(turn(), WRITTEN, situation("5 GFLOP/s in bf16 here, and 108 in fp32"))
    assert found.best is found.best_same and found.best.config.precision == "fp32"
    hopeless = [rival for rival in found.rivals if rival.precision == "bf16_autocast"]
    assert len(hopeless) == 2
    assert all(rival.step_time_s is None and "5 GFLOP/s" in rival.reason for rival in hopeless)


def test_without_a_compiler_that_is_what_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rivals(monkeypatch, {})
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("RATCHET_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CompilerMissing, match="install one"):
        find_baseline(turn(), WRITTEN, situation())


@pytest.mark.compiler
def test_a_compile_that_fails_is_said_in_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    rivals(monkeypatch, {})
    with pytest.raises(ArmFailure) as caught:
        find_baseline(turn(), WRITTEN, situation())
    assert "in every mode" in str(caught.value)
    assert len(str(caught.value)) < 450
