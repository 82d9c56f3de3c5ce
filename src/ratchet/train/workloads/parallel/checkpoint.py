"""Save a step on many ranks and resume it, also on another layout of the same model.

torch.distributed.checkpoint writes and reshards. A checkpoint counts once all of its ranks have
written it, so a rank that dies meanwhile leaves the one before.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.optim import Optimizer

from ratchet.base.errors import RanksError
from ratchet.train.workloads.step import TrainingStep

DONE: Final = ".metadata"
"""The file that torch.distributed.checkpoint writes last."""
NAMED: Final = re.compile(r"^step-(\d+)$")
FLAT: Final = StateDictOptions(flatten_optimizer_state_dict=True)
"""Optimizer state by parameter, so that stages and shards of another layout find theirs."""
KEPT: Final = 2
"""Checkpoints kept: the newest, and the one before."""


def save(step: TrainingStep, folder: Path, index: int) -> Path:
    """Save weights and optimizer state after step number `index`; all ranks call it together."""
    place = folder / f"step-{index}"
    if dist.get_rank() == 0:
        shutil.rmtree(place, ignore_errors=True)  # one that a dead rank left unfinished
    dist.barrier()
    save_shards(_state(step), checkpoint_id=str(place))
    if dist.get_rank() == 0:
        for old in sorted(_finished(folder))[:-KEPT]:
            shutil.rmtree(folder / f"step-{old}")
    dist.barrier()
    return place


def resume(step: TrainingStep, folder: Path) -> int:
    """Load the newest whole checkpoint; return the number of the next step, 0 without one.

    A checkpoint of another layout is resharded. Raises RanksError if it is of another model.
    """
    found = max(_finished(folder), default=None)
    if found is None:
        return 0
    state = _state(step)
    try:
        load(state, checkpoint_id=str(folder / f"step-{found}"))
    except (CheckpointException, RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise RanksError(
            f"{folder}/step-{found} does not fit this model on this layout ({said[-1][:160]}): "
            "resume the model that it was saved from, or name another folder"
        ) from error
    model, optimizers = step.workload.model, _optimizers(step)
    set_state_dict(
        model,
        optimizers,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=FLAT,
    )
    return found + 1


def _state(step: TrainingStep) -> dict[str, Any]:
    model, optimizer = get_state_dict(step.workload.model, _optimizers(step), options=FLAT)
    return {"model": model, "optimizer": optimizer}


def _optimizers(step: TrainingStep) -> list[Optimizer]:
    return [one for one in step.optimizers.values() if isinstance(one, Optimizer)]


def _finished(folder: Path) -> list[int]:
    places = folder.iterdir() if folder.is_dir() else ()
    named = ((NAMED.match(one.name), one) for one in places)
    return [int(found.group(1)) for found, one in named if found and (one / DONE).exists()]
