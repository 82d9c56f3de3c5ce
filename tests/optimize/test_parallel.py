"""Steps on many ranks: bench, a turn with its recipe, and what goes wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.base.errors import RatchetError, RecipeError
from ratchet.cli import main
from ratchet.optimize.parallel import turn
from ratchet.optimize.parallel.bench import bench_parallel, record_parallel
from ratchet.optimize.parallel.levers import LEVERS, combined, find_rank_levers
from ratchet.optimize.recipe.apply import apply
from ratchet.optimize.recipe.recipe import Recipe
from ratchet.optimize.turn.settings import make_settings
from ratchet.report.ranks import print_parallel_bench, print_parallel_turn
from ratchet.workloads.load import load
from ratchet.workloads.parallel.layout import parse_parallel
from ratchet.workloads.parallel.rank import WARMUP_STEPS, RankArm
from ratchet.workloads.step import TrainingStep

DYING = """
import os, signal
from dataclasses import replace
from ratchet.workloads.load import load

def make():
    built = load("llama-tiny")
    def loss(model, batch):
        if os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return built.loss(model, batch)
    return replace(built, loss=loss)
"""


def test_bench_tells_each_rank_and_the_slowest_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench_parallel(
        "llama-tiny", parse_parallel("fsdp=2"), options={"device": "cpu"}, steps=3
    )
    assert [one.rank for one in found.ranks] == [0, 1]
    assert found.step_time_s >= max(one.low_s for one in found.ranks) > 0
    assert found.unit == "tokens" and found.tokens_per_s == 8 * 64 / found.step_time_s
    for one in found.ranks:
        assert one.peak_memory_bytes > 10_000_000
        assert 0 < one.communication.exposed_s <= one.communication.total_s
    alone = load("llama-tiny")
    step = TrainingStep(alone, alone.as_written())
    losses = [float(step(alone.batch(index))) for index in range(WARMUP_STEPS + 3)]
    assert found.loss == pytest.approx(losses[-1], rel=1e-5)
    document = record_parallel(found, device="cpu", ledger=str(tmp_path / "ledger.db"))
    assert json.loads(json.dumps(document))["layout"] == "fsdp=2"
    print_parallel_bench(found)
    assert "llama-tiny on 2 ranks (fsdp=2)" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_rank_that_dies_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    assert main(["bench", f"{script}:make", "--parallel", "dp=2", "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ratchet: dp=2: rank 1 ended by SIGKILL")


def test_a_dry_run_lists_the_levers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["optimize", "llama-tiny", "--parallel", "fsdp=2", "--device", "cpu", "--dry-run"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["levers"] == ["bf16-reduction", "keep-gathered", "prefetch"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "3 levers would be tried." in told and "fsdp=2 is not plain DDP" in told


@pytest.mark.thorough
def test_a_turn_writes_a_recipe_for_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turn, "SCREEN_ROUNDS", 3)
    monkeypatch.setattr(turn, "MOST_ROUNDS", turn.LEAST_ROUNDS)
    settings = make_settings(
        "llama-tiny", budget="10m", out=tmp_path / "out", device="cpu", keep_precision=True,
        launches=1,
    )  # fmt: skip
    found = turn.optimize_parallel(settings, parse_parallel("dp=2,micro=2"))
    told = {one.name: one for one in found.changes}
    assert set(told) == {one.name for one in LEVERS}
    for name in ("no-sync", "small-buckets", "large-buckets"):
        assert told[name].ratio and told[name].gradient_error is not None
        assert told[name].gradient_error < 1e-6
    assert told["powersgd"].outcome == "not_applicable"
    assert json.loads((tmp_path / "out/result.json").read_text())["layout"] == "dp=2,micro=2"
    recipe = Recipe.load(found.recipe)
    assert recipe.parallel is not None and recipe.parallel.tuning == found.tuned.tuning
    assert recipe.parallel.layout == "dp=2,micro=2"
    with pytest.raises(RecipeError, match=r"on 2 ranks, and this is one of 1: start the script"):
        apply(load("llama-tiny"), recipe, strict=True)
    print_parallel_turn(found)
    assert "torchrun --standalone --nproc-per-node=2" in capsys.readouterr().out


def test_levers_are_chosen_by_the_layout() -> None:
    chosen, reasons = find_rank_levers(parse_parallel("fsdp=2,micro=2"))
    assert [one.name for one in chosen] == [
        "no-sync",
        "bf16-reduction",
        "keep-gathered",
        "prefetch",
    ]
    assert reasons["powersgd"] == "fsdp=2,micro=2 is not plain DDP"
    exact, _ = find_rank_levers(parse_parallel("fsdp=2"), keep_precision=True)
    assert [one.name for one in exact] == ["keep-gathered", "prefetch"]
    only, _ = find_rank_levers(parse_parallel("fsdp=2"), only="activation-checkpointing")
    assert combined(only, RankArm()).checkpointing == "selective"
    with pytest.raises(RatchetError, match="unknown lever 'compile': with --parallel use no-sync"):
        find_rank_levers(parse_parallel("dp=2"), only="compile")


def test_of_levers_of_one_field_the_first_counts() -> None:
    small, large = (
        replace(one) for one in LEVERS if one.name in ("small-buckets", "large-buckets")
    )
    assert combined([large, small], RankArm()).tuning.bucket_cap_mb == 100
