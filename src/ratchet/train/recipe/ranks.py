"""Install the part of a recipe that ranks share: the layout, and how they communicate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ratchet.base import scratch
from ratchet.base.devices.probe import probe, software
from ratchet.base.errors import RecipeError
from ratchet.judge.kernels.languages.cpp import cache_folder
from ratchet.train.recipe.recipe import Recipe
from ratchet.train.workloads.parallel import ParallelTuning, TunedLayout
from ratchet.train.workloads.workload import Workload

Told = TypeVar("Told", bound=Mapping[str, object])


@contextmanager
def one_rank_at_a_time() -> Iterator[None]:
    """Keep the other ranks of this machine out, if torchrun started several.

    The first one may have to prove kernels again. The others then find its verdicts in the ledger,
    as they have the same device.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1:
        yield
        return
    with scratch.locked(cache_folder().parent / "ranks"):
        yield


def join_ranks(workload: Workload, recipe: Recipe) -> None:
    """Join the ranks that torchrun started, if the recipe is for several; compare their software.

    Raises RecipeError unless there are as many as the recipe's layout takes, with one version of
    everything: ranks that ran their steps differently would wait for each other.
    """
    if recipe.parallel is None:
        return
    from ratchet.train.workloads.parallel import parse_parallel
    from ratchet.train.workloads.parallel.meshes import join

    layout = parse_parallel(recipe.parallel.layout)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != layout.world:
        raise RecipeError(
            f"the recipe was proven for {layout} on {layout.world} ranks, and this is one of "
            f"{started}: start the script with torchrun --nproc-per-node={layout.world}"
        )
    join(torch.device(workload.device))
    device = probe(workload.device)
    name = f"{device.model}, {device.fingerprint[:8]}"
    here = {"the recipe": recipe.checksum[:8], "the device": name, **asdict(software())}
    check_alike(of_all_ranks(here))


def check_alike(told: Sequence[Mapping[str, object]]) -> None:
    """Raise a RecipeError of one line if ranks do not have the same of everything."""
    first = told[0]
    for rank, other in enumerate(told):
        for name, value in first.items():
            if other[name] != value:
                raise RecipeError(
                    f"ranks 0 and {rank} differ in {name} ({value} and {other[name]}): give all "
                    "ranks the same"
                )


def on_ranks(workload: Workload, recipe: Recipe, *, tuned: bool = True) -> Workload:
    """Return the workload as this rank runs it by the recipe; itself without a parallel part."""
    part = recipe.parallel
    if part is None:
        return workload
    from ratchet.train.workloads.parallel import parse_parallel
    from ratchet.train.workloads.parallel.parallelize import parallelize

    tuning = part.tuning if tuned else ParallelTuning()
    return parallelize(workload, parse_parallel(part.layout), tuning)


def left_out_anywhere(recipe: Recipe, left_out: dict[str, str]) -> dict[str, str]:
    """Return the kernels that any rank leaves out, with a reason: all ranks run the same step."""
    if recipe.parallel is None or not dist.is_initialized():
        return left_out
    return {name: why for own in of_all_ranks(left_out) for name, why in own.items()}


def of_all_ranks(own: Told) -> list[Told]:
    """Return what each rank has here, by rank."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own)
    return told


def tuned_ranks(model: nn.Module, part: TunedLayout) -> list[str]:
    """Set the communication of a script's own wrapped model; return what its script must set."""
    from ratchet.train.workloads.parallel.meshes import tune

    return tune(model, part.tuning)
