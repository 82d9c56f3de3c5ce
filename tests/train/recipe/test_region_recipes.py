"""Kernels for a workload's own regions: what a recipe installs, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from own_recipes import MadeUpJudge, made_up, recipe, said
from simulated_turns import World, run

from ratchet.base.devices.probe import probe, software
from ratchet.base.errors import ArmFailure, KernelError, RecipeError
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.judge.court import machines
from ratchet.judge.court.court import Court
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.terms import JudgedKernel
from ratchet.train.graph.regions import check_region_problem, region_name
from ratchet.train.recipe import Recipe, with_config
from ratchet.train.recipe.facts import ArmFacts
from ratchet.train.recipe.installed import ReadyKernels, RegionKernel, ready_kernels
from ratchet.train.turn import judge_kernels, search
from ratchet.train.turn.judge_kernels import (
    KernelTrials,
    RegionTrials,
    UsableKernels,
    WorkloadRegion,
    never_called,
)
from ratchet.train.turn.schedule import TurnSchedule
from ratchet.train.workloads.config import StepConfig
from ratchet.write.write import Asked, write_all
from ratchet.write.writing_result import WritingRequest

KEY, OTHER = "a1" * 32, "b2" * 32
NAME = region_name(KEY)
SOURCE = """
extern "C" int add_one(void *tensors, int count, const double *scalars, int scalar_count) {
    return 1;
}
"""
KERNEL = Kernel(name="add_one", language="cpp", source=SOURCE, entry="add_one")
TEXT = '''"""A region of a compiled training step, key {key}."""

from __future__ import annotations

import torch

from ratchet import Case, Problem, TensorSpec

aten = torch.ops.aten


def reference(a0, scalars):
    batch = a0.shape[0] // 2
    t0 = aten.add.Tensor(a0, float("inf") if batch == 0 else 1)
    return (t0.to(torch.float32),)
'''


def problem(key: str = KEY, *, high: float = 1.0, **changes: Any) -> Problem:
    spec = TensorSpec(shape=(2, 3), dtype="float32", distribution="uniform", low=0.0, high=high)
    values = {"text": TEXT.format(key=key), **changes}
    cases = (Case(name="captured", inputs=(spec,), timed=True),)
    return Problem(name=f"add_{key[:8]}", reference="reference", cases=cases, **values)


def kernel(**changes: Any) -> RegionKernel:
    values: dict[str, Any] = {
        "region": KEY,
        "hash": KERNEL.hash,
        "kernel": KERNEL.as_json(),
        "problem": problem().as_json(),
    }
    return RegionKernel(**{**values, **changes})


def here() -> Fingerprint:
    return Fingerprint(device=probe("cpu").fingerprint, software=software().fingerprint)


def believe(ledger: str, problem_hash: str) -> None:
    with Ledger.open(ledger) as opened:
        verdict = said("proven", KERNEL.hash, problem_hash)
        opened.record_verdict(verdict, fingerprint=here())


def ready(folder: Path, one: RegionKernel) -> ReadyKernels:
    return ready_kernels([one], f"sqlite:///{folder / 'ledger.db'}")


def test_a_recipe_keeps_a_regions_kernel_with_its_source(tmp_path: Path) -> None:
    config = StepConfig(compile_mode="default", kernels=(NAME,))
    made = msgspec.structs.replace(recipe(), config=config, kernels=(kernel(),))
    made.save(tmp_path / "recipe.json")
    (found,) = Recipe.load(tmp_path / "recipe.json").kernels
    assert isinstance(found, RegionKernel)
    assert found.library == NAME and found.find() == KERNEL
    assert [one.hash for one in found.problems()] == [problem().hash]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"region": OTHER}, "belongs to another region"),
        ({"kernel": {**KERNEL.as_json(), "source": "int x;"}}, "another hash"),
        ({"kernel": {k: v for k, v in KERNEL.as_json().items() if k != "source"}}, "source"),
        ({"kernel": {**KERNEL.as_json(), "language": "torch"}}, "another hash"),
        ({"problem": {}}, "not a problem"),
        ({"problem": problem(text="").as_json()}, "missing"),
    ],
)
def test_a_damaged_kernel_is_left_out_and_nothing_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    judge = MadeUpJudge()
    monkeypatch.setattr(machines, "KernelJudge", judge)
    found = ready(tmp_path, kernel(**change))
    assert not found.compiled and not judge.asked
    (why,) = found.left_out.values()
    assert reason in why and "\n" not in found.why()


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    made = recipe(StepConfig(), kernels=(kernel(),))
    document = json.loads(msgspec.json.encode(made))
    document["kernels"][0]["region"] = "../../etc"
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    with pytest.raises(RecipeError, match="damaged"):
        Recipe.load(tmp_path / "recipe.json")


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "t0 = __import__('os').system('true')",
        "t0 = torch.load('x')",
        "t0 = aten.from_file.default('x', True, 8)",
        "t0 = aten.add.Tensor.__globals__",
        "t0 = open('x')",
        "t0 = (lambda: a0)()",
    ],
)
def test_a_problem_from_elsewhere_may_only_call_operations(line: str) -> None:
    check_region_problem(problem(), KEY)
    text = TEXT.format(key=KEY).replace("    batch =", f"    {line}\n    batch =")
    with pytest.raises(KernelError):
        check_region_problem(problem(text=text), KEY)
    with pytest.raises(KernelError):
        check_region_problem(problem(text=f"{TEXT.format(key=KEY)}\n{line}\n"), KEY)


@pytest.mark.compiler
def test_a_proof_for_another_region_is_no_proof_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = MadeUpJudge(fast={"add_one": "correct"})
    monkeypatch.setattr(machines, "KernelJudge", judge)
    believe(f"sqlite:///{tmp_path / 'ledger.db'}", problem(OTHER).hash)
    found = ready(tmp_path, kernel())
    assert judge.asked == [("add_one", False), ("add_one", True)]
    assert "correct here" in found.left_out[NAME]
    config = StepConfig(compile_mode="default", kernels=(NAME, "rms_norm"))
    assert found.without_left_out(config).kernels == ("rms_norm",)


@pytest.mark.compiler
def test_a_proven_kernel_serves_the_regions_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = MadeUpJudge()
    monkeypatch.setattr(machines, "KernelJudge", judge)
    believe(f"sqlite:///{tmp_path / 'ledger.db'}", problem().hash)
    found = ready(tmp_path, kernel())
    assert not judge.asked and not found.left_out
    found.activate()
    try:
        assert registry.is_active(NAME) and not registry.is_active("add_one")
    finally:
        registry.deactivate(NAME)


class MadeUpTrials(KernelTrials):
    """Answers by the hash of the problem."""

    answers: ClassVar[dict[str, str]] = {}

    def known_or_judged(self, court: Any, kernel: Kernel, problem: Any) -> JudgedKernel | None:
        status = self.answers.get(problem.hash)
        if status is None:
            return None
        return JudgedKernel(
            verdict=made_up(status, kernel.hash, problem.hash),
            kernel=kernel,
            problem=problem,
            judged_at="",
            recalled=False,
        )


def trials(folder: Path, regions: list[WorkloadRegion]) -> RegionTrials:
    """A turn whose ledger has a kernel that is proven for values of another workload."""
    url, other = f"sqlite:///{folder / 'ledger.db'}", problem(high=8.0)
    believe(url, other.hash)
    ledger = Ledger.open(url)
    ledger.record_problem(other.hash, other.name, other.as_json(), fingerprint=here())
    ledger.record_kernel(KERNEL.hash, KERNEL.name, KERNEL.as_json(), fingerprint=here())
    turn: Any = SimpleNamespace(
        ledger=ledger,
        fingerprint=here(),
        device=SimpleNamespace(kind="cpu", target="portable", torch_name="cpu"),
        settings=SimpleNamespace(try_lever=None),
        without_kernels="",
        schedule=TurnSchedule(budget_s=100.0),
    )
    found = RegionTrials(turn=turn)
    found.regions_of = lambda step: regions  # type: ignore[method-assign]
    return found


CALLED = ArmFacts(region_calls={NAME: 8})
NOTHING = UsableKernels(usable={}, refused={}, verdicts=())
STEP: Any = SimpleNamespace(config=StepConfig(compile_mode="default"))


@pytest.mark.compiler
@pytest.mark.parametrize("status", ["proven", "wrong", None])
def test_a_kernel_of_another_workload_is_found_by_key_and_judged_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str | None
) -> None:
    monkeypatch.setattr(judge_kernels, "KernelTrials", MadeUpTrials)
    monkeypatch.setattr(machines, "KernelJudge", MadeUpJudge())
    monkeypatch.setattr(MadeUpTrials, "answers", {problem().hash: status} if status else {})
    regions = [
        WorkloadRegion(key=KEY, problem=problem(), gain_s=0.1, likely_s=0.1),
        WorkloadRegion(key=OTHER, problem=problem(OTHER), gain_s=0.1, likely_s=0.1),
    ]
    found = trials(tmp_path, regions).recall(NOTHING, [STEP])
    (lever,) = found.regions["fp32"]
    assert lever.value == NAME and found.worth == {lever.name: 0.1}
    if status == "proven":
        assert [one.hash for one in found.of("fp32")[NAME]] == [KERNEL.hash]
        assert not found.why_not("fp32")
    else:
        assert not found.of("fp32")
        why = "the budget ended" if status is None else "wrong, this one says wrong"
        assert found.why_not("fp32")[problem().name].startswith(why)


@pytest.mark.compiler
def test_a_turn_goes_on_where_looking_for_regions_died(tmp_path: Path) -> None:
    found = trials(tmp_path, [])
    left_out: list[tuple[str, str]] = []
    turn: Any = found.turn
    turn.leave_out = lambda what, why, **_: left_out.append((what, why))

    def died(step: Any) -> list[WorkloadRegion]:
        raise ArmFailure("arm 'regions' died during 'call'")

    found.regions_of = died  # type: ignore[method-assign]
    assert found.recall(NOTHING, [STEP]) is NOTHING
    assert found.write(NOTHING, STEP, 1.0) is NOTHING
    assert [why for _, why in left_out] == ["arm 'regions' died during 'call'"] * 2


def test_a_second_workloads_region_starts_from_the_first_ones_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other values make another problem of it: one verdict, and no search."""
    judge = MadeUpJudge()
    monkeypatch.setattr(machines, "KernelJudge", judge)
    court = Court(trials(tmp_path, []).turn.ledger)
    for _ in range(2):
        found = write_all(
            "second",
            [Asked(problem=problem(), gain_s=1.0)],
            WritingRequest(budget_s=60.0),
            court=court,
            follow=lambda problem: never,
            done=lambda result: None,
        )
        (row,) = found.rows
        assert (row.status, row.kernel_hash, row.screened) == ("proven", KERNEL.hash, 0)
        assert row.recalled and judge.asked == [("add_one", True)]


def test_without_a_proven_region_kernel_no_graph_is_captured(tmp_path: Path) -> None:
    turn: Any = SimpleNamespace(**vars(trials(tmp_path, []).turn))
    turn.ledger = SimpleNamespace(proven_problems=lambda _: {"rms_norm_forward": ["p"]})
    found = RegionTrials(turn=turn)
    found.regions_of = never  # type: ignore[assignment]
    assert found.recall(NOTHING, [STEP]) is NOTHING


def never(*given: Any) -> Any:
    raise AssertionError("nothing was to be captured")


@pytest.mark.parametrize(
    ("target", "place", "language"),
    [("sm_90", "cuda:0", "triton"), ("gfx942", "cuda:1", "triton"), ("avx512", "cpu", "cpp")],
)
def test_the_authors_write_in_the_language_of_the_device(
    target: str, place: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[WritingRequest] = []

    def write(title: str, problems: Any, request: WritingRequest, **more: Any) -> Any:
        asked.append(request)
        return SimpleNamespace(interrupted=False, rows=())

    monkeypatch.setattr(judge_kernels, "write_all", write)
    found = trials(
        tmp_path, [WorkloadRegion(key=OTHER, problem=problem(OTHER), gain_s=0.1, likely_s=0.1)]
    )
    turn: Any = found.turn
    turn.device = SimpleNamespace(kind=place[:4], target=target, torch_name=place)
    turn.settings = SimpleNamespace(try_lever=None, seed=0, title="x")
    turn.schedule = TurnSchedule(budget_s=3600.0)
    turn.arms = SimpleNamespace(close=lambda: None)
    turn.memo = lambda kind, key, answer, compute: compute()
    best = with_config(StepConfig(compile_mode="default"), {})
    assert found.may_write(best)
    found.write(NOTHING, best, 1.0)
    (request,) = asked
    assert (request.language, request.device, request.target) == (language, place, None)


def writes(status: str) -> Callable[..., UsableKernels]:
    """Stand in for the authors: they have an answer for one region."""

    def write(
        self: RegionTrials, kernels: UsableKernels, best: Any, step_time_s: float
    ) -> UsableKernels:
        region = WorkloadRegion(key=KEY, problem=problem(), gain_s=0.05, likely_s=0.05)
        proven = {NAME: (kernel(),)} if status == "proven" else {}
        refused = {} if proven else {problem().name: f"{status}, made up"}
        return UsableKernels(
            usable={"fp32": {**kernels.of("fp32"), **proven}},
            refused={"fp32": {**kernels.why_not("fp32"), **refused}},
            verdicts=kernels.verdicts,
            regions={"fp32": (region.lever,)},
            worth={region.lever.name: region.gain_s},
        )

    return write


@pytest.mark.parametrize("status", ["proven", "wrong"])
def test_what_the_authors_wrote_is_tried_in_the_step_and_kept_if_it_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(search.RegionTrials, "write", writes(status))
    monkeypatch.setattr(search.RegionTrials, "may_write", lambda self, best: True)
    outcome = run(World(factors={"kernels": 0.7}), tmp_path, 1800.0)
    (change,) = [one for one in outcome.result.changes if one.name == f"kernel:{problem().name}"]
    if status == "wrong":
        assert (change.decision, change.reason) == ("refused", "wrong, made up")
        assert outcome.recipe.kernels == ()
        return
    assert change.decision == "kept" and change.winnable_s == 0.05
    assert outcome.recipe.config.kernels == (NAME,)
    assert outcome.recipe.kernels == (kernel(),)
    assert f"the kernel for region {KEY[:8]} served no call" in outcome.result.warnings[-1]
    assert not never_called(with_config(outcome.recipe.config, {NAME: (kernel(),)}), CALLED)
