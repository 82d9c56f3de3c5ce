"""Steps on many ranks: bench, a turn with its recipe, and what goes wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from own_recipes import kernels_of

from ratchet.base.errors import RanksError, RatchetError, RecipeError
from ratchet.base.show.terminal import print_report
from ratchet.cli import main
from ratchet.scale.optimize import run
from ratchet.scale.parallel import bench, launch, turn
from ratchet.scale.parallel.bench import bench_parallel, record_parallel
from ratchet.scale.parallel.launch import Communication, run_ranks
from ratchet.scale.parallel.levers import (
    LEVERS,
    ONE_PROCESS,
    check_rank_lever,
    combined,
    find_rank_levers,
    why_no_process,
)
from ratchet.scale.parallel.rank import WARMUP_STEPS, ArmOnRank, RankRequest, RankResult
from ratchet.scale.parallel.show import parallel_bench_report, parallel_turn_report
from ratchet.scale.parallel.turn import OneProcess
from ratchet.train.levers import Lever, Situation
from ratchet.train.recipe import Candidate, Recipe
from ratchet.train.recipe.apply import apply
from ratchet.train.recipe.ranks import check_alike
from ratchet.train.turn.settings import make_settings
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.parallel import parse_parallel
from ratchet.train.workloads.step import TrainingStep

DYING = """
import os, signal
from dataclasses import replace
from ratchet.train.workloads.load import load

def make():
    built = load("llama-tiny")
    def loss(model, batch):
        if os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return built.loss(model, batch)
    return replace(built, loss=loss)
"""


def rank_result(rank: int, times_s: list[float]) -> RankResult:
    arm = ArmOnRank(
        first_step_s=1.0, times_s=times_s, peak_memory_bytes=100 + rank, losses=[3.0] * 6
    )
    return RankResult(
        rank=rank, host="here", device="cpu", threads=1, unit="tokens", items_per_step=512,
        sequence=64, parameters=9, samples=[], arms={bench.ARM: arm},
    )  # fmt: skip


def test_the_slowest_rank_of_each_step_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks are made up; those of the long tier are real."""
    ranks = (rank_result(0, [1.0, 1.0, 4.0]), rank_result(1, [2.0, 2.0, 3.0]))
    talk = [Communication(total_s=0.5, exposed_s=one) for one in (0.1, 0.4)]
    monkeypatch.setattr(bench, "run_ranks", lambda *_: ranks)
    monkeypatch.setattr(bench, "communication_of", lambda _: talk.pop(0))
    found = bench_parallel(
        "llama-tiny", parse_parallel("fsdp=2"), options={"device": "cpu"}, steps=3
    )
    assert (found.step_time_s, found.slowest_rank, found.tokens_per_s) == (2.0, 1, 256.0)
    assert (found.exposed_communication_s, found.peak_memory_bytes) == (0.4, 101)
    assert [one.step_time_s for one in found.ranks] == [1.0, 2.0]


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
    print_report(parallel_bench_report(found))
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


@pytest.mark.parametrize(
    ("degrees", "more", "said"),
    [
        ("dp=999999", [], "999999 processes, and this machine's memory holds at most"),
        ("dp=3", ["--batch-size", "4"], "do not divide by"),
        ("tp=3", [], "do not divide by"),
    ],
)
@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_layout_that_cannot_run_is_one_line_in_a_dry_run_too(
    degrees: str,
    more: list[str],
    said: str,
    dry: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["optimize", "llama-tiny", "--parallel", degrees, "--device", "cpu", *more, *dry]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_a_dry_run_lists_the_levers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["optimize", "llama-tiny", "--parallel", "fsdp=2", "--device", "cpu", "--dry-run"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["levers"] == ["bf16-reduction", "keep-gathered", "prefetch", "one-process"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "4 levers would be tried." in told and "fsdp=2 is not plain DDP" in told


def arm(**settings: object) -> Candidate:
    """An arm of a rank's step by these settings, with the kernels that it needs."""
    config = msgspec.convert(settings, StepConfig)
    kernels = kernels_of("adamw") if config.optimizer == "kernel" else ()
    return Candidate(title="", config=config, kernels=kernels)


def on_ranks(layout: str, arms: dict[str, Candidate], folder: Path) -> dict[str, ArmOnRank]:
    """Train a small llama on the ranks of a layout; return rank 0's figures by arm."""
    asked = RankRequest(
        workload="llama-tiny", options={"device": "cpu"}, layout=layout,
        arms={"written": None, **arms}, rounds=2, traced=False,
    )  # fmt: skip
    return run_ranks(asked, folder)[0].arms


PLAIN = {
    "kernel": arm(optimizer="kernel"),
    "fused": arm(optimizer="fused"),
    "recomputed": arm(optimizer="kernel", checkpointing="selective"),
    "bf16": arm(precision="bf16_master", optimizer="kernel"),
}
COMPILED = {
    "compiled": arm(compile_mode="default", optimizer="kernel", kernels=("rms_norm",)),
    "compiled bf16": arm(compile_mode="default", precision="bf16_master", optimizer="kernel"),
}


@pytest.mark.parametrize(
    ("layout", "arms"),
    [
        ("fsdp=2", PLAIN),
        pytest.param("dp=2,micro=2", PLAIN, marks=pytest.mark.thorough),
        pytest.param("fsdp=2", COMPILED, marks=pytest.mark.thorough),
        pytest.param("dp=2", COMPILED, marks=pytest.mark.thorough),
    ],
)
def test_a_rank_s_own_levers_train_as_written(
    layout: str, arms: dict[str, Candidate], tmp_path: Path
) -> None:
    found = on_ranks(layout, arms, tmp_path)
    written = found.pop("written")
    for name, one in found.items():
        most = 2e-2 if "bf16" in name else 1e-5
        assert one.gradient_error < most, (name, one.gradient_error)
        assert one.losses == pytest.approx(written.losses, rel=most), name
        if "bf16" in name:
            assert one.gradient_error > 1e-4, "it rounds nothing"


@pytest.mark.thorough
def test_a_turn_writes_a_recipe_for_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The turn of one process is made up; it is cut off before its proof, and resumed."""
    monkeypatch.setattr(turn, "SCREEN_ROUNDS", 3)
    monkeypatch.setattr(launch, "MOST_ROUNDS", launch.LEAST_ROUNDS)
    made_up = OneProcess(found=arm(optimizer="kernel"), reason="kernel AdamW")
    monkeypatch.setattr(turn, "optimize_rank", lambda _: made_up)
    settings = make_settings(
        "llama-tiny", budget="10m", out=tmp_path / "out", device="cpu", keep_precision=True,
        launches=1, ledger=f"{tmp_path}/ledger.db", parallel="dp=2,micro=2",
    )  # fmt: skip
    with pytest.raises(RatchetError, match="no unfinished turn of 'llama-tiny' on dp=2,micro=2"):
        turn.optimize_parallel(replace(settings, resume=True))
    monkeypatch.setattr(turn, "_prove", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        turn.optimize_parallel(settings)
    monkeypatch.undo()
    monkeypatch.setattr(turn, "optimize_rank", lambda _: made_up)
    monkeypatch.setattr(turn, "SCREEN_ROUNDS", 10_000)  # recalled, not run
    monkeypatch.setattr(launch, "MOST_ROUNDS", launch.LEAST_ROUNDS)
    found = run(replace(settings, resume=True), lambda event, details: None)
    assert isinstance(found, turn.ParallelTurn)
    told = {one.name: one for one in found.changes}
    assert set(told) == {ONE_PROCESS.name, *(one.name for one in LEVERS)}
    for name in (ONE_PROCESS.name, "no-sync", "small-buckets", "large-buckets"):
        assert told[name].ratio and found.gradient_errors[name] < 1e-6
    assert told[ONE_PROCESS.name].reason.startswith("kernel AdamW: ")
    assert told["powersgd"].decision == "not_applicable"
    assert json.loads((tmp_path / "out/result.json").read_text())["layout"] == "dp=2,micro=2"
    assert "kernel AdamW" in (tmp_path / "out/report.html").read_text()
    recipe = Recipe.load(found.recipe)
    assert recipe.parallel is not None and recipe.parallel.tuning == found.tuned.tuning
    assert recipe.parallel.layout == "dp=2,micro=2"
    assert (recipe.config.optimizer == "kernel") == bool(found.tuned.kernels)
    with pytest.raises(RecipeError, match=r"on 2 ranks, and this is one of 1: start the script"):
        apply(load("llama-tiny"), recipe, strict=True, ledger=settings.ledger)
    print_report(parallel_turn_report(found))
    assert "torchrun --standalone --nproc-per-node=2" in capsys.readouterr().out


def on(layout: str, device: str = "cpu") -> Situation:
    """What a lever knows of ranks with this layout."""
    return Situation(
        device_kind=device, vendor="", target="", written=WRITTEN.config,
        layout=parse_parallel(layout),
    )  # fmt: skip


WRITTEN = Candidate(title="", config=StepConfig())


def names(levers: tuple[Lever, ...]) -> list[str]:
    return [one.name for one in levers]


def test_levers_are_chosen_by_the_layout() -> None:
    chosen, reasons = find_rank_levers(on("fsdp=2,micro=2"))
    assert names(chosen) == ["no-sync", "bf16-reduction", "keep-gathered", "prefetch"]
    assert reasons["powersgd"] == "fsdp=2,micro=2 is not plain DDP"
    exact, _ = find_rank_levers(on("fsdp=2"), keep_precision=True)
    assert names(exact) == ["keep-gathered", "prefetch"]
    only, _ = find_rank_levers(on("fsdp=2"), only="activation-checkpointing")
    assert combined(only, WRITTEN, on("fsdp=2")).config.checkpointing == "selective"
    on_gpus, reasons = find_rank_levers(on("tp=2", "cuda"))
    assert names(on_gpus) == ["async-tp"]
    overlapping = combined(on_gpus, WRITTEN, on("tp=2", "cuda"))
    assert overlapping.tuning.async_tp and overlapping.config.compile_mode == "default"
    _, reasons = find_rank_levers(on("tp=2"))
    assert reasons["async-tp"] == (
        "it needs symmetric memory between GPUs, and gloo on CPUs has none"
    )
    _, reasons = find_rank_levers(on("fsdp=2", "cuda"))
    assert reasons["async-tp"] == "fsdp=2 splits no products: add tp=2 or more"
    assert why_no_process(parse_parallel("dp=2,fsdp=2,micro=2")) is None
    assert "tp=2 splits the model itself" in str(why_no_process(parse_parallel("tp=2")))
    assert why_no_process(parse_parallel("dp=2"), only="no-sync") == "--try names no-sync alone"
    check_rank_lever("compile")
    with pytest.raises(RatchetError, match="unknown lever 'faster': with --parallel use no-sync"):
        check_rank_lever("faster")


def test_gloo_takes_no_reductions_that_start_each_other() -> None:
    _, reasons = find_rank_levers(on("dp=2"))
    assert "gloo aborts ranks" in reasons["powersgd"]
    assert "powersgd" in names(find_rank_levers(on("dp=2", "cuda"))[0])


SIX = -6
LOG = f"""terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 3328 vs 512.
  rank      : 1 (local_rank: 1)
  exitcode  : {SIX} (pid: 7)  (SIGABRT)
"""


def test_a_rank_that_aborts_is_told_with_what_it_said(tmp_path: Path) -> None:
    asked = RankRequest(workload="llama-tiny", options={}, layout="dp=2", arms={}, rounds=1)
    said = str(launch._failure(asked, tmp_path, LOG))
    assert said.startswith("dp=2: rank 1 ended by SIGABRT ([enforce fail at pair.cc:456]")
    assert said.endswith("; run it again, or with fewer ranks")


@pytest.mark.parametrize("deadly", [("bf16-reduction",), ("bf16-reduction", "small-buckets")])
def test_a_lever_with_which_ranks_die_is_dropped_alone(
    deadly: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    levers = [one for one in LEVERS if one.name in ("bf16-reduction", "small-buckets")]

    def screen(_: object, own: object, these: list[Lever], errors: dict[str, float]) -> object:
        if any(one.name in deadly for one in these):
            raise RanksError("rank 1 ended by SIGABRT")
        errors |= {one.name: 0.0 for one in these}
        return {one.name: turn.change_of(one, "kept", "") for one in these}

    monkeypatch.setattr(turn, "_screen", screen)
    if len(deadly) == 2:
        with pytest.raises(RanksError, match="SIGABRT"):
            turn._screened(None, None, levers, {})  # type: ignore[arg-type]
        return
    found = turn._screened(None, None, levers, {})  # type: ignore[arg-type]
    assert [found[one.name].decision for one in levers] == ["dropped", "kept"]
    assert "SIGABRT" in found["bf16-reduction"].reason


def test_of_levers_of_one_field_the_first_counts() -> None:
    small, large = (one for one in LEVERS if one.name in ("small-buckets", "large-buckets"))
    assert combined([large, small], WRITTEN, on("dp=2")).tuning.bucket_cap_mb == 100


def test_the_recipe_of_one_process_comes_before_the_other_levers() -> None:
    own = arm(optimizer="kernel", checkpointing="none")
    found = combined([*LEVERS[-1:], ONE_PROCESS, *LEVERS[:1]], WRITTEN, on("dp=2"), own)
    assert (found.config.optimizer, found.config.checkpointing) == ("kernel", "selective")
    assert found.tuning.no_sync and found.kernels == own.kernels


def test_ranks_with_other_software_are_named_in_one_line() -> None:
    check_alike([{"torch": "2.13.0", "the recipe": "a"}] * 2)
    with pytest.raises(RecipeError) as caught:
        check_alike([{"torch": "2.13.0"}, {"torch": "2.13.0"}, {"torch": "2.12.1"}])
    assert str(caught.value) == (
        "ranks 0 and 2 differ in torch (2.13.0 and 2.12.1): give all ranks the same"
    )
