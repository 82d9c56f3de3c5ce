"""Train a small Llama in a plain script on a GPU, as written and by recipes: losses must agree.

    python benchmarks/gpu/gpu_scripts.py [--device cuda] [--steps 12]

The script clamps a weight and evaluates the model half-way, outside of its step. One JSON object a
line for each recipe: the largest difference of a loss from the script as written, and the last
step's milliseconds, or why the step ran as written; the first says how many follow. The exit code
is 1 if one did, or if a difference is over 1e-4, or 5e-3 where arithmetic changes.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import ratchet
from ratchet.base.devices.probe import probe, software
from ratchet.train.recipe import Recipe, signature_of
from ratchet.train.workloads.config import StepConfig

VOCABULARY, ROWS, LENGTH, BATCHES = 1024, 8, 128, 4
EXACT, LOW = 1e-4, 5e-3
CONFIGS = {
    "compile": StepConfig(compile_mode="default"),
    "compile, fused": StepConfig(compile_mode="default", optimizer="fused"),
    "replayed graphs": StepConfig(compile_mode="reduce-overhead", optimizer="fused"),
    "bf16 autocast": StepConfig(
        compile_mode="default", precision="bf16_autocast", optimizer="fused"
    ),
    "bf16 weights": StepConfig(compile_mode="default", precision="bf16_master", optimizer="fused"),
}


def make(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model and its optimizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def batch(index: int, device: str) -> Tensor:
    """Return int64 [ROWS, LENGTH], one of a few."""
    generator = torch.Generator().manual_seed(index % BATCHES)
    return torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator).to(device)


def recipe_of(config: StepConfig, model: nn.Module, device: str) -> Recipe:
    """Return a recipe that installs the config; nothing about it has been proven."""
    here = probe(device)
    return Recipe(
        workload="gpu_scripts.py:make",
        device=here.fingerprint,
        device_name=here.model,
        software=software().fingerprint,
        versions={},
        config=config,
        kernels=(),
        model=signature_of(model),
        optimizer="AdamW",
        speedup={},
        changes_arithmetic=config.precision != "fp32",
        created_at="2026-01-01T00:00:00+00:00",
    ).sealed()


def train(config: StepConfig | None, device: str, steps: int) -> tuple[list[float], float]:
    """Return the losses, and the seconds of the last step."""
    model, optimizer = make(device)

    def step(tokens: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    called = step
    if config is not None:
        recipe = recipe_of(config, model, device)
        called = ratchet.compile(step, model, optimizer, recipe=recipe)
    losses, took_s = [], 0.0
    for index in range(steps):
        began = time.perf_counter()
        losses.append(float(called(batch(index, device))))  # waits for the device
        took_s = time.perf_counter() - began
        if index == steps // 2:
            edit_and_evaluate(model, device)
    return losses, took_s


def edit_and_evaluate(model: nn.Module, device: str) -> None:
    """Do what scripts do between steps."""
    with torch.no_grad():
        next(model.parameters()).clamp_(-0.02, 0.02)
        model.eval()
        model(input_ids=batch(0, device))
        model.train()


class Warnings(logging.Handler):
    """Keeps what Ratchet warns of: a recipe that was not installed, or cannot run."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def main() -> int:
    """Train by each recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    written, took_s = train(None, asked.device, asked.steps)
    row = {"recipe": "as written", "follow": len(CONFIGS), "step_ms": round(1e3 * took_s, 1)}
    print(json.dumps(row), flush=True)
    failed, warnings = False, Warnings()
    logging.getLogger("ratchet").addHandler(warnings)
    for name, config in CONFIGS.items():
        losses, took_s = train(config, asked.device, asked.steps)
        if as_written := [one for one in warnings.said if "as written" in one]:
            warnings.said.clear()
            failed = True
            print(json.dumps({"recipe": name, "failed": as_written[0]}), flush=True)
            continue
        worst = max(abs(new - old) for new, old in zip(losses, written, strict=True))
        failed |= worst > (EXACT if config.precision == "fp32" else LOW)
        row = {"recipe": name, "worst_difference": worst, "step_ms": round(1e3 * took_s, 1)}
        print(json.dumps(row), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
