"""A loop with accelerate, with and without Ratchet: a character model of Python source text.

python examples/train_accelerate.py                             train as written
python examples/train_accelerate.py --recipe recipe.json        train with a recipe
python examples/train_accelerate.py --resume FOLDER             go on from a saved state
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader

import ratchet

CHARACTERS = 128  # ASCII
LENGTH = 64


def rows(module: str) -> Tensor:
    """The source of a module of Python's library, cut into rows of characters."""
    text = (Path(os.__file__).parent / f"{module}.py").read_bytes()
    characters = torch.tensor([byte for byte in text if byte < CHARACTERS])
    return characters[: len(characters) // LENGTH * LENGTH].view(-1, LENGTH)


class NextCharacter(nn.Module):
    """characters int64 [batch, length] -> the loss of predicting each from those before it."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 8) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters[:, :-1])
        for layer, norm in zip(self.layers, self.norms, strict=True):
            past = F.pad(norm(x).transpose(1, 2), (7, 0))
            x = x + F.glu(layer(past), dim=1).transpose(1, 2)
        logits = self.head(x).flatten(0, 1).float()
        return F.cross_entropy(logits, characters[:, 1:].flatten())


def train(
    recipe: object = None,
    *,
    steps: int = 60,
    accumulate: int = 2,
    save: tuple[int, Path] | None = None,
    resume: Path | None = None,
    **settings: object,
) -> list[float]:
    """Train for `steps` updates and return each micro-batch's loss.

    `save` is a step and the folder for the state after it; `settings` are further arguments of
    Accelerator.
    """
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, **settings)
    model = NextCharacter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=2 * steps)
    data = DataLoader(rows("argparse"), batch_size=8, shuffle=True, drop_last=True)
    model, optimizer, schedule, data = accelerator.prepare(model, optimizer, schedule, data)
    if recipe is not None:
        ratchet.compile(model, optimizer=optimizer, recipe=recipe)
    if resume is not None:
        accelerator.load_state(str(resume))
    losses: list[float] = []
    while len(losses) < steps * accumulate:
        for batch in data:
            with accelerator.accumulate(model):
                loss = model(batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if save is not None and len(losses) == save[0] * accumulate:
                accelerator.save_state(str(save[1]))
            if len(losses) == steps * accumulate:
                break
    return losses


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", help="the recipe.json that `ratchet optimize` wrote")
    parser.add_argument("--resume", type=Path, help="a folder that an earlier run saved")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args(words)
    save = (given.steps, Path("accelerate-out"))
    losses = train(given.recipe, steps=given.steps, resume=given.resume, save=save)
    print(f"loss {losses[0]:.3f}, then {losses[-1]:.3f}; state in accelerate-out")


if __name__ == "__main__":
    main()
