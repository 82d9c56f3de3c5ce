"""A rank that dies: the others resume from a checkpoint, by the same recipe, on the same curve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ratchet.base.devices.probe import probe, software
from ratchet.train.recipe import Recipe
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.parallel import ParallelTuning, TunedLayout
from ratchet.train.workloads.step import TrainingStep

PROGRAM = Path(__file__).with_name("elastic.py")
STEPS = 4


def torchrun(folder: Path, *words: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1",
         "--nproc-per-node=2", str(PROGRAM), str(folder), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]


def recipe(folder: Path) -> Path:
    """A recipe for two ranks of FSDP2 that gather ahead and exchange gradients once a step."""
    tuning = ParallelTuning(no_sync=True, prefetch=1, reshard_after_forward=False)
    made = Recipe(
        workload="llama-tiny",
        device=probe("cpu").fingerprint,
        device_name=probe("cpu").model,
        software=software().fingerprint,
        versions=asdict(software()),
        config=StepConfig(),
        kernels=(),
        parallel=TunedLayout(layout="fsdp=2,micro=2", tuning=tuning),
        speedup={},
        changes_arithmetic=False,
        created_at="2026-11-26T00:00:00+00:00",
    )
    made.save(folder / "recipe.json")
    return folder / "recipe.json"


@pytest.mark.thorough
def test_a_killed_rank_is_resumed_and_another_layout_takes_over(tmp_path: Path) -> None:
    torchrun(tmp_path, "fsdp=2", "llama-tiny", str(STEPS), "1", "2", str(recipe(tmp_path)))
    assert (tmp_path / "killed").exists()
    torchrun(tmp_path, "tp=2", "llama-tiny,moe-tiny", str(STEPS + 1))
    told = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert [one["index"] for one in told] == list(range(STEPS + 1))
    assert len({one["pid"] for one in told}) == 3
    alone = load("llama-tiny")
    step = TrainingStep(alone, alone.as_written())
    expected = [float(step(alone.batch(index))) for index in range(STEPS + 1)]
    assert [one["loss"] for one in told] == pytest.approx(expected, rel=1e-5)
    for rank in range(2):
        said = (tmp_path / f"refused_{rank}").read_text()
        assert f"step-{STEPS} does not fit this model on this layout" in said
        assert "\n" not in said
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
