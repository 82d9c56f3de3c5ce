"""Run on many ranks: compare layouts with one rank. `parity.py FOLDER LAYOUT@WORKLOAD...`

Each layout's line in FOLDER/parity.json holds the worst differences of losses and gradients.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.load import FAMILIES, load
from ratchet.train.workloads.parallel import ParallelLayout, ParallelTuning, parse_parallel
from ratchet.train.workloads.parallel.meshes import joined
from ratchet.train.workloads.parallel.parallelize import mean_loss, parallelize
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.workload import Workload

STEPS = 2
NOISE = 1e-4
"""Share of the largest gradient below which one is noise: a key's bias has none at all."""


def workload(name: str) -> Workload:
    """A built-in workload; `llama-tiny:4` is one with four layers."""
    spec, _, layers = name.partition(":")
    if not layers:
        return load(spec)
    family = FAMILIES[spec.partition("-")[0]]
    size = replace(family.sizes["tiny"], layers=int(layers))
    torch.manual_seed(0)
    return replace(load(spec), model=family.build_model(size))


def one_rank(name: str, layout: ParallelLayout) -> Workload:
    """The workload whose step adds up the gradients of every rank's sequences in turn."""
    whole, parts = workload(name), layout.data * layout.micro

    def batch(index: int) -> Any:
        number, part = divmod(index, parts)
        return tuple(one.chunk(parts)[part] for one in whole.batch(number))

    return replace(whole, batch=batch, accumulate=parts)


def full(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix("module."): one.full_tensor() if isinstance(one, DTensor) else one
        for name, one in gradients.items()
    }


def both(
    name: str, layout: ParallelLayout, tuning: ParallelTuning
) -> tuple[TrainingStep, TrainingStep]:
    made = one_rank(name, layout), parallelize(workload(name), layout, tuning)
    alone, split = (TrainingStep(one, one.as_written()) for one in made)
    return alone, split


def compare(name: str, layout: ParallelLayout, tuning: ParallelTuning) -> dict[str, Any]:
    alone, split = both(name, layout, tuning)
    alone.forward_backward(batch_of(alone.workload, 0))
    split.forward_backward(batch_of(split.workload, 0))
    wanted, gradients = alone.gradients(), full(split.gradients())
    least = NOISE * max(float(one.norm()) for one in wanted.values())
    worst = max(
        float((gradients[one] - wanted[one]).norm() / wanted[one].norm().clamp(min=least))
        for one in gradients
    )
    losses, (alone, split) = [], both(name, layout, tuning)
    for index in range(STEPS):
        expected, found = (one(batch_of(one.workload, index)) for one in (alone, split))
        losses.append(abs(mean_loss(found) / float(expected) - 1))
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (worst, max(losses), sorted(gradients)))
    return {
        "gradients": max(one[0] for one in told),
        "losses": max(one[1] for one in told),
        "missing": sorted(set(wanted) - {name for one in told for name in one[2]}),
        "loss": float(expected),
    }


def main(folder: Path, cases: list[str]) -> None:
    found = {}
    with joined(torch.device("cpu"), wait_s=60):
        for case in cases:
            words, _, rest = case.partition("@")
            name, _, settings = rest.partition("@")
            tuning = ParallelTuning(**json.loads(settings or "{}"))
            try:
                found[case] = compare(name, parse_parallel(words), tuning)
            except Exception:
                found[case] = {"error": traceback.format_exc()}
                if dist.get_rank() == 0 or "-v" in sys.argv:
                    print(case, found[case]["error"], flush=True)
            if dist.get_rank() == 0:
                (folder / "parity.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [one for one in sys.argv[2:] if one != "-v"])
