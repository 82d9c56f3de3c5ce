"""The gradient gate as a turn uses it, and what a turn leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from simulated_turns import CEILINGS, World, run

from ratchet.train.recipe import Candidate, with_config
from ratchet.train.turn import compose
from ratchet.train.turn.rivals import Baseline
from ratchet.train.turn.schedule import Costs, TurnSchedule
from ratchet.train.turn.screen import (
    FEWEST_ROUNDS,
    MOST_SCREENED_ROUNDS,
    Oracle,
    check_gradients,
    rounds_for,
)
from ratchet.train.workloads.config import StepConfig

WRITTEN = with_config(StepConfig(), {})
COMPILED = with_config(StepConfig(compile_mode="default", optimizer="fused"), {})


class FakeTurn:
    """A turn whose arms write the gradients they are given, scaled."""

    def __init__(self, folder: Path, scales: dict[str, float]) -> None:
        self.folder, self.scales = folder, scales
        self.started: list[str] = []
        self.memory: dict[str, dict[str, Any]] = {}
        self.costs = Costs()
        self.arms, self.schedule = self, TurnSchedule(budget_s=100.0)

    def memo(self, kind: str, key: str, answer: Any, compute: Any) -> Any:
        return self.memory.setdefault(f"{kind}:{key}", compute())

    def gradients_path(self, candidate: Candidate) -> Path:
        return self.folder / f"{candidate.key()}.safetensors"

    def live(self, candidate: Candidate) -> None:
        self.started.append(candidate.key())
        gradient = torch.linspace(-1, 1, 64) * self.scales.get(candidate.key(), 1.0)
        save_file({"w": gradient}, self.gradients_path(candidate))

    def holds(self, kind: str, key: str) -> bool:
        return f"{kind}:{key}" in self.memory

    def drop(self, candidate: Candidate) -> None:
        pass


def test_right_gradients_pass(tmp_path: Path) -> None:
    turn: Any = FakeTurn(tmp_path, {})
    assert check_gradients(turn, COMPILED, Oracle(reference=WRITTEN, allowed=WRITTEN)).passed


def test_one_per_cent_fails(tmp_path: Path) -> None:
    turn: Any = FakeTurn(tmp_path, {COMPILED.key(): 1.01})
    found = check_gradients(turn, COMPILED, Oracle(reference=WRITTEN, allowed=WRITTEN))
    assert not found.passed
    assert found.worst_parameter == "w"
    assert found.worst_ratio > 1


def test_a_recipe_that_fell_back_to_its_rival_is_checked_too(tmp_path: Path) -> None:
    """The rival beside itself cannot be timed; its gradients are judged all the same."""
    turn: Any = FakeTurn(tmp_path, {})
    baseline = Baseline(written=WRITTEN, best=COMPILED, best_same=COMPILED, rivals=())
    found = compose._gradients(turn, baseline, COMPILED)
    assert found is not None and found.passed
    assert set(turn.started) == {WRITTEN.key(), COMPILED.key()}


def test_the_rounds_of_a_screening_fit_its_time() -> None:
    assert rounds_for(0.25, 0.25, 5.0) == 10
    assert rounds_for(0.01, 0.01, 5.0) == MOST_SCREENED_ROUNDS
    assert rounds_for(2.0, 2.0, 5.0) == FEWEST_ROUNDS


def test_a_hopeless_challenger_is_not_timed_for_long() -> None:
    assert rounds_for(0.25, 7.5, 5.0) == 2
    assert rounds_for(7.5, 0.25, 5.0) == FEWEST_ROUNDS


def test_what_was_compiled_for_its_trial_is_not_taken_for_slower(tmp_path: Path) -> None:
    factors = {"precision=bf16_master": 0.97, "attention": 0.98}
    world = World(factors=factors, ceilings=CEILINGS, compiling_slows=0.05)
    found = run(world, tmp_path, 1200.0)
    kept = {one.name: one.ratio for one in found.result.changes if one.decision == "kept"}
    assert found.recipe.config.precision == "bf16_master"
    assert kept["attention-math"] == pytest.approx(1 / 0.98, abs=0.005)
