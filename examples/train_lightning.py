"""A LightningModule, with and without Ratchet: a character model of Python source text.

python examples/train_lightning.py                              train as written
python examples/train_lightning.py --recipe recipe.json         train with a recipe
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import ratchet

CHARACTERS = 128  # ASCII
LENGTH = 64
STEPS = 60


def rows(module: str) -> Tensor:
    """The source of a module of Python's library, cut into rows of characters."""
    text = (Path(os.__file__).parent / f"{module}.py").read_bytes()
    characters = torch.tensor([byte for byte in text if byte < CHARACTERS])
    return characters[: len(characters) // LENGTH * LENGTH].view(-1, LENGTH)


class NextCharacter(nn.Module):
    """characters int64 [batch, length] -> logits [batch, length, CHARACTERS]."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(LENGTH, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        length = characters.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, characters.device)
        x = self.embedding(characters) + self.positions.weight[:length]
        return self.head(self.blocks(x, mask=mask, is_causal=True))


class Lit(L.LightningModule):
    """What a script of Lightning's looks like: the loss, the optimizer, the schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.model = NextCharacter()
        self.losses: list[float] = []

    def loss_of(self, characters: Tensor) -> Tensor:
        logits = self.model(characters[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), characters[:, 1:].flatten())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.loss_of(batch)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: dict[str, Tensor], batch: Tensor, batch_idx: int) -> None:
        self.losses.append(outputs["loss"].item())

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("validation_loss", self.loss_of(batch), prog_bar=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def train(callbacks: list[L.Callback], checkpoint: Path | None = None, **changes: object) -> Lit:
    """Train a module, from a checkpoint if there is one; `changes` are arguments of the Trainer."""
    settings: dict[str, object] = {
        "max_steps": STEPS,
        "val_check_interval": 0.5,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 1.0,
        "logger": False,
        "enable_checkpointing": False,
        "log_every_n_steps": 1,
    }
    L.seed_everything(0, verbose=False)
    module = Lit()
    trainer = L.Trainer(callbacks=callbacks, **{**settings, **changes})
    data = DataLoader(rows("argparse"), batch_size=8, shuffle=True, drop_last=True)
    trainer.fit(module, data, DataLoader(rows("bisect"), batch_size=8), ckpt_path=checkpoint)
    return module


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", help="the recipe.json that `ratchet optimize` wrote")
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args(words)
    callbacks = [ratchet.lightning_callback(recipe=given.recipe)] if given.recipe else []
    module = train(callbacks, max_steps=given.steps)
    print(f"loss {module.losses[0]:.3f}, then {module.losses[-1]:.3f}")


if __name__ == "__main__":
    main()
