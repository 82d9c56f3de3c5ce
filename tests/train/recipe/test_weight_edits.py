"""Whatever a script does to its weights outside the step holds under a recipe."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from own_recipes import Model, batch, make, recipe, step_of
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ratchet
from ratchet.train.workloads.config import StepConfig

CONFIGS = {
    "bf16 weights": StepConfig(precision="bf16_master"),
    "kernel": StepConfig(optimizer="kernel"),
    "both": StepConfig(precision="bf16_master", optimizer="kernel"),
}
COMPILED = msgspec.structs.replace(CONFIGS["both"], compile_mode="default")
TOLERANCE = 2e-3
"""Of a parameter's norm; a step moves it by about a hundredth."""


@pytest.fixture(autouse=True)
def composites(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' torch composites run: nothing is judged here."""
    monkeypatch.setattr(
        "ratchet.train.recipe.apply._with_kernels", lambda _, config, *a, **k: config
    )


Edit = Callable[[Model, torch.optim.Optimizer, Any], object]


def load_before_the_first_step(model: Model, _: Any, step: Any) -> None:
    torch.manual_seed(9)
    model.load_state_dict(Model().state_dict())
    step(batch(0))


def roll_back(model: Model, _: Any, step: Any) -> None:
    best = copy.deepcopy(model.state_dict())
    for index in range(3):
        step(batch(index))
    model.load_state_dict(best)
    step(batch(3))


def clamp(model: Model, _: Any, step: Any) -> None:
    for index in range(2):
        step(batch(index))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.05, 0.05)
    step(batch(2))


def clamp_data(model: Model, _: Any, step: Any) -> Tensor:
    step(batch(0))
    for parameter in model.parameters():
        parameter.data.clamp_(-0.05, 0.05)
    return step(batch(1))  # type: ignore[no-any-return]


def initialise_again(model: Model, _: Any, step: Any) -> None:
    step(batch(0))
    torch.manual_seed(5)
    model.head.reset_parameters()
    model.embedding.weight.data = torch.randn(64, 32)
    step(batch(1))


def average(model: Model, _: Any, step: Any) -> Tensor:
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for index in range(4):
        step(batch(index))
        averaged.update_parameters(model)
    return averaged.module.head.weight  # type: ignore[no-any-return]


def evaluate(model: Model, _: Any, step: Any) -> Tensor:
    step(batch(0))
    model.eval()
    with torch.no_grad():
        outside = model(batch(7))
    model.train()
    step(batch(1))
    return outside  # type: ignore[no-any-return]


def freeze_and_unfreeze(model: Model, _: Any, step: Any) -> Tensor:
    model.embedding.requires_grad_(False)
    step(batch(0))
    frozen = model.embedding.weight.clone()
    model.embedding.requires_grad_(True)
    step(batch(1))
    return frozen


def copy_the_model(model: Model, _: Any, step: Any) -> Tensor:
    step(batch(0))
    twin = copy.deepcopy(model)
    step(batch(1))
    return twin.head.weight


def tie(model: Model, _: Any, step: Any) -> None:
    model.head.weight = model.embedding.weight
    for index in range(2):
        step(batch(index))


def share_a_flat_vector(model: Model, _: Any, step: Any) -> Tensor:
    step(batch(0))
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, model.parameters())
    return step(batch(1))  # type: ignore[no-any-return]


EDITS: list[Edit] = [
    load_before_the_first_step,
    roll_back,
    clamp,
    clamp_data,
    initialise_again,
    average,
    evaluate,
    freeze_and_unfreeze,
    copy_the_model,
    tie,
    share_a_flat_vector,
]


def run(edit: Edit, config: StepConfig | None) -> tuple[object, dict[str, Tensor]]:
    model, _ = make()
    # A large eps: Adam would magnify the rounding of a tiny gradient to a whole step.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-1, eps=0.1)
    step = step_of(model, optimizer)
    if config is not None:
        step = ratchet.compile(step, model, optimizer, recipe=recipe(config, kernels=()))
    seen = edit(model, optimizer, step)
    return seen, model.state_dict()


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input:UserWarning")
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_edit_holds(edit: Edit, config: StepConfig) -> None:
    holds(edit, config)


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_edits_hold_where_the_step_is_compiled() -> None:
    holds(clamp, COMPILED)


def holds(edit: Edit, config: StepConfig) -> None:
    (expected, weights), (found, trained) = run(edit, None), run(edit, config)
    assert {value.dtype for value in trained.values()} == {torch.float32}
    for name, value in weights.items():
        assert (trained[name] - value).norm() < TOLERANCE * value.norm(), name
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
