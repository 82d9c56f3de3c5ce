"""`--dry-run --target`: what would be tried on a GPU that is not here, with emulated verdicts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands_guard import mistake

from ratchet.amd.emulator.estimates import prediction
from ratchet.amd.profile.sampled import SampledCall
from ratchet.cli import main
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.case import Case
from ratchet.judge.problems.problem import Problem
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.judge.verdict import EmulatedBound, EmulatedCase, Verdict
from ratchet.train.turn import dry_run
from ratchet.write.writing_result import WritingRequest

WORDS = ["optimize", "llama-tiny", "--dry-run", "--device", "cpu", "--target", "gfx942"]
BOUND = {"memory_s": 0.0, "matrix_s": 0.0, "vector_s": 0.0, "lds_s": 0.0}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Kernel, Problem, Terms]]:
    """Everything that the judge is asked; it answers at once, and rope's backward is wrong."""
    found: list[tuple[Kernel, Problem, Terms]] = []

    def judge(
        court: Court, kernel: Kernel, problem: Problem, terms: Terms, **more: Any
    ) -> JudgedKernel:
        found.append((kernel, problem, terms))
        bound = EmulatedBound(device="MI300X", time_s=2e-6, **BOUND)
        verdict = Verdict(
            status="wrong" if kernel.entry == "rope_backward" else "correct",
            reason="case timed: off",
            emulated=[EmulatedCase(case="timed", target="gfx942", kernels=[], bounds=[bound])],
            isolation="none",
            kernel_hash=kernel.hash,
            problem_hash=problem.hash,
        )
        return JudgedKernel(
            verdict=verdict, kernel=kernel, problem=problem, judged_at="", recalled=False
        )

    monkeypatch.setattr(Court, "judge", judge)
    monkeypatch.setattr(dry_run, "write_all", written)
    monkeypatch.setattr(dry_run, "Sampler", MadeUpSampler)
    return found


class MadeUpSampler:
    """Every call takes a microsecond, but that of RMS norms."""

    device = "AMD Instinct MI300X"

    def __init__(self, *given: object) -> None:
        assert given[0] == "gfx942"

    def call(self, kernel: Kernel, problem: Problem, case: Case) -> SampledCall:
        assert (case.timed and case in problem.cases) or case.name == "batch 512"
        if kernel.entry.startswith("rms_norm"):
            return SampledCall(dropped="it spills")
        return SampledCall(predicted=prediction("MI300X", 1e-6))

    def close(self) -> None:
        pass


def written(title: str, asked: Any, request: WritingRequest, **more: Any) -> Any:
    """Stand in for the authors, which would search for a minute for each region.

    They come to the first alone.
    """
    assert (request.language, request.target, request.device) == ("triton", "gfx942", "cpu")
    assert not [one for one in asked if "_for_cpu" in one.problem.text]
    sizes = {one.shape[0] for each in asked for one in each.problem.cases[0].inputs if one.shape}
    assert 1 not in sizes  # a kernel for a batch of one would be wrong for every other
    rows: list[Any] = []
    for one in asked:
        about = {"problem": one.problem.name, "problem_hash": one.problem.hash}
        if rows:
            rows.append(SimpleNamespace(**about, status="not_reached", reason="no time"))
            continue
        rows.append(SimpleNamespace(**about, status="correct", reason="right"))
        bound = SimpleNamespace(device="MI300X", time_s=3e-6)
        verdict = SimpleNamespace(emulated=[SimpleNamespace(bounds=[bound], estimated_speedup=1.5)])
        shown = {"name": "own", "source": "x = 1", "entry": "own"}
        best: Any = SimpleNamespace(reason="right", verdict=verdict, **shown)
        result: Any = SimpleNamespace(
            problem=one.problem.name, problem_hash=one.problem.hash, status="correct", best=best
        )
        more["done"](result)
    return SimpleNamespace(rows=rows)


def sizes_of(row: dict[str, Any]) -> list[list[int]]:
    return [size for site in row["sites"] for size in site["shapes"].values()]


def test_every_kernel_that_the_step_would_run_is_judged_for_the_target(
    asked: list[tuple[Kernel, Problem, Terms]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main([*WORDS, "--json", "--ledger", str(tmp_path / "ledger.db")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["warnings"] == []
    assert document["target"] == "gfx942"
    rows = {one["entry"]: one for one in document["kernels"]}
    assert {"attention_forward", "rms_norm_backward", "adamw_step", "rope_backward"} <= {*rows}
    assert "layer_norm_forward" not in rows  # a Llama has none
    regions = [one for one in document["kernels"] if one["library"] == "region"]
    assert [one["status"] for one in regions] == ["correct", "not_reached"]
    assert [one["emulated_bound_s"] for one in regions] == [3e-6, None]
    # Captured at a batch of two, bounded at the step's 512. Its heads for keys are two as well.
    assert all(size[:1] != [2] for one in regions for size in sizes_of(one))
    assert all(one["step_bound_s"] > 0 for one in regions)
    assert [one["reason"] for one in regions] == ["right", "no time"]
    times = [one["step_predicted"] and one["step_predicted"]["time_s"] for one in regions]
    assert times == [pytest.approx(1e-6 * regions[0]["calls"]), None]
    assert rows["rope_backward"]["status"] == "wrong" and rows["rope_backward"]["reason"]
    assert rows["rope_forward"]["device"] == "MI300X"
    assert rows["rope_forward"]["emulated_bound_s"] == 2e-6
    assert rows["attention_forward"]["calls"] == 2  # one a layer
    assert rows["attention_forward"]["step_predicted"]["time_s"] == pytest.approx(2e-6)
    assert rows["rope_backward"]["step_predicted"] is None  # it is wrong
    step = document["predicted_step"]
    assert step["products"]["time_s"] > 0 and 0.9 < step["covered"] <= 1
    parts = (step["products"]["time_s"], step["kernels"]["time_s"])
    assert step["predicted"]["time_s"] == pytest.approx(sum(parts))
    assert {"rms_norm_forward", "rope_backward"} <= {*step["left_out"]}
    assert rows["rms_norm_forward"]["no_prediction"] == "it spills"
    assert all(kernel.language == "triton" for kernel, _, _ in asked)
    assert {terms.target for _, _, terms in asked} == {"gfx942"}
    (rope,) = (problem for kernel, problem, _ in asked if kernel.entry == "rope_forward")
    assert rope.cases[0].inputs[0].dtype == "bfloat16"  # what the turn would try first on a GPU

    # Levers are those of an MI300X, not those of this machine.
    tried = {one["name"] for one in document["levers"]}
    skipped = {one["name"]: one["reason"] for one in document["skipped"]}
    assert {"compile-reduce-overhead", "tunableop", "bf16-weights"} <= tried
    assert skipped["allocator-mallopt"] == "it applies only to CPUs"
    assert skipped["kernel:layer_norm"] == "the step has no call site for it"
    assert skipped["attention-cudnn"] == "it applies only to NVIDIA GPUs"

    monkeypatch.setattr(dry_run, "SHORTEST_S", 1e9)
    assert main([*WORDS, "--ledger", str(tmp_path / "ledger.db")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "step's own regions: the budget has no room for it; raise --budget" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "gfx942"], "add --dry-run"),
        (["--target", "gfx900", "--dry-run"], "gfx942"),
    ],
)
def test_a_target_needs_a_dry_run_and_a_name(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in mistake(capsys, "optimize", "llama-tiny", "--device", "cpu", *words)


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_a_kernel_of_the_step_runs_as_machine_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [*WORDS, "--try", "kernel:rope", "--json", "--ledger", str(tmp_path / "ledger.db")]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["kernels"]
    assert [one["status"] for one in rows] == ["correct", "correct"]
    assert all(one["emulated_bound_s"] > 0 and one["step_predicted"]["low_s"] > 0 for one in rows)
