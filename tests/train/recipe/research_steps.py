"""Training steps of research code, on tiny models: teachers, perturbed weights, inner loops."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from own_steps import Script, adamw, batch, loss_of, net, only_a_batch, trained
from torch import Tensor, nn


def distils() -> Script:
    """A student learns from a moving average of itself."""
    model = net()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        loss = F.mse_loss(model(x + 0.1), wanted) + 0.1 * loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.3)
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def perturbs_its_weights() -> Script:
    """Sharpness-aware: gradients are taken where the loss is worst nearby."""
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        moved = []
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                moved.append(0.05 * parameter.grad / (parameter.grad.norm() + 1e-12))
                parameter.add_(moved[-1])
        optimizer.zero_grad()
        loss_of(model, x).backward()
        with torch.no_grad():
            for parameter, by in zip(model.parameters(), moved, strict=True):
                parameter.sub_(by)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def learns_to_learn() -> Script:
    """The loss after one inner update, whose gradient is not differentiated again."""
    model = net()
    optimizer = adamw(model)

    def loss_with(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), x[:, :4].argmax(1))

    def step(x: Tensor) -> Tensor:
        weights = dict(model.named_parameters())
        gradients = torch.autograd.grad(loss_with(weights, x), list(weights.values()))
        fast = {
            name: weight - 0.1 * gradient
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
        loss = loss_with(fast, x.flip(0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def sets_its_gradients() -> Script:
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = 0.5 * gradient
        optimizer.step()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def updates_in_backward() -> Script:
    model = net()
    own = {one: torch.optim.AdamW([one], lr=1e-2) for one in model.parameters()}

    def update(parameter: nn.Parameter) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(update)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        return loss.detach()

    return Script(
        model, {str(place): one for place, one in enumerate(own.values())}, step, only_a_batch
    )


class Centred(nn.Module):
    """Subtracts a running mean, and counts its calls."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.calls = nn.Linear(8, 4), 0
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.calls += 1
        return self.linear(x - self.mean)


def moves_a_buffer() -> Script:
    model = Centred()
    optimizer = adamw(model)
    return Script(model, optimizer, trained(model, optimizer), only_a_batch)


def thaws_a_group() -> Script:
    """The last layers join the optimizer at the third step."""
    model = net()
    parameters, steps = list(model.parameters()), 0
    optimizer = torch.optim.AdamW(parameters[:2], lr=1e-2)

    def step(x: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == 3:
            optimizer.add_param_group({"params": parameters[2:], "lr": 5e-3, "weight_decay": 0.0})
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def goes_back() -> Script:
    """The fourth step loads what the second left."""
    model = net()
    optimizer = adamw(model)
    inner, kept = trained(model, optimizer), {}
    steps = 0

    def step(x: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        loss = inner(x)
        if steps == 2:
            kept["model"] = copy.deepcopy(model.state_dict())
            kept["optimizer"] = copy.deepcopy(optimizer.state_dict())
        if steps == 4:
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
        return loss

    return Script(model, optimizer, step, only_a_batch)


def scales_fp16() -> Script:
    model = net()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def takes_a_dictionary() -> Script:
    model = net()
    optimizer = adamw(model)

    def step(given: dict[str, Any]) -> Tensor:
        loss = F.cross_entropy(model(given["x"]), given["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def row(index: int) -> tuple[Any, ...]:
        x = batch(index)
        return ({"x": x, "y": x[:, :4].argmax(1), "name": f"row {index}"},)

    return Script(model, optimizer, step, row)
