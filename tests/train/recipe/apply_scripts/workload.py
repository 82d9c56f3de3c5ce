"""Train a built-in workload as written and under a recipe; print both losses and what ran."""

import json
import sys

import torch

import ratchet
from ratchet.judge.kernels import registry
from ratchet.train.graph.steps import build_step
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load


def train(step, workload, steps):  # type: ignore[no-untyped-def]
    return [float(step(workload.batch(index))) for index in range(steps)]


if __name__ == "__main__":
    recipe, steps = sys.argv[1], int(sys.argv[2])
    written = load("llama-tiny", device="cpu")
    without = train(build_step(written, StepConfig()), written, steps)
    changed = load("llama-tiny", device="cpu")
    step = ratchet.apply(changed, recipe)
    with_recipe = train(step, changed, steps)
    with torch.profiler.profile() as profiled:
        step(changed.batch(steps))
    print(
        json.dumps(
            {
                "without": without,
                "with": with_recipe,
                "active": sorted(registry.active()),
                "ops": sorted(event.key for event in profiled.key_averages()),
            }
        )
    )
