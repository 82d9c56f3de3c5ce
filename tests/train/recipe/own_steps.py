"""Training steps as people write them, on tiny models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Script:
    model: nn.Module
    optimizer: Any
    """An optimizer, or several as people hold them."""
    step: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    between: Callable[[int], Any] = lambda _: None
    """Runs after the step of this number."""


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4))


def batch(index: int, rows: int = 6) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(index))


def only_a_batch(index: int) -> tuple[Any, ...]:
    return (batch(index),)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), x[:, :4].argmax(1))


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def trained(
    model: nn.Module, optimizer: Any, around: Callable[..., Any] = lambda *_: None
) -> Callable[..., Tensor]:
    def step(x: Tensor, *more: Any) -> Tensor:
        around(optimizer, *more)
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def plain() -> Script:
    model = net()
    optimizer = adamw(model)
    return Script(model, optimizer, trained(model, optimizer), only_a_batch)


def sets_the_rate() -> Script:
    def half(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 5e-3

    model = net()
    optimizer = adamw(model)
    return Script(model, optimizer, trained(model, optimizer, half), only_a_batch)


def rate_as_an_argument() -> Script:
    def to(optimizer: Any, rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate

    model = net()
    optimizer = adamw(model)
    step = trained(model, optimizer, to)
    return Script(model, optimizer, step, lambda i: (batch(i), 1e-2 * (1 - i / 20)))


def scale_as_a_tensor() -> Script:
    """A number that changes from call to call, passed as the warning on numbers says."""
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor, scale: Tensor) -> Tensor:
        loss = loss_of(model, x) * (1 - scale / 20)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, lambda i: (batch(i), torch.tensor(i)))


def schedule_in_the_step() -> Script:
    model = net()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / 20)
    inner = trained(model, optimizer)

    def step(x: Tensor) -> Tensor:
        loss = inner(x)
        schedule.step()
        return loss

    return Script(model, optimizer, step, only_a_batch)


def counts() -> Script:
    model = net()
    optimizer = adamw(model)
    calls = 0

    def step(x: Tensor) -> Tensor:
        nonlocal calls
        loss = loss_of(model, x) / 3
        loss.backward()
        calls += 1
        if calls % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach() * 3

    return Script(model, optimizer, step, only_a_batch)


def counts_in_a_dict() -> Script:
    model = net()
    optimizer = adamw(model)
    state = {"calls": 0, "words": ["a"]}

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        state["calls"] += 1  # type: ignore[operator]
        if state["calls"] % 2 == 0:  # type: ignore[operator]
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def keeps_losses() -> Script:
    model = net()
    optimizer = adamw(model)
    inner = trained(model, optimizer)
    losses: list[float] = []

    def step(x: Tensor) -> float:
        losses.append(inner(x).item())
        return sum(losses) / len(losses)

    return Script(model, optimizer, step, only_a_batch)


def takes_numbers() -> Script:
    """Its loss is read between the forward and the backward pass, and told."""
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> float:
        loss = loss_of(model, x)
        told = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return told

    return Script(model, optimizer, step, only_a_batch)


def keeps_tensors() -> Script:
    """What grows is no number, so only torch.compile can tell."""
    model = net()
    optimizer = adamw(model)
    inner = trained(model, optimizer)
    losses: list[Tensor] = []

    def step(x: Tensor) -> Tensor:
        losses.append(inner(x))
        return torch.stack(losses).mean()

    return Script(model, optimizer, step, only_a_batch)


def told_when_to_update() -> Script:
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor, update: bool) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, lambda i: (batch(i), i % 2 == 1))


def accumulates_in_a_loop() -> Script:
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> float:
        total = 0.0
        for part in x.chunk(2):
            loss = loss_of(model, part) / 2
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Script(model, optimizer, step, only_a_batch)


def gan() -> Script:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "maker": nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh()),
            "critic": nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
        }
    )
    maker, critic = model["maker"], model["critic"]
    first, second = adamw(maker), adamw(critic)

    def step(x: Tensor) -> Tensor:
        made = maker(x[:, :4])
        loss = critic(made.detach()).mean() - critic(x).mean()
        loss.backward()
        second.step()
        second.zero_grad()
        (-critic(made)).mean().backward()
        first.step()
        first.zero_grad()
        return loss.detach()

    return Script(model, {"maker": first, "critic": second}, step, only_a_batch)


def keeps_its_graph() -> Script:
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        out = model(x)
        (out.pow(2).mean() / 10).backward(retain_graph=True)
        loss = F.cross_entropy(out, x[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def penalises_its_gradient() -> Script:
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        loss = loss_of(model, x)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + gradient.pow(2).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def closure() -> Script:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def step(x: Tensor) -> Tensor:
        def again() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            return loss

        found: Tensor = optimizer.step(again)
        return found.detach()

    return Script(model, optimizer, step, only_a_batch)


def evaluates() -> Script:
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode():  # of which torch traces no slice
            return loss.detach() + x[:, :4].argmax(1).float().mean()

    return Script(model, optimizer, step, only_a_batch)


class Descent(torch.optim.Optimizer):
    """An optimizer of one's own whose step takes no closure."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    seen = self.state[parameter].setdefault("seen", torch.zeros_like(parameter))
                    seen.lerp_(parameter.grad, 0.5)
                    parameter.sub_(seen, alpha=group["lr"])


class OwnAdamW(torch.optim.AdamW):
    """A subclass of torch's."""


def own_optimizer() -> Script:
    model = net()
    optimizer = Descent(model.parameters())
    return Script(model, optimizer, trained(model, optimizer), only_a_batch)


def subclass() -> Script:
    model = net()
    optimizer = OwnAdamW(model.parameters(), lr=1e-2)
    return Script(model, optimizer, trained(model, optimizer), only_a_batch)


def two_optimizers() -> Script:
    """The second is not given to Ratchet."""
    model = net()
    matrices = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() < 2]
    first, second = Descent(matrices), torch.optim.AdamW(others, lr=1e-2)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        first.step()
        second.step()
        model.zero_grad()
        return loss.detach()

    return Script(model, first, step, only_a_batch)


def noise_and_an_average() -> Script:
    """Its own generator, and an average of the weights that the step updates."""
    model = net()
    optimizer = adamw(model)
    generator = torch.Generator().manual_seed(5)
    average = [one.detach().clone() for one in model.parameters()]

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x + torch.randn(x.shape, generator=generator) / 10)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, now in zip(average, model.parameters(), strict=True):
                kept.lerp_(now, 0.1)
        return loss.detach() + average[0].mean()

    return Script(model, optimizer, step, only_a_batch)


def noise() -> Script:
    """From torch's default generator; the model drops nothing out."""
    model = net()
    optimizer = adamw(model)
    inner = trained(model, optimizer)

    def step(x: Tensor) -> Tensor:
        return inner(x + torch.randn_like(x) / 10)

    return Script(model, optimizer, step, only_a_batch)


def normalises_its_batch() -> Script:
    """In place."""
    model = net()
    optimizer = adamw(model)
    inner = trained(model, optimizer)

    def step(x: Tensor) -> Tensor:
        return inner(x.sub_(0.5).div_(0.8))

    return Script(model, optimizer, step, only_a_batch)


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def recomputes(reentrant: bool = False) -> Script:
    model = Recomputed(reentrant)
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x.requires_grad_())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def recomputes_reentrantly() -> Script:
    return recomputes(True)


def scales_and_varies() -> Script:
    """A GradScaler, autocast, and batches of three lengths."""
    model = net()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, lambda i: (batch(i, 4 + i % 3),))


def recurrent() -> Script:
    torch.manual_seed(0)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LSTM(8, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x.unsqueeze(1))[0].squeeze(1)
            return out

    model = Recurrent()
    optimizer = adamw(model)
    return Script(model, optimizer, trained(model, optimizer), only_a_batch)
