"""A recipe's update behind the script's own optimizer: schedules and checkpoints go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from own_recipes import batch, make, step_of
from torch import nn

from ratchet.optimize.recipe.own_optimizer import install_optimizer
from ratchet.workloads.config import StepConfig

# torch's own, once a process, for fp32 norms of bf16 activations that are not compiled
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input:UserWarning")

CONFIGS = {
    "as written": StepConfig(),
    "fused": StepConfig(optimizer="fused"),
    "kernel": StepConfig(optimizer="kernel"),
    "masters": StepConfig(precision="bf16_master"),
    "kernel with masters": StepConfig(precision="bf16_master", optimizer="kernel"),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, then: Callable[[], Any]
) -> list[float]:
    step, losses = step_of(model, optimizer), []
    for index in steps:
        with torch.autocast("cpu", torch.bfloat16, enabled=model.head.weight.dtype != torch.float):
            losses.append(float(step(batch(index))))
        then()
    return losses


@every_config
@pytest.mark.parametrize("before", [True, False], ids=["made before", "made after"])
def test_a_schedule_goes_on(config: StepConfig, before: bool) -> None:
    """Made before the recipe or after it, torch has nothing to warn of."""
    model, optimizer = make()

    def schedule() -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    made = schedule() if before else None
    install_optimizer(model, optimizer, config)
    made = made or schedule()
    train(model, optimizer, range(3), made.step)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 / 8)
    assert int(next(iter(optimizer.state.values()))["step"]) == 3


@every_config
def test_a_checkpoint_goes_on_where_it_was_written(config: StepConfig) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = make()
        install_optimizer(model, optimizer, config)
        return model, optimizer

    model, optimizer = fresh()
    train(model, optimizer, range(3), int)
    weights, state = model.state_dict(), optimizer.state_dict()
    weights = {name: value.clone() for name, value in weights.items()}
    saved = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, state)
    expected = train(model, optimizer, range(3, 6), int)

    model, optimizer = fresh()
    train(model, optimizer, range(7, 9), int)
    model.load_state_dict(weights)
    optimizer.load_state_dict(saved)
    assert train(model, optimizer, range(3, 6), int) == expected
