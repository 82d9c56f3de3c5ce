"""A plain loop with everything in it, with and without Ratchet: a character model of Python source.

    python examples/train_loop.py                                   train as written
    python examples/train_loop.py --recipe recipe.json              train with a recipe
    python examples/train_loop.py --resume loop-out.pt              go on from a checkpoint

Gradient accumulation, autocast with a GradScaler, clipping, a schedule, an average of the weights
(EMA), evaluation in the middle, checkpoints.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ratchet

CHARACTERS = 128  # ASCII
LENGTH = 64
STEPS = 60
ACCUMULATE = 4


def rows(module: str) -> Tensor:
    """The source of a module of Python's library, cut into rows of characters."""
    text = (Path(os.__file__).parent / f"{module}.py").read_bytes()
    characters = torch.tensor([byte for byte in text if byte < CHARACTERS])
    return characters[: len(characters) // LENGTH * LENGTH].view(-1, LENGTH)


class NextCharacter(nn.Module):
    """characters int64 [batch, length] -> logits [batch, length, CHARACTERS]."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 8) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            past = F.pad(norm(x).transpose(1, 2), (7, 0))
            x = x + F.glu(layer(past), dim=1).transpose(1, 2)
        return self.head(x)


def loss_of(model: nn.Module, characters: Tensor) -> Tensor:
    logits = model(characters[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), characters[:, 1:].flatten())


@dataclass
class Run:
    """Everything that a run keeps: `state` is what a checkpoint holds."""

    scale: float = 2.0**10
    """Where the loss scale starts; 0 trains in fp32, without autocast and scaler."""
    fused: bool = False
    done: int = 0
    model: NextCharacter = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = NextCharacter()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, fused=self.fused)
        self.schedule = torch.optim.lr_scheduler.LinearLR(
            self.optimizer, 1.0, 0.1, total_iters=STEPS
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale or 1.0, growth_interval=20)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.data, self.held_out = rows("argparse"), rows("bisect")

    def state(self) -> dict[str, Any]:
        parts = (self.model, self.optimizer, self.schedule, self.scaler, self.average)
        return {"parts": [part.state_dict() for part in parts], "done": self.done}

    def load_state(self, state: dict[str, Any]) -> None:
        parts = (self.model, self.optimizer, self.schedule, self.scaler, self.average)
        for part, saved in zip(parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self.done = state["done"]

    def micro_batches(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.done)
        chosen = torch.randint(len(self.data), (ACCUMULATE, 8), generator=generator)
        return [self.data[rows] for rows in chosen]

    def step(self, micro_batches: list[Tensor]) -> Tensor:
        """One update: the losses of all micro-batches, backward, clip, step, average."""
        total = torch.zeros(())
        for characters in micro_batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.scale > 0):
                loss = loss_of(self.model, characters) / len(micro_batches)
            self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.model)
        self.done += 1
        return total

    @torch.no_grad()
    def evaluate(self) -> float:
        """The average's loss on text that was held out."""
        self.average.eval()
        return loss_of(self.average, self.held_out).item()


def train(run: Run, recipe: object = None, steps: int = STEPS) -> list[float]:
    """Train until `steps` updates are done, and return their losses."""
    step = run.step
    if recipe is not None:
        step = ratchet.compile(step, run.model, run.optimizer, recipe=recipe)
    losses = []
    while run.done < steps:
        losses.append(step(run.micro_batches()).item())
        if run.done % 20 == 0 or run.done == steps:
            print(f"step {run.done:3d}  loss {losses[-1]:.3f}  held out {run.evaluate():.3f}")
    return losses


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", help="the recipe.json that `ratchet optimize` wrote")
    parser.add_argument("--resume", type=Path, help="a checkpoint that an earlier run saved")
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args(words)
    run = Run()
    if given.resume is not None:
        run.load_state(torch.load(given.resume))
    train(run, given.recipe, steps=run.done + given.steps)
    torch.save(run.state(), "loop-out.pt")


if __name__ == "__main__":
    main()
