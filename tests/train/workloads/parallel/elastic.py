"""Run under torchrun: train some steps, with a checkpoint after each. A rank may kill itself once.

elastic.py FOLDER LAYOUT WORKLOAD STEPS [KILLED_RANK KILLED_STEP [RECIPE]]; with another workload
after a comma, that one resumes from the checkpoints at the end, and is refused.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import ratchet
from ratchet.base.errors import RanksError
from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.load import load
from ratchet.train.workloads.parallel import parse_parallel
from ratchet.train.workloads.parallel.meshes import join
from ratchet.train.workloads.parallel.parallelize import mean_loss, parallelize, resume, save
from ratchet.train.workloads.step import TrainingStep


def step_of(name: str, words: str, recipe: str) -> TrainingStep:
    if recipe:
        return ratchet.apply(load(name), recipe, strict=True)
    workload = parallelize(load(name), parse_parallel(words))
    return TrainingStep(workload, workload.as_written())


def main(folder: Path, words: str, names: str, steps: int, rank: int, at: int, recipe: str) -> None:
    join(torch.device("cpu"), wait_s=30)
    name, _, other = names.partition(",")
    step = step_of(name, words, recipe)
    first = resume(step, folder / "checkpoints")
    for index in range(first, steps):
        loss = mean_loss(step(batch_of(step.workload, index)))
        mark = folder / "killed"
        if dist.get_rank() == rank and index == at and not mark.exists():
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        save(step, folder / "checkpoints", index)
        if dist.get_rank() == 0:
            with (folder / "losses.jsonl").open("a") as file:
                told = {"index": index, "loss": loss, "pid": os.getpid()}
                file.write(json.dumps(told) + "\n")
    if other:
        try:
            resume(step_of(other, words, ""), folder / "checkpoints")
        except RanksError as error:
            (folder / f"refused_{dist.get_rank()}").write_text(str(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    given = sys.argv[1:]
    killed, when = given[4:6] if len(given) > 5 else ("-1", "-1")
    recipe = given[6] if len(given) > 6 else ""
    main(Path(given[0]), given[1], given[2], int(given[3]), int(killed), int(when), recipe)
