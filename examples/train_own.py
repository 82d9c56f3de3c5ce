"""A model of your own, with and without Ratchet: a character-level convolution mixer.

    python examples/train_own.py                       train as written
    ratchet optimize examples/train_own.py:make_workload
    python examples/train_own.py recipe.json           train with what was proven

It learns the characters of the Python source files that come with the interpreter.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ratchet

CHARACTERS = 128  # ASCII
SOURCES = ("argparse", "ast", "datetime", "decimal", "doctest", "inspect", "tarfile", "typing")
LEARNING_RATE = 2e-3


class Block(nn.Module):
    """A causal depthwise convolution over time, then a gated network over channels."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.time_norm = nn.LayerNorm(width)
        self.time = nn.Conv1d(width, width, kernel, groups=width)
        self.channel_norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 3 * width)
        self.value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        past = F.pad(self.time_norm(x).transpose(1, 2), (self.kernel - 1, 0))
        x = x + self.time(past).transpose(1, 2)
        y = self.channel_norm(x)
        return x + self.out(F.silu(self.gate(y)) * self.value(y))


class CharacterMixer(nn.Module):
    """characters int64 [batch, length] -> logits [batch, length, CHARACTERS]."""

    def __init__(self, width: int = 256, depth: int = 6, kernel: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, width)
        self.blocks = nn.ModuleList(Block(width, kernel) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_characters() -> Tensor:
    """The sources as one row of character codes."""
    folder = Path(os.__file__).parent
    text = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in SOURCES)
    return torch.tensor(list(text.encode("ascii", errors="ignore")))


class Batches:
    """index -> (characters, next characters), each [batch_size, length]; the same each time."""

    def __init__(self, batch_size: int = 8, length: int = 256, seed: int = 0) -> None:
        self.characters = read_characters()
        self.batch_size, self.length, self.seed = batch_size, length, seed

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        last = len(self.characters) - self.length - 1
        starts = torch.randint(last, (self.batch_size, 1), generator=generator)
        window = self.characters[starts + torch.arange(self.length + 1)]
        return window[:, :-1], window[:, 1:]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    characters, following = batch
    logits = model(characters)
    return F.cross_entropy(logits.view(-1, CHARACTERS).float(), following.reshape(-1))


def make_optimizer(parameters) -> torch.optim.Optimizer:  # type: ignore[no-untyped-def]
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE)


def make_workload() -> ratchet.Workload:
    """What `ratchet optimize examples/train_own.py:make_workload` calls."""
    return ratchet.Workload(
        name="train_own",
        model=CharacterMixer(),
        loss=loss_of,
        batch=Batches(),
        optimizer=make_optimizer,
        clip_norm=1.0,
        tokens_per_batch=8 * 256,
        shrink=make_small_workload,
    )


def make_small_workload(seed: int) -> ratchet.Workload:
    """A small copy, on which losses of many steps are compared."""
    torch.manual_seed(seed)
    return ratchet.Workload(
        name="train_own-small",
        model=CharacterMixer(width=64, depth=2, kernel=8),
        loss=loss_of,
        batch=Batches(batch_size=8, length=64, seed=seed),
        optimizer=make_optimizer,
        clip_norm=1.0,
        tokens_per_batch=8 * 64,
    )


def main(recipe: str | None = None, steps: int = 100) -> None:
    """The training loop as anyone writes it; a recipe replaces one function by another."""
    torch.manual_seed(0)
    model, batches = CharacterMixer(), Batches()
    optimizer = make_optimizer(model.parameters())

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if recipe is not None:
        step = ratchet.compile(step, model, optimizer, recipe=recipe)

    start_s = time.perf_counter()
    for index in range(steps):
        loss = step(batches(index))
        if index % 10 == 0:
            print(f"step {index:4d}  loss {loss.item():.3f}  {time.perf_counter() - start_s:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:2])
