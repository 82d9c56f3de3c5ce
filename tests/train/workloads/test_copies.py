"""bf16 copies of fp32 weights: forward reads them, updates write them, nobody else sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from ratchet.judge.kernels.library.adamw import step_adamw
from ratchet.train.graph.steps import build_step
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.lowered import WeightCopies

WEIGHTS = StepConfig(precision="bf16_master")


def layer() -> tuple[nn.Linear, WeightCopies]:
    torch.manual_seed(0)
    made = nn.Linear(8, 8)
    return made, WeightCopies(made)


def forward(model: nn.Linear, copies: WeightCopies) -> torch.Tensor:
    with copies.in_place(), torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(4, 8)).float().square().mean()
        loss.backward()
    return loss.detach()


def test_modules_hold_copies_within_and_parameters_without() -> None:
    model, copies = layer()
    weight, bias = model.weight, model.bias
    with copies.in_place():
        assert model.weight is not weight and model.weight.dtype == torch.bfloat16
        assert torch.equal(model.weight, weight.bfloat16())
        assert model.bias is bias
    assert model.weight is weight and weight.dtype == torch.float32
    with pytest.raises(RuntimeError, match="stop"), copies.in_place():
        raise RuntimeError("stop")
    assert model.weight is weight


def test_gradients_arrive_in_the_copies_and_are_handed_over_in_fp32() -> None:
    model, copies = layer()
    for _ in range(2):
        forward(model, copies)
        assert model.weight.grad is None or model.weight.grad.dtype == torch.float32
        copies.hand_over()
    copy = copies.read_by(model.weight)
    assert copy.grad is None and model.weight.grad is not None
    once, twice = nn.Linear(8, 8), model.weight.grad
    once.load_state_dict(model.state_dict())
    once(torch.ones(4, 8)).square().mean().backward()
    assert once.weight.grad is not None
    assert (twice - 2 * once.weight.grad).norm() < 0.02 * twice.norm()


@pytest.mark.parametrize("edit", ["load", "clamp", "data", "new memory"])
def test_an_edit_reaches_the_copy(edit: str) -> None:
    model, copies = layer()
    forward(model, copies)
    with torch.no_grad():
        if edit == "load":
            model.load_state_dict({"weight": torch.eye(8), "bias": torch.zeros(8)})
        elif edit == "clamp":
            model.weight.clamp_(-0.1, 0.1)
        elif edit == "data":
            model.weight.data = torch.eye(8)
        else:
            model.weight.set_(torch.eye(8))
    with copies.in_place():
        read = model.weight.detach().clone()
    assert torch.equal(read, model.weight.bfloat16())


def test_an_update_steps_the_weight_and_rounds_it_into_the_copy() -> None:
    model, copies = layer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    before = model.weight.detach().clone()
    for _ in range(20):
        forward(model, copies)
        step_adamw(optimizer, copies=copies, clip_norm=1.0, gradients="drop")
    copy = copies.read_by(model.weight)
    assert copy.grad is None and model.weight.grad is None
    moved = (model.weight.detach() - before).abs()
    assert 1e-4 < float(moved.mean()) < 3e-4, "twenty steps of 1e-5, each below bf16's resolution"
    assert torch.equal(copy, model.weight.bfloat16())
    assert set(optimizer.state[model.weight]) == {"step", "exp_avg", "exp_avg_sq"}


def test_a_setting_that_only_torch_knows_steps_the_weights_too() -> None:
    model, copies = layer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    losses = []
    for _ in range(3):
        losses.append(float(forward(model, copies)))
        step_adamw(optimizer, copies=copies, gradients="drop")
    assert losses == sorted(losses, reverse=True) and losses[2] < losses[0]


def test_a_gradient_that_the_kernel_does_not_take_is_not_lost() -> None:
    """torch's AdamW takes no sparse gradient either, and says so."""
    table = nn.Embedding(16, 8, sparse=True)
    copies = WeightCopies(table)
    optimizer = torch.optim.AdamW(table.parameters())
    with copies.in_place():
        table(torch.arange(4)).float().sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradients"):
        step_adamw(optimizer, copies=copies)


@pytest.mark.parametrize("optimizer", ["as_written", "fused", "kernel"])
def test_a_step_on_copies_trains_the_fp32_weights(optimizer: str) -> None:
    """The same losses as autocast, and a tied weight stays one weight."""
    losses = {}
    for precision in ("bf16_autocast", "bf16_master"):
        workload = load("gpt2-tiny")
        config = StepConfig(precision=precision, optimizer=optimizer)
        step = build_step(workload, config)
        losses[precision] = [float(step(workload.batch(index))) for index in range(4)]
        assert {parameter.dtype for parameter in step.parameters.values()} == {torch.float32}
        assert workload.model.head.weight is workload.model.embedding.weight
    assert losses["bf16_master"] == pytest.approx(losses["bf16_autocast"], rel=5e-3)


@pytest.mark.parametrize("optimizer", ["as_written", "kernel"])
def test_a_step_s_gradients_are_found_wherever_they_are(optimizer: str) -> None:
    workload = load("llama-tiny")
    exact = build_step(load("llama-tiny"), StepConfig())
    step = build_step(workload, StepConfig(precision="bf16_master", optimizer=optimizer))
    for one in (exact, step):
        one.forward_backward(workload.batch(0))
    expected = exact.gradients()
    for name, gradient in step.gradients().items():
        apart = (gradient.float() - expected[name]).norm()
        assert apart < 0.05 * expected[name].norm() + 1e-6, name


def test_a_step_that_accumulates_sums_in_fp32() -> None:
    workload = replace(load("llama-tiny"), accumulate=2)
    step = build_step(workload, WEIGHTS)
    assert step.copies is None
    step.forward_backward([workload.batch(0), workload.batch(1)])
    assert {gradient.dtype for gradient in step.gradients().values()} == {torch.float32}
