"""Install the part of a recipe that ranks share: the layout, and how they communicate."""

from __future__ import annotations

import os

import torch
from torch import nn

from ratchet.base.errors import RecipeError
from ratchet.optimize.recipe.recipe import Recipe
from ratchet.workloads.parallel.tuning import ParallelTuning, TunedLayout
from ratchet.workloads.workload import Workload


def on_ranks(workload: Workload, recipe: Recipe, *, tuned: bool = True) -> Workload:
    """Return the workload as this rank runs it by the recipe; itself without a parallel part.

    Raises RecipeError unless torchrun started as many ranks as the recipe's layout takes.
    """
    part = recipe.parallel
    if part is None:
        return workload
    from ratchet.workloads.parallel.layout import parse_parallel
    from ratchet.workloads.parallel.meshes import join
    from ratchet.workloads.parallel.parallelize import parallelize

    layout = parse_parallel(part.layout)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != layout.world:
        raise RecipeError(
            f"the recipe was proven for {part.layout} on {layout.world} ranks, and this is one of "
            f"{started}: start the script with torchrun --nproc-per-node={layout.world}"
        )
    join(torch.device(workload.device))
    return parallelize(workload, layout, part.tuning if tuned else ParallelTuning())


def tuned_ranks(model: nn.Module, part: TunedLayout) -> list[str]:
    """Set the communication of a script's own wrapped model; return what its script must set."""
    from ratchet.workloads.parallel.tune import tune

    return tune(model, part.tuning)
