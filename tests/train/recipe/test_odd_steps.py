"""Models and steps that are not plain: checked, counted, described, and right when compiled."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import odd_steps
import pytest
import torch

from ratchet.base.errors import WorkloadError
from ratchet.judge.steps.numerics import judge_gradients
from ratchet.train.recipe import signature_of
from ratchet.train.recipe.compiled_step import CompiledStep
from ratchet.train.recipe.facts import StepFacts, describe_workload
from ratchet.train.turn.arm import StepArm, make_arm
from ratchet.train.turn.bench import BenchArm
from ratchet.train.workloads.check import check
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.fake import flops_of
from ratchet.train.workloads.step import TrainingStep

FILE = odd_steps.__file__
PRODUCT = 2 * 16 * 8 * 8
"""Operations of one product of a batch of 16 with 8 by 8 weights."""


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def arm(name: str, config: StepConfig | None = None, *, is_random: bool = False) -> StepArm:
    given = msgspec.to_builtins(config) if config is not None else None
    made = make_arm(
        workload=f"{FILE}:{name}",
        options={"device": "cpu"},
        config=given,
        kernels=[],
        is_random=is_random,
    )
    assert isinstance(made, StepArm)
    return made


@pytest.mark.parametrize(
    ("name", "optimizer", "why_not_fused", "precision"),
    [
        ("weight_norm", "AdamW", "", "fp32"),
        ("spectral_norm", "AdamW", "", "fp32"),
        ("orthogonal", "AdamW", "", "fp32"),
        ("reentrant", "AdamW", "", "fp32"),
        ("sparse", "SGD", "a layer has sparse gradients", "fp32"),
        ("sparse_adam", "SparseAdam+Adam", "", "fp32"),
        ("complex_filter", "AdamW", "a parameter is complex", "fp32"),
        ("double", "AdamW", "", "fp64"),
        ("bf16", "AdamW", "", "bf16"),
        ("branches", "AdamW", "", "fp32"),
        ("lstm", "AdamW", "", "fp32"),
        ("noisy", "Adam", "", "fp32"),
    ],
)
def test_a_step_is_checked_run_and_described(
    name: str, optimizer: str, why_not_fused: str, precision: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = arm(name)
        found.gradients(str(tmp_path / "written"))
        found.step(2)
        told = found.workload()
    assert (told["optimizer"], told["why_not_fused"]) == (optimizer, why_not_fused)
    assert told["written"]["precision"] == precision
    assert told["is_random"] == (name == "noisy")
    assert told["uncompiled"] == (("LSTM",) if name == "lstm" else ())
    assert told["flops_per_step"] > 0 and not told["warnings"]
    same = judge_gradients(*[tmp_path / "written"] * 3)
    assert same.passed and len(same.parameters) == len(found._step.parameters)


def test_a_description_holds_what_a_recipe_keeps() -> None:
    step = TrainingStep(odd_steps.noisy(), StepConfig())
    facts = describe_workload(step, odd_steps.batch(0))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=StepFacts) == facts
    assert facts.optimizer == "Adam" and facts.model == signature_of(step.model)


def test_parametrised_layers_are_counted() -> None:
    # Two layers: a product forward, and one each for the weight and for the input of the second.
    step = TrainingStep(odd_steps.weight_norm(), StepConfig())
    assert flops_of(step, odd_steps.batch(0)) == 5 * PRODUCT


def test_a_fault_of_the_optimizer_is_one_line() -> None:
    workload = odd_steps.adam_over_sparse()
    check(workload)
    step = TrainingStep(workload, StepConfig())
    with pytest.raises(WorkloadError, match="its update raised RuntimeError: Adam does not") as e:
        step(odd_steps.batch(0))
    assert "\n" not in str(e.value)


def test_a_loss_that_is_not_finite_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.train.workloads.bench.gemm_rate", lambda *_: 0.0)
    found = BenchArm(odd_steps.diverging(), []).bench(3)
    (line,) = found["warnings"]
    assert found["loss"] is None
    assert line.startswith("the loss of odd is ") and "after 6 steps" in line


def test_weights_in_bf16_are_judged_by_fp32_ones(tmp_path: Path) -> None:
    """Bf16's own error is what another way of running the step may have."""
    written, exact = arm("bf16"), arm("bf16", StepConfig())
    for found, name in ((written, "written"), (exact, "exact")):
        found.gradients(str(tmp_path / name))
    assert all(p.dtype == torch.float32 for p in exact._step.parameters.values())
    check = judge_gradients(tmp_path / "exact", tmp_path / "written", tmp_path / "written")
    assert check.passed and all(0 < one.error < 0.05 for one in check.parameters)


def test_an_own_step_is_not_run_twice_from_one_state(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="start an arm of that precision"):
        arm("noisy").gradients(str(tmp_path / "rounded"), autocast=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_call_sites_of_an_own_step_are_found_without_training_it() -> None:
    found = arm("normed")
    before = {name: p.detach().clone() for name, p in found._step.parameters.items()}
    sites = found.sites("fp32")
    assert {one["kernel"] for one in sites} == {"layer_norm", "linear", "adamw"}
    assert all(torch.equal(p, before[name]) for name, p in found._step.parameters.items())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", ["normed", "noisy"])
def test_an_own_step_is_compared_with_what_it_does_as_written(name: str, tmp_path: Path) -> None:
    found = arm(name, StepConfig(optimizer="fused"))
    found.gradients(str(tmp_path / "gradients"))
    assert found.difference(3) == ""


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_lever_that_changes_what_an_own_step_does_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: an update of half the size, in the third call alone."""
    found = arm("normed", StepConfig(optimizer="fused"))
    own, calls = found._step.own, 0
    assert isinstance(own, CompiledStep)
    real = own.run

    def run(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        for group in own.stepped[0].param_groups:
            group["lr"] = group["lr"] / 2 if calls == 3 else group["lr"]
        return real(*given)

    monkeypatch.setattr(own, "run", run)
    assert found.difference(2) == ""
    assert "differs from the step as written: parameter" in found.difference(2)


def test_a_step_of_a_loss_is_ratchets_own_and_not_compared() -> None:
    assert arm("double", StepConfig(precision="fp64")).difference(2) == ""


@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_own_step_draws_what_the_written_one_does(tmp_path: Path) -> None:
    """Dropout, noise and batch statistics are those of eager code while gradients are compared."""
    written = arm("noisy")
    written.gradients(str(tmp_path / "written"))
    config = StepConfig(compile_mode="default", optimizer="fused")
    compiled = arm("noisy", config, is_random=True)
    compiled.gradients(str(tmp_path / "compiled"))
    check = judge_gradients(*[tmp_path / "written"] * 2, tmp_path / "compiled")
    assert check.passed, check.detail
    assert compiled.describe()["graphs"] > 0
    norms = [one._step.model.norm for one in (written, compiled)]
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(*(getattr(norm, name) for norm in norms))
