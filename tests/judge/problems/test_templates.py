"""What `ratchet judge --show` gives to start from: torch's is right, the skeletons compile."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from ratchet.base.errors import CompilerMissing, KernelError
from ratchet.base.serialise import document_of
from ratchet.cli import main
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.card import ProblemCard, card_of
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import load_card
from ratchet.judge.problems.suites import find_problem, load_suite
from ratchet.judge.problems.templates import standalone_reference, template

LIKE = Path(__file__).parents[2] / "judge" / "kernelbench_like"
SOME = ("row_sum", "bias_gelu", "adamw_step", "quantise_groups", "embedding_bag_backward")
"""One output, bfloat16, changed in place, two outputs, whole numbers."""
OURS = """
from ratchet import Case, Problem, TensorSpec, gradient_of

def doubled(x, scalars):
    return (2 * x,)

reference = gradient_of(doubled, inputs=(0,))

PROBLEM = Problem(name="doubled backward", reference="reference", cases=(
    Case(name="rows", timed=True, inputs=(TensorSpec(shape=(4, 6), dtype="float32"),) * 2),))
"""


def shown(name: str) -> tuple[Problem, ProblemCard]:
    problem = find_problem(name)
    return problem, card_of(problem, given=name, entry=name)


def bits(tensors: list[Tensor]) -> list[bytes]:
    return [one.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for one in tensors]


def test_every_reference_stands_in_a_file_of_its_own() -> None:
    for problem in load_suite("training"):
        source = standalone_reference(problem, problem.name)
        assert source is not None and "ratchet" not in source.lower().split(), problem.name
        case = next(case for case in problem.cases if case.hidden)
        found: dict[str, object] = {"__name__": "candidate"}
        exec(compile(source, "kernel.py", "exec"), found)
        inputs = problem.build_inputs(case, 3)
        wanted, got = (
            list(function(*[one.clone() for one in inputs], case.scalars))
            for function in (problem.load_reference(), found[problem.name])
        )
        assert bits(wanted) == bits(got), problem.name


@pytest.mark.parametrize("name", SOME)
def test_a_card_names_every_tensor(name: str) -> None:
    _, card = shown(name)
    case = card.main_case
    assert case.tier == "cpu" and case.timed
    assert len(card.inputs) == len(case.inputs)
    names = [one.name for one in (*card.inputs, *card.outputs)]
    assert len(set(names)) == len(names) and all(one.isidentifier() for one in names)
    assert case.outputs is not None and len(case.outputs) == len(card.outputs)
    assert card.outputs or any(one.in_place for one in card.inputs)
    assert msgspec.convert(json.loads(json.dumps(document_of(card))), ProblemCard) == card


def test_a_gradient_s_card_has_its_forward_s_names() -> None:
    _, card = shown("bias_gelu_backward")
    assert [one.name for one in card.inputs] == ["grad", "x", "bias"]
    assert [one.sizes for one in card.outputs] == [
        ("grad.shape[0]", "grad.shape[1]"),
        ("grad.shape[1]",),
    ]


@pytest.mark.compiler
@pytest.mark.parametrize("name", SOME)
def test_a_skeleton_compiles(name: str, tmp_path: Path) -> None:
    problem, card = shown(name)
    if card.varies:
        with pytest.raises(KernelError, match="differ in number or dtype"):
            template(problem, card, "triton")
    else:
        ast.parse(template(problem, card, "triton"))
    source = template(problem, card, "cpp")
    assert source.count("TODO") == 1
    try:
        library = cpp.compile_kernel(
            Kernel(name=name, language="cpp", source=source, entry=name), cache=tmp_path
        )
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    assert cpp.load(library, name)


def judged(capsys: pytest.CaptureFixture[str], problem: str, kernel: Path) -> str:
    main(["judge", problem, str(kernel), "--tier", "ci", "--any", "--json"])
    found = json.loads(capsys.readouterr().out)
    return f"{found['status']}: {found['reason']}"


@pytest.mark.compiler
@pytest.mark.parametrize("language", ["cpp", pytest.param("triton", marks=pytest.mark.thorough)])
def test_the_judge_calls_a_skeleton_wrong(
    language: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one_judge: None,
) -> None:
    if language == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    assert main(["judge", "--show", "row_sum", "--template", language]) == 0
    kernel = tmp_path / ("row_sum.cpp" if language == "cpp" else "row_sum.py")
    kernel.write_text(capsys.readouterr().out)
    assert judged(capsys, "row_sum", kernel).startswith("wrong")


def test_a_file_s_problem_is_shown_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loaded_once: None
) -> None:
    (tmp_path / "ours.py").write_text(OURS)
    problem, card = load_card(tmp_path / "ours.py")
    assert card.entry == "doubled_backward" and [one.name for one in card.inputs] == ["grad", "x"]
    assert "def doubled(" in template(problem, card, "torch")
    given = str(LIKE / "level1" / "4_layer_norm.py")
    assert main(["judge", "--show", given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["entry"] == "kernel_4_layer_norm" and "class Model(" in found["reference"]
    assert [one["name"] for one in found["inputs"]] == ["norm_weight", "norm_bias", "x"]
    problem, card = load_card(given)
    assert "class ModelNew(nn.Module):" in template(problem, card, "torch")
    with pytest.raises(KernelError, match="start from --template torch"):
        template(problem, card, "triton")


def test_the_list_is_by_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "--list", "softmax*", "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["problems"]]
    assert names == [
        "softmax",
        "softmax_backward",
        "softmax_bf16",
        "softmax_bf16_backward",
    ]
    assert main(["judge", "--list", "row_sum"]) == 0
    assert "float32 [2048, 1024]" in capsys.readouterr().out
