"""Prompts of every language and kind, briefs of every sort of problem, and the device's facts."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from agent_runs import fine, small_problem, source, wrong

from ratchet.base.devices.probe import probe
from ratchet.base.errors import RatchetError
from ratchet.judge.api import as_problem
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.suites import find_problem
from ratchet.write.agent import prompt
from ratchet.write.agent.brief import (
    ProblemBrief,
    brief_of,
    device_facts,
    profile_lines,
    target_facts,
)
from ratchet.write.agent.strategy import (
    DIRECTIONS,
    Assignment,
    Kind,
    Planner,
    Population,
    StrategyName,
)
from ratchet.write.author import Progress, Proposal
from ratchet.write.knowledge import Passage

LANGUAGES: tuple[Language, ...] = ("cpp", "triton", "torch", "hip")
OURS = """
print("noise on stdout")

def reference(x, scale, scalars):
    {body}
    return (x * scale + scalars[0],)
"""
MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.randn(8, 16)]

def get_init_inputs():
    return [16]
"""


def progress_of(*verdicts: object) -> Progress:
    progress = Progress(problem=small_problem())
    for number, verdict in enumerate(verdicts):
        kernel = Kernel(name="k", language="cpp", source=source(number), entry="squared_relu")
        proposal = Proposal(kernel=kernel, author="agent:m", note=f"note {number}")
        progress.answers.append(verdict(proposal, number))  # type: ignore[operator]
    return progress


def facts(brief: ProblemBrief) -> prompt.TurnFacts:
    passage = Passage(title="T", path="/a/b.md", place="Here", text="Pad the rows. {{ 7 * 7 }}")
    return prompt.TurnFacts(
        brief=brief,
        device=("a device",),
        passages=(passage,),
        best=("best line",),
        failed=("failed line",),
        unusable=("answer 1: nothing",),
    )


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", ["draft", "improve", "fix", "cross", "mutate"])
def test_every_kind_is_asked_in_every_language(language: Language, kind: Kind) -> None:
    brief = brief_of(small_problem(), language)
    shown = prompt.Parent(
        source="int the_source;", verdict="wrong: off", evidence=("line one",), profile=("64 regs",)
    )
    parents = [] if kind == "draft" else [shown] * (2 if kind == "cross" else 1)
    asked = Assignment(kind=kind, direction="go faster")
    system, user = prompt.render(language, facts(brief), asked, parents)
    assert (system.role, user.role) == ("system", "user")
    for words in ("best line", "failed line", "answer 1: nothing", "a device", "go faster"):
        assert words in user.content
    assert "From /a/b.md, Here:" in user.content and "{{ 7 * 7 }}" in user.content
    assert user.content.count("int the_source;") == len(parents)
    assert user.content.rstrip().endswith("Define `squared_relu`.")
    assert "\n\n\n\n" not in user.content
    assert ("# A file to start from" in user.content) == (kind == "draft" and language != "hip")


def test_a_version_is_of_its_language_and_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    versions = {language: prompt.prompt_version(language) for language in LANGUAGES}
    assert len(set(versions.values())) == 4 and {len(one) for one in versions.values()} == {12}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_problem_of_the_suite_is_told_in_full(language: Language) -> None:
    brief = brief_of(find_problem("softmax").at("ci"), language)
    assert brief.entry == "softmax" and "def softmax" in brief.reference
    assert any("(timed)" in one for one in brief.cases)
    assert brief.signature[-1].startswith("out: float32")
    assert ("RATCHET_ENTRY softmax" in brief.start) == (language == "cpp")
    assert ("@triton.jit" in brief.start) == (language == "triton")


def scaled(body: str = "pass") -> Problem:
    """Return the problem of a file in our form, as its reader gives it."""
    inputs = (
        TensorSpec(shape=(32, 16), dtype="float32"),
        TensorSpec(shape=(16,), dtype="float32"),
    )
    case = Case(name="rows", timed=True, scalars=(0.5,), inputs=inputs)
    text = OURS.format(body=body)
    return Problem(name="scaled", reference="reference", cases=(case,), text=text)


def test_a_problem_of_a_file_is_shown_by_a_process_of_its_own() -> None:
    brief = brief_of(scaled(), "cpp")
    assert (brief.entry, brief.arguments, brief.scalars) == ("scaled", "x, scale, scalars", "0.5")
    assert brief.signature[2] == "out: float32 [32, 16], output"


@pytest.mark.thorough
def test_a_model_is_asked_for_as_a_class_in_python(tmp_path: Path) -> None:
    file = tmp_path / "1_linear.py"
    file.write_text(MODEL)
    problem = as_problem(file)
    torch, cpp = brief_of(problem, "torch"), brief_of(problem, "cpp")
    assert (torch.entry, torch.is_model, cpp.entry) == ("ModelNew", True, "kernel_1_linear")
    _, user = prompt.render("torch", facts(torch), Assignment(kind="draft"), [])
    assert "class ModelNew(nn.Module)" in user.content


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import os; os._exit(3)", "its process died"),
        ("import time; time.sleep(99)", "did not finish"),
    ],
)
def test_a_file_that_misbehaves_costs_its_problem_alone(
    body: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s = 60.0 if "died" in words else 3.0
    monkeypatch.setattr("ratchet.write.agent.brief.CARD_LIMIT_S", limit_s)
    began = time.monotonic()
    with pytest.raises(RatchetError, match=words):
        brief_of(scaled(body), "cpp")
    assert time.monotonic() - began < 60


def test_a_device_is_told_by_its_facts() -> None:
    here = "\n".join(device_facts(probe("cpu")))
    assert "cores" in here and "instruction sets" in here
    there = "\n".join(target_facts("gfx942"))
    for words in ("not on this machine", "64 lanes in a wave", "512 vector registers", "MI300"):
        assert words in there, words
    assert "peak" in there and "- dies: 8 XCD" in there


def test_a_profile_is_told_in_a_few_lines() -> None:
    kernel = {
        **{"name": "k", "vgprs": 60, "total_vgprs": 64, "spills": 0, "lds_bytes": 1024},
        **{"occupancy_waves": 8, "max_waves": 8, "occupancy_limit": "none", "launches": 1},
        "matrix_instructions": [{"name": "v_mfma_f32_32x32x8_bf16", "count": 4}],
        "global_load_bits": {"128": 2},
        "notes": ["half of the loads are narrow"],
    }
    bound = {"device": "MI300X", "time_s": 1.05e-4, "limit": "matrix"}
    found = {"kernels": [kernel], "bounds": [bound], "error": None}
    document = {"targets": {"gfx90a": {"kernels": [], "error": "x"}, "gfx942": found}}
    lines = profile_lines(document)
    assert lines[0] == "compiled for gfx942:"
    assert "64 vector registers, 0 spills, 1024 bytes of LDS, 8 of 8 waves" in lines[1]
    assert lines[-1] == "no faster than 105 us on MI300X, limited by matrix (an estimate)"
    assert profile_lines(document, "gfx90a") == ["does not compile for gfx90a: x"]
    assert profile_lines(None) == profile_lines({"error": "no triton"}) == []


# Populations and strategies.


def test_a_population_holds_each_kernel_once_the_best_first() -> None:
    progress = progress_of(fine(1.0), fine(1.4), wrong("off"), fine(0.5))
    first = progress.answers[0]
    progress.answers.append(replace(first, stage="judged", status="proven", ratio=3.0))
    progress.answers.append(replace(first, ratio=9.9))  # a later screening counts less
    found = Population.of(progress, "cpp")
    assert [round(one.ratio or 0.0, 2) for one in found.best] == [3.0, 1.5, 0.8]
    assert [one.status for one in found.failed] == ["wrong"]
    assert Population.of(progress, "triton").best == ()


def planner(language: Language = "cpp", strategy: StrategyName = "beam") -> Planner:
    return Planner(language=language, own=set(), strategy=strategy)


def test_a_beam_improves_the_fastest_in_several_directions() -> None:
    population = Population.of(progress_of(*[fine(1.0)] * 6), "cpp")
    plan = planner().plan(population, 6, random.Random(1))
    assert [one.kind for one in plan] == ["improve"] * 6
    ratios = [one.parents[0].ratio for one in plan]
    assert ratios == [one.ratio for one in population.best[:3]] * 2
    assert len({one.direction for one in plan}) == 6


def test_evolution_breeds_the_faster_more_often() -> None:
    population = Population.of(progress_of(*[fine(1.0)] * 10), "cpp")
    strategy, source_ = planner(strategy="evolve"), random.Random(2)
    plans = [one for _ in range(60) for one in strategy.plan(population, 5, source_)]
    kinds = [one.kind for one in plans]
    assert {"draft", "cross", "mutate"} == set(kinds)
    assert 0.2 < kinds.count("cross") / len(kinds) < 0.4
    best = {one.kernel.hash for one in population.best[:5]}
    drawn = [one.parents[0].kernel.hash in best for one in plans if one.kind == "mutate"]
    assert sum(drawn) / len(drawn) > 0.6
    assert all(one.parents[0] is not one.parents[1] for one in plans if one.kind == "cross")


def test_only_own_failures_are_repaired_and_not_more_than_half_of_a_turn() -> None:
    progress = progress_of(fine(1.0), *[wrong("off")] * 4)
    population = Population.of(progress, "cpp")
    mine = planner()
    assert all(one.kind != "fix" for one in mine.plan(population, 4, random.Random(3)))
    mine.own |= population.hashes
    kinds = [one.kind for one in mine.plan(population, 4, random.Random(3))]
    assert kinds == ["fix", "fix", "improve", "improve"]
    assert DIRECTIONS.keys() == set(LANGUAGES)
