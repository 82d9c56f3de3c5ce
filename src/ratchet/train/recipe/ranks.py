"""Install the part of a recipe that ranks share: layout, communication, and settings on shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from ratchet.base import scratch
from ratchet.base.devices.probe import probe, software
from ratchet.base.errors import RecipeError
from ratchet.base.files import cache_folder
from ratchet.train.recipe import Recipe
from ratchet.train.workloads.compiling import sharded_in, units_of
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.parallel import ParallelTuning
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

    with scratch.locked(cache_folder("ranks")):
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
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own)
    return told


OF_A_PROCESS: Final = (
    "update_in_backward", "micro_batches", "threads", "affinity", "matmul_precision", "allocator",
    "huge_pages", "preallocate", "matmul_library", "aotriton_experimental",
)  # fmt: skip
"""Settings that the ranks of a machine share, or that the layout sets itself."""


def without_process(config: StepConfig, written: StepConfig) -> StepConfig:
    """Return a config whose settings of the process are those of the step as written."""
    return msgspec.structs.replace(
        config, **{name: getattr(written, name) for name in OF_A_PROCESS}
    )


def on_shards(config: StepConfig, model: nn.Module) -> tuple[StepConfig, list[str]]:
    """Return the config that a script's model can take on its ranks, and what it does without."""
    return by_units(config, whole=units_of(model) == [model]) if sharded_in(model) else (config, [])


def by_units(config: StepConfig, *, whole: bool = False) -> tuple[StepConfig, list[str]]:
    """Return the config of a model that FSDP2 shards, and what it does without.

    `whole` says that one unit is the whole model.
    """
    from ratchet.train.graph.steps import CHUNKED

    left: list[str] = []
    if config.logits != "whole":
        left.append("logits stay whole: FSDP2 frees the head's weights before the loss is computed")
        config = msgspec.structs.replace(config, logits="whole")
    if CHUNKED in config.kernels and not whole:
        left.append(
            f"{CHUNKED} is not installed: FSDP2's units are compiled one by one, and the loss is "
            "computed outside of them"
        )
        kept = tuple(one for one in config.kernels if one != CHUNKED)
        config = msgspec.structs.replace(config, kernels=kept)
    return config, left
