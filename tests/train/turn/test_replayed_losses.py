"""Faults that a replayed graph of launches can have: no first step shows them, losses do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from ratchet.judge.steps.numerics import judge_losses
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.step import TrainingStep

SEEDS, STEPS, CAPTURED = 2, 50, 2
REPLAYED = StepConfig(compile_mode="reduce-overhead")

Function = Callable[..., Tensor]


@cache
def as_written() -> tuple[list[list[float]], Tensor]:
    return curves(StepConfig())


def curves(config: StepConfig) -> tuple[list[list[float]], Tensor]:
    """Return losses by seed, and the first step's gradient of one weight."""
    found = []
    for seed in range(SEEDS):
        workload = load("llama-tiny", seed=seed, batch_size=1, sequence=16)
        step = TrainingStep(workload, config)
        step.forward_backward(workload.batch(0))
        first = next(iter(step.gradients().values())).clone()
        for parameter in step.parameters.values():
            parameter.grad = None
        found.append([float(step(workload.batch(index))) for index in range(STEPS)])
    return found, first


def honest(function: Function, calls: int, kept: dict[str, Any], *given: Any) -> Tensor:
    return function(*given)


def old_batch(function: Function, calls: int, kept: dict[str, Any], *given: Any) -> Tensor:
    """Read the inputs where they lay when the graph was captured."""
    model, batch = given
    if calls <= CAPTURED:
        kept["batch"] = batch
    return function(model, kept["batch"])


def old_weights(function: Function, calls: int, kept: dict[str, Any], *given: Any) -> Tensor:
    """Read copies of the weights that the capture made."""
    model, batch = given
    if calls <= CAPTURED:
        kept["weights"] = {n: p.detach().clone() for n, p in model.named_parameters()}
        return function(model, batch)
    now = {name: one.detach().clone() for name, one in model.named_parameters()}
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.copy_(kept["weights"][name])
    loss = function(model, batch)
    torch.autograd.backward(loss)
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.copy_(now[name])
    return loss.detach().requires_grad_()


@pytest.mark.parametrize(
    ("replay", "passes"), [(honest, True), (old_batch, False), (old_weights, False)]
)
def test_a_replay_that_computes_something_else_fails_by_its_losses(
    replay: Any, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, exact = as_written()

    def compiled(function: Function, **options: Any) -> Function:
        calls, kept = 0, {}  # type: ignore[var-annotated]

        def call(*given: Any) -> Tensor:
            nonlocal calls
            calls += 1
            return replay(function, calls, kept, *given)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    found, first = curves(REPLAYED)
    assert torch.equal(first, exact), "the first step must not show it"
    check = judge_losses(baseline=written, candidate=found)
    assert check.passed == passes, check.detail
