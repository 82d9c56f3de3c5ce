"""A transformers.Trainer, with and without Ratchet: a small Llama that learns Python source text.

python examples/train_transformers.py                           train as written
ratchet optimize examples/train_transformers.py:make_trainer
python examples/train_transformers.py --recipe ratchet-out/recipe.json
torchrun --nproc-per-node=2 examples/train_transformers.py --fsdp --recipe ratchet-out/recipe.json
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import ratchet

CHARACTERS = 128  # ASCII
LENGTH = 64


def rows(module: str) -> list[dict[str, Tensor]]:
    """The source of a module of Python's library, cut into rows of characters."""
    text = (Path(os.__file__).parent / f"{module}.py").read_bytes()
    characters = torch.tensor([byte for byte in text if byte < CHARACTERS])
    cut = characters[: len(characters) // LENGTH * LENGTH].view(-1, LENGTH)
    return [{"input_ids": row, "labels": row} for row in cut]


def make_trainer(
    folder: str = "trainer-out",
    callbacks: list[TrainerCallback] | None = None,
    **changes: object,
) -> Trainer:
    """What `ratchet optimize` calls; `changes` are further TrainingArguments."""
    settings: dict[str, object] = {
        "max_steps": 60,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "learning_rate": 3e-3,
        "warmup_steps": 5,
        "logging_steps": 10,
        "report_to": "none",
        "dataloader_pin_memory": torch.cuda.is_available(),
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=CHARACTERS,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    return Trainer(
        model=model,
        args=TrainingArguments(folder, **{**settings, **changes}),
        train_dataset=rows("argparse"),
        eval_dataset=rows("bisect"),
        callbacks=callbacks,
    )


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", help="the recipe.json that `ratchet optimize` wrote")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fsdp", action="store_true", help="shard the weights over GPUs (FSDP2)")
    given = parser.parse_args(words)
    callbacks = [ratchet.trainer_callback(recipe=given.recipe)] if given.recipe else []
    sharded = {"fsdp": True, "fsdp_config": {"version": 2}} if given.fsdp else {}
    trainer = make_trainer(callbacks=callbacks, max_steps=given.steps, **sharded)
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
