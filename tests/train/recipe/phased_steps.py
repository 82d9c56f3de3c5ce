"""Training scripts whose models, optimizers or losses change as they train."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from own_steps import Script, adamw, batch, loss_of, net, only_a_batch, trained
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize


def updates_by_hand() -> Script:
    """The last layer has a momentum of the script's own, and its gradients are dropped by name."""
    model = net()
    head = list(model[3].parameters())
    optimizer = torch.optim.AdamW([*model[0].parameters(), *model[1].parameters()], lr=1e-2)
    moving = [torch.zeros_like(one) for one in head]

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for parameter, kept in zip(head, moving, strict=True):
                assert parameter.grad is not None
                kept.mul_(0.9).add_(parameter.grad)
                parameter -= 0.05 * kept
                parameter.grad = None
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def with_new_optimizers(model: nn.Module, first: Any, between: Any) -> Script:
    """`between` returns the optimizer that takes the last one's place, or None."""
    now = first

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        now.step()
        now.zero_grad()
        return loss.detach()

    def change(index: int) -> None:
        nonlocal now
        now = between(index) or now

    return Script(model, first, step, only_a_batch, change)


def starts_a_second_phase() -> Script:
    """A frozen layer thaws, and another optimizer trains all of them."""
    model = net()
    model[0].requires_grad_(False)
    first = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)

    def between(index: int) -> Any:
        if index == 2:
            model[0].requires_grad_(True)
            return torch.optim.AdamW(model.parameters(), lr=1e-3)
        return None

    return with_new_optimizers(model, first, between)


def removes_weight_norm() -> Script:
    model = net()
    parametrizations.weight_norm(model[0])

    def between(index: int) -> Any:
        if index == 2:
            parametrize.remove_parametrizations(model[0], "weight")
            return adamw(model)
        return None

    return with_new_optimizers(model, adamw(model), between)


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.merged = base.requires_grad_(False), False
        self.down = nn.Parameter(torch.randn(2, base.in_features) / 4)
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out if self.merged else out + x @ self.down.T @ self.up.T

    def merge(self, sign: int) -> None:
        self.base.weight.data += sign * (self.up @ self.down).data
        self.merged = sign > 0


def merges_adapters() -> Script:
    """For an evaluation between two steps."""
    model = net()
    model[0] = Adapted(model[0])
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    inner, found = trained(model, optimizer), 0.0

    def evaluate(_: int) -> None:
        nonlocal found
        model[0].merge(1)
        with torch.no_grad():
            found = float(loss_of(model, batch(50)))
        model[0].merge(-1)

    return Script(model, optimizer, lambda x: inner(x) + found, only_a_batch, evaluate)


def rolls_out() -> Script:
    """Draws words from the model without gradients, and rewards some of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 16), nn.Tanh(), nn.Linear(16, 12))
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        ids = (x[:, :1].abs() * 10).long() % 12
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                chances = model(ids[:, -1:])[:, -1].softmax(-1)
                ids = torch.cat([ids, torch.multinomial(chances, 1)], 1)
        model.train()
        reward = (ids[:, 1:] % 3 == 0).float()
        chosen = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = -(chosen * (reward - reward.mean())).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def weighs_its_tasks() -> Script:
    """By trained weights that are no part of the model."""
    model, weights = net(), nn.Parameter(torch.zeros(2))
    groups = [{"params": model.parameters()}, {"params": [weights], "lr": 1e-1}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)

    def step(x: Tensor) -> Tensor:
        out = model(x)
        first = F.cross_entropy(out[:, :2], x[:, :2].argmax(1))
        losses = torch.stack([first, F.mse_loss(out[:, 2:], x[:, :2])])
        loss = (torch.exp(-weights) * losses + weights).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach() + weights.detach().sum()

    return Script(model, optimizer, step, only_a_batch)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return -ctx.share * gradient, None


def reverses_gradients() -> Script:
    """A domain's loss, whose share grows; hooks bound and halve gradients."""
    model = net()
    model.append(nn.Linear(4, 2))
    optimizer, steps = adamw(model), 0
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
    model[3].register_full_backward_hook(
        lambda _, given, __: tuple(one if one is None else one / 2 for one in given)
    )

    def step(x: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        out = model[:4](x)
        domain = model[4](Reversed.apply(out, 2 / (1 + math.exp(-steps / 5)) - 1))
        loss = F.cross_entropy(out, x[:, :4].argmax(1)) + F.cross_entropy(domain, x[:, 0].gt(0) * 1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(ids).tanh())
        return out


def grows_its_table() -> Script:
    """New words get rows of a tied table, which is another parameter then."""
    model = Tied()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        ids = (x.abs() * 5).long() % 10
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.roll(1, 1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def grow(index: int) -> None:
        if index == 2:
            old = model.table.weight
            new = nn.Parameter(torch.cat([old.data, torch.full((2, 8), 0.1)]))
            model.table.weight = model.head.weight = new
            optimizer.param_groups[0]["params"] = [new]
            optimizer.state.pop(old)

    return Script(model, optimizer, step, only_a_batch, grow)
