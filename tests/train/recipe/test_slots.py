"""A recipe's update behind the script's own optimizer: torch's contract holds."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from own_recipes import batch, make, step_of
from torch import Tensor, nn
from torch.optim import Optimizer

from ratchet.base.errors import KernelError
from ratchet.train.recipe.slots import update_slot
from ratchet.train.workloads.config import StepConfig

CONFIGS = {
    "as written": StepConfig(),
    "fused": StepConfig(optimizer="fused"),
    "kernel": StepConfig(optimizer="kernel"),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
KERNEL = CONFIGS["kernel"]


def install_update(optimizer: Optimizer, config: StepConfig) -> None:
    """Make an optimizer update as the recipe says from now on."""
    if (slot := update_slot(optimizer, config)) is not None:
        slot.fill()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, then: Callable[[], Any]
) -> list[float]:
    step, losses = step_of(model, optimizer), []
    for index in steps:
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
    install_update(optimizer, config)
    made = made or schedule()
    train(model, optimizer, range(3), made.step)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 / 8)
    assert int(next(iter(optimizer.state.values()))["step"]) == 3


@every_config
@pytest.mark.parametrize("into", ["recipe", "plain"])
def test_a_checkpoint_goes_on_where_it_was_written(config: StepConfig, into: str) -> None:
    """Under the recipe or without it; a script that is ahead can go back, too."""
    model, optimizer = make()
    install_update(optimizer, config)
    train(model, optimizer, range(3), int)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = train(model, optimizer, range(3, 6), int)

    model, optimizer = make()
    if into == "recipe":
        install_update(optimizer, config)
    train(model, optimizer, range(7, 9), int)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    found = train(model, optimizer, range(3, 6), int)
    assert found == expected if into == "recipe" else found == pytest.approx(expected, rel=1e-5)


@every_config
def test_hooks_run_once_a_step(config: StepConfig) -> None:
    model, optimizer = make()
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    install_update(optimizer, config)
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, optimizer, range(2), int)
    assert calls == ["before", "after"] * 2


@every_config
def test_gradients_are_there_after_the_step(config: StepConfig) -> None:
    model, optimizer = make()
    install_update(optimizer, config)
    nn.functional.cross_entropy(model(batch(0)).view(-1, 64), batch(0).view(-1)).backward()
    before = [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    optimizer.step()
    for parameter, (gradient, value) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient and torch.equal(gradient, value)
    optimizer.zero_grad(set_to_none=False)
    for parameter, (gradient, _) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient and not gradient.any()


@every_config
def test_an_optimizer_is_saved_and_copied_as_itself(config: StepConfig) -> None:
    model, optimizer = make()
    install_update(optimizer, config)
    train(model, optimizer, range(1), int)
    torch.save({"model": model, "optimizer": optimizer}, io.BytesIO())
    twin, twins_optimizer = copy.deepcopy((model, optimizer))
    kept = model.head.weight.clone()
    train(twin, twins_optimizer, range(1), int)
    assert torch.equal(model.head.weight, kept) and not torch.equal(twin.head.weight, kept)


@every_config
def test_a_closure_is_called_with_gradients(config: StepConfig) -> None:
    model, optimizer = make()
    install_update(optimizer, config)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch(0)).view(-1, 64), batch(0).view(-1))
        loss.backward()
        return loss.detach()

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert float(second) < float(first)


def test_a_step_that_takes_no_closure() -> None:
    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad, alpha=0.1)

    model, _ = make()
    optimizer = Own(model.parameters(), {})
    install_update(optimizer, StepConfig())
    losses = train(model, optimizer, range(3), int)
    assert losses[2] < losses[0]


@every_config
def test_a_grad_scaler_scales_and_skips(config: StepConfig) -> None:
    """With its own `unscale_`, and with a fused optimizer, which unscales by itself."""
    found = []
    for installed in (False, True):
        model, _ = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        if installed:
            install_update(optimizer, config)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for index in range(4):
            loss = nn.functional.cross_entropy(
                model(batch(index)).view(-1, 64), batch(index).view(-1)
            )
            scaler.scale(loss * (float("inf") if index == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        found.append((model.head.weight.clone(), scaler.get_scale()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_complex_and_double_weights_keep_their_values() -> None:
    for dtype in (torch.complex64, torch.float64):
        found = []
        for installed in (False, True):
            torch.manual_seed(0)
            layer = nn.Linear(4, 4, dtype=dtype)
            optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
            if installed:
                install_update(optimizer, KERNEL)
            for _ in range(3):
                layer(torch.ones(2, 4, dtype=dtype)).abs().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append(layer.weight.detach())
        assert torch.equal(*found)


def test_the_kernel_is_for_torch_s_adamw_alone() -> None:
    model, _ = make()
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(KernelError, match="cannot step a Adam: use torch"):
        install_update(optimizer, KERNEL)
    assert "step" not in vars(optimizer)
