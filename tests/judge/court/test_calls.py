"""`ratchet.judge(kernel, problem)` as a script calls it: paths, names, objects, mistakes."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answers import assert_right

import ratchet
from ratchet.base.errors import KernelError, RatchetError
from ratchet.judge.api import as_kernel, as_problem
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec, reference_text
from ratchet.judge.trial import plan

PROBLEM = """
from ratchet import Case, Problem, TensorSpec

def scaled(x, scalars):
    return (x * scalars[0],)

def spec(*shape, **rest):
    return TensorSpec(shape=shape, dtype="float32", **rest)

PROBLEM = Problem(name="{name}", reference="scaled", cases=(
    Case(name="rows", tier="{tier}", timed=True, scalars=(0.5,), inputs=(spec(64, 64),)),
    Case(name="gaps", hidden=True, scalars=(3.0,), inputs=(spec(7, 33, layout="strided"),)),
))
"""
ANSWER = "def {name}(x, scalars):\n    return ({factor}x * scalars[0],)\n"
RELU = """
import torch

def squared_relu(x, scalars):
    return (torch.relu(x).square(),)
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loaded_once: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "LAUNCHES", 2)
    monkeypatch.setattr(plan, "MIN_ROUNDS", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 2)
    monkeypatch.setattr(plan, "LOOKS", 1)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A module of a user's own with a PROBLEM, that can be imported."""
    name = f"scaled_{tmp_path.name.replace('-', '_')}"
    Path(f"{name}.py").write_text(PROBLEM.format(name="scaled", tier="cpu"))
    monkeypatch.syspath_prepend(tmp_path)
    yield name  # type: ignore[misc]
    sys.modules.pop(name, None)


def written(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_a_verdict_from_paths(one_judge: None) -> None:
    problem = written("problem.py", PROBLEM.format(name="scaled", tier="ci"))
    right = written("right.py", ANSWER.format(name="scaled", factor=""))
    verdict = ratchet.judge(right, problem)
    assert_right(verdict)
    assert verdict.environment["tier"] == "ci"  # it has no other
    wrong = written("wrong.py", ANSWER.format(name="other", factor="1.01 * "))
    found = ratchet.judge(str(wrong), str(problem), entry="other", time_limit_s="2m")
    assert found.status == "wrong", found.reason
    assert found.problem_hash == verdict.problem_hash


def test_a_verdict_from_a_name() -> None:
    kernel = written("squared_relu.py", RELU)
    verdict = ratchet.judge(kernel, "squared_relu", tier="ci", task="any", threads=1)
    assert_right(verdict)
    assert verdict.environment["tier"] == "ci"
    against = verdict.speedup.vs_reference
    assert against is None or against.confidence == pytest.approx(1 - 0.05 / 3)


def test_a_verdict_from_objects(module: str) -> None:
    spec = TensorSpec(shape=(64, 64), dtype="float32")
    case = Case(name="rows", timed=True, scalars=(0.5,), inputs=(spec,))
    problem = Problem(name="mine", reference=f"{module}:scaled", cases=(case,))
    source = ANSWER.format(name="mine", factor="")
    kernel = Kernel(name="k", language="torch", source=source, entry="mine")
    assert_right(ratchet.judge(kernel, problem))


def test_a_problem_that_was_imported_from_its_file(module: str, one_judge: None) -> None:
    problem = importlib.import_module(module).PROBLEM
    assert problem.text == ""
    kernel = written("kernel.py", ANSWER.format(name="scaled", factor=""))
    verdict = ratchet.judge(kernel, problem)
    assert_right(verdict)
    assert verdict.problem_hash == as_problem(f"{module}.py").hash
    with pytest.raises(KernelError, match="it has cpu"):
        ratchet.judge(kernel, problem, tier="gpu")


def test_a_problem_whose_file_is_not_known_says_what_to_give(module: str) -> None:
    problem = replace(importlib.import_module(module).PROBLEM)  # a copy, which no module has
    kernel = written("kernel.py", ANSWER.format(name="scaled", factor=""))
    with pytest.raises(KernelError, match="give that file") as found:
        ratchet.judge(kernel, problem)
    assert "\n" not in str(found.value)


OWN_FILE, THAT_FILE = "put it into a file of its own", "give that file"
SCRIPT = """
import ratchet
from ratchet import Case, Problem, RatchetError, TensorSpec

def scaled(x, scalars):
    return (x * scalars[0],)

spec = TensorSpec(shape=(4, 4), dtype="float32")
PROBLEM = Problem(
    name="scaled", reference="REFERENCE", cases=(Case(name="a", inputs=(spec,), scalars=(1.0,)),)
)
kernel = ratchet.Kernel(name="k", language="torch", source="", entry="scaled")
try:
    ratchet.judge(kernel, PROBLEM)
except RatchetError as error:
    print(f"one line: {error}")
"""


@pytest.mark.parametrize(
    ("reference", "words", "start"),
    [
        ("__main__:scaled", OWN_FILE, ("script.py",)),
        ("scaled", THAT_FILE, ("-m", "script")),
        pytest.param("__main__:scaled", OWN_FILE, ("-m", "script"), marks=pytest.mark.thorough),
        pytest.param("scaled", THAT_FILE, ("script.py",), marks=pytest.mark.thorough),
    ],
)
def test_a_function_of_the_script_that_runs_is_no_reference(
    reference: str, words: str, start: tuple[str, ...]
) -> None:
    written("script.py", SCRIPT.replace("REFERENCE", reference))
    run = subprocess.run([sys.executable, *start], capture_output=True, text=True, timeout=120)
    assert run.stdout.startswith("one line: ") and run.stdout.count("\n") == 1, run.stderr
    assert words in run.stdout


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("torch._C:relu", "without Python source"),
        ("sys:exit", "without Python source"),
        ("no_such_module:f", "names no module that can be found"),
        (":f", "names no module that can be found"),
        ("..here:f", "names no module that can be found"),
        ("scaled", "a function of the problem's own file"),
    ],
)
def test_a_reference_without_text(reference: str, words: str) -> None:
    with pytest.raises(KernelError, match=words) as found:
        reference_text(reference)
    assert "\n" not in str(found.value)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"scale": 0}, "scale 0 is neither auto nor a factor"),
    ({"scale": "half"}, "scale 'half' is neither auto"),
    ({"scale": math.nan}, "scale nan"),
    ({"scale": [1]}, "scale"),
    ({"device": "tpu"}, "use auto, cpu, cuda or cuda:N"),
    ({"device": None}, "use auto, cpu, cuda or cuda:N"),
    ({"tier": "huge"}, "use one of ci, cpu, gpu"),
    ({"task": "mine"}, "use one of own, any"),
    ({"time_limit_s": 0}, "at least 1s"),
    ({"time_limit_s": -5.0}, "at least 1s"),
    ({"time_limit_s": "soon"}, "not a duration"),
    ({"time_limit_s": math.inf}, "not a duration"),
    ({"time_limit_s": None}, "not a duration"),
    ({"threads": 0}, "is not a number of cores"),
    ({"threads": "two"}, "is not a number of cores"),
]


@pytest.mark.parametrize(("argument", "words"), MISTAKES, ids=str)
def test_a_mistake_in_an_argument_is_one_line(argument: dict[str, Any], words: str) -> None:
    kernel = Kernel(name="k", language="torch", source="", entry="squared_relu")
    with pytest.raises(RatchetError) as found:
        ratchet.judge(kernel, "squared_relu", **argument)
    assert words in str(found.value) and "\n" not in str(found.value)


def test_what_is_no_kernel_and_no_problem() -> None:
    with pytest.raises(KernelError, match="is not a problem: give a file"):
        as_problem(3)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="is not a kernel: give a file"):
        as_kernel(None, as_problem("squared_relu"))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_hip_kernel_is_told_where_it_can_go(device: str) -> None:
    kernel = Kernel(name="k", language="hip", source="", entry="squared_relu")
    verdict = ratchet.judge(kernel, "squared_relu", tier="ci", device=device)
    assert verdict.status == "unmeasured"
    assert verdict.reason == (
        "HIP kernels are emulated, or inspected: give --target gfx942, or use ratchet inspect "
        "PROBLEM KERNEL"
    )
