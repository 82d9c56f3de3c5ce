"""Two passes of the same weights in one step have one arithmetic: PPO, GRPO and DPO divide them."""

from __future__ import annotations

import logging
from typing import Any

import own_recipes
import pytest
import torch
from torch import Tensor, nn

import ratchet
from ratchet.train.recipe import signature_of
from ratchet.train.workloads.config import StepConfig

Policy = tuple[nn.Module, torch.optim.Optimizer, list[float]]


class Tokens(nn.Module):
    """A policy with all that bf16 weights change: a table, a slice of a weight, products."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(64, 32), nn.Parameter(torch.randn(1, 64, 32))
        self.mix, self.head = nn.Linear(32, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        found = self.embedding(x) + self.place[:, : x.shape[1]]
        out: Tensor = self.head(nn.functional.gelu(self.mix(found)))
        return out


def policy(lr: float | Tensor = 0.0) -> Policy:
    torch.manual_seed(0)
    model = Tokens()
    return model, torch.optim.AdamW(model.parameters(), lr=lr), []


def logp(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().log_softmax(-1).gather(2, x[..., None])[..., 0]


def step_of(made: Policy, *, evaluates: bool = False) -> Any:
    model, optimizer, ratios = made

    def step(x: Tensor) -> Tensor:
        model.train(not evaluates)
        with torch.no_grad():
            old = logp(model, x)
        model.train()
        ratio = (logp(model, x) - old).exp()
        loss = (ratio * torch.linspace(-1, 1, x.shape[1])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ratios.append(float((ratio.detach() - 1).abs().max()))
        return loss.detach()

    return step


def recipe(model: nn.Module, **changes: Any) -> Any:
    config = StepConfig(optimizer=changes.pop("optimizer", "fused"), **changes)
    bf16 = "precision" in changes
    return own_recipes.recipe(config, model=signature_of(model), changes_arithmetic=bf16)


@pytest.mark.parametrize("precision", ["bf16_autocast", "bf16_master"])
@pytest.mark.parametrize("form", ["step", "model"])
def test_a_pass_without_gradients_computes_as_the_one_with_them(
    precision: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ratchet")
    made = policy()
    model, optimizer, ratios = made
    step, own = step_of(made), recipe(model, precision=precision)
    if form == "step":
        step = ratchet.compile(step, model, optimizer, recipe=own)
    else:
        ratchet.compile(model, optimizer=optimizer, recipe=own)
    for index in range(3):
        step(own_recipes.batch(index))
    assert ratios == [0.0, 0.0, 0.0]
    (said,) = caplog.messages
    assert said.endswith("stay as written: a loss that compares the two sees the difference")
    x = own_recipes.batch(0)
    exact = Tokens()
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model.eval()(x), exact.eval()(x)), "evaluation is the script's"
        lowered = model.train()(x)
    assert torch.equal(lowered, exact(x)) == (form == "step"), "outside of the step, and of a model"


def test_a_model_in_evaluation_mode_is_the_script_s_in_a_step_of_its_own() -> None:
    """The limit: a ratio against a pass in evaluation mode compares two arithmetics."""
    made = policy()
    model, optimizer, ratios = made
    own = recipe(model, precision="bf16_autocast")
    ratchet.compile(model, optimizer=optimizer, recipe=own)
    step_of(made, evaluates=True)(own_recipes.batch(0))
    assert ratios[0] > 0
    again = policy()
    step = ratchet.compile(step_of(again, evaluates=True), *again[:2], recipe=own)
    for index in range(2):
        step(own_recipes.batch(index))
    assert again[2] == [0.0, 0.0], "inside of a step the mode says nothing"


def test_a_region_without_gradients_inside_of_a_pass_reads_the_weights_themselves() -> None:
    class Edits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((4, 4), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.view(-1).clamp_(max=1.0)
            return x @ self.weight

    model = Edits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    own = own_recipes.recipe(
        StepConfig(precision="bf16_master"), model=signature_of(model), optimizer="SGD"
    )
    ratchet.compile(model, optimizer=optimizer, recipe=own)
    model(torch.ones(2, 4)).sum().backward()
    assert model.weight.max() == 1.0


@pytest.mark.parametrize("form", ["step", "model"])
def test_a_learning_rate_that_is_a_tensor_is_fused(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = policy(lr=torch.tensor(1e-2))
    model, optimizer, _ = made
    step, own = step_of(made), recipe(model, optimizer="fused")
    fused: list[bool | None] = []
    optimizer.register_step_pre_hook(lambda one, *_: fused.append(one.param_groups[0]["fused"]))
    with caplog.at_level(logging.WARNING, "ratchet"):
        if form == "step":
            step = ratchet.compile(step, model, optimizer, recipe=own)
        else:
            ratchet.compile(model, optimizer=optimizer, recipe=own)
        before = model.head.weight.detach().clone()
        for index in range(2):
            step(own_recipes.batch(index))
    assert not torch.equal(model.head.weight, before)
    assert fused[-1] and not caplog.messages
