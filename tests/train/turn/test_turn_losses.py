"""A turn whose bf16 learns worse: bf16 autocast is tried after bf16 weights, then nothing is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import simulated_turns
from simulated_turns import CEILINGS, World, run

FACTORS = {"precision=bf16_autocast": 0.6, "precision=bf16_master": 0.4}
BUDGET_S = 1800.0


def world(*worse: str) -> World:
    return World(ceilings=CEILINGS, factors=FACTORS, learns_worse=frozenset(worse))


def test_bf16_weights_that_learn_as_well_are_kept(tmp_path: Path) -> None:
    outcome = run(world(), tmp_path, BUDGET_S)
    assert outcome.recipe.config.precision == "bf16_master"
    assert outcome.result.losses is not None and outcome.result.losses.passed


def test_autocast_is_compared_after_bf16_weights_that_learn_worse(tmp_path: Path) -> None:
    outcome = run(world("bf16_master"), tmp_path, BUDGET_S)
    assert outcome.recipe.config.precision == "bf16_autocast"
    decisions = {one.name: one for one in outcome.result.changes}
    assert decisions["bf16-weights"].decision == "refused"
    assert "outside" in decisions["bf16-weights"].reason
    assert any("bf16 weights were dropped" in one for one in outcome.result.warnings)
    assert outcome.result.losses is not None and outcome.result.losses.passed


def test_the_arithmetic_is_kept_where_both_learn_worse(tmp_path: Path) -> None:
    outcome = run(world("bf16_master", "bf16_autocast"), tmp_path, BUDGET_S)
    assert outcome.recipe.config.precision == "fp32"
    assert any("bf16 was dropped" in one for one in outcome.result.warnings)


def test_a_step_that_diverges_keeps_its_arithmetic(tmp_path: Path) -> None:
    outcome = run(World(ceilings=CEILINGS, factors=FACTORS, diverges=True), tmp_path, BUDGET_S)
    assert outcome.recipe.config.precision == "fp32"
    assert any("loss is not finite" in one for one in outcome.result.warnings)


def test_what_is_special_of_a_step_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"uncompiled": ["GRU", "LSTM"], "own_step": True, "is_random": True, "loss": math.inf}
    described = simulated_turns.description
    monkeypatch.setattr(simulated_turns, "description", lambda: {**described(), **told})
    warnings = run(World(ceilings=CEILINGS, factors={}), tmp_path, BUDGET_S).result.warnings
    for words in ("nn.GRU, nn.LSTM", "draws random numbers", "the loss is inf"):
        assert sum(words in one for one in warnings) == 1
