"""A mistake that text can show is answered before torch, numpy and the ledger are imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ratchet.judge.problems.suites import NAMES, load_suite
from ratchet.train.levers import all_levers, kernel_lever_names, kernel_levers
from ratchet.train.workloads.load import FAMILIES
from ratchet.train.workloads.names import OF_IMAGES, SIZES, known

LIBRARY_FILE = "norms.py"
MISTAKES = {
    "judge silu broken.py": "never closed",
    "judge silu entry.cpp": "no 'silu'",
    "judge silu missing.cpp": "No such file",
    "judge problem.py entry.cpp": "no 'scaled'",
    "judge sillu k.cpp": "near it are silu",
    "judge missing.py k.cpp": "No such file",
    "judge silu k.cpp --tier huge": "use one of ci, cpu, gpu",
    "judge silu k.cpp --device tpu": "use auto, cpu",
    "judge silu k.cpp --scale 2": "scale '2'",
    "judge silu k.cpp --time-limit 0s": "at least 1s",
    "judge --suite trainin": "use one of training",
    "judge --list nothing-like-it": "no problem's name matches",
    "judge --show sillu": "near it are silu",
    "judge --show silu --template rust": "use one of cpp, triton, torch",
    "inspect silu k.cpp --target gfx000": "use one of gfx90a",
    "inspect silu broken.py": "never closed",
    "inspect silu missing.py": "No such file",
    f"inspect silu {LIBRARY_FILE}": "its entries are rms_norm_forward, ",
    "optimize lama-60m": "did you mean 'llama-60m'",
    "optimize llama-tiny --budget 0s": "at least 30s",
    "optimize llama-tiny --budget soon": "is not a duration",
    "optimize llama-tiny --try nothing": "the levers are compile",
    "optimize llama-tiny --precision fp8": "use one of fp32",
    "optimize llama-tiny --device tpu": "use auto, cpu",
    "optimize llama-tiny --text missing.txt": "text 'missing.txt' cannot be read",
    "optimize vit-tiny --sequence 64": "trained on images",
    "optimize missing.py:make": "'missing.py' cannot be read",
    "optimize broken.py:make": "broken.py:1",
    "optimize problem.py:make": "no function 'make'",
    "optimize llama-tiny --out broken.py": "is a file: name a folder",
    "bench lama-60m": "did you mean",
    "bench llama-tiny --device tpu": "use auto, cpu",
    "compare --budget 1s -- true": "at least 30s",
    "device --device tpu": "use auto, cpu",
    "trace report missing.json": "missing.json cannot be read",
    "trace record lama-60m": "did you mean",
}
HELP = ("", "device", "bench", "optimize", "judge", "inspect", "trace", "trace report")
PROBLEM = """
from ratchet import Case, Problem, TensorSpec

def reference(x, scalars):
    return (2 * x,)

PROBLEM = Problem(name="scaled", reference="reference", cases=(
    Case(name="rows", timed=True, inputs=(TensorSpec(shape=(4, 4), dtype="float32"),)),))
"""
PROGRAM = """
import contextlib, io, json, sys
from ratchet.cli import main

answers = {}
for words in json.load(sys.stdin):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(words.split())
    answers[words] = [code, error.getvalue(), "torch" in sys.modules, "scipy" in sys.modules]
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, bool, bool]]:
    """Exit code and line of each call, and whether torch and scipy were imported by then."""
    from ratchet.judge.kernels.library.sources import Variant

    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "broken.py").write_text("def silu(\n")
    (folder / "entry.cpp").write_text('extern "C" long gelu(const void*) { return 0; }\n')
    (folder / "problem.py").write_text(PROBLEM)
    norms = Variant(language="triton", file="norms", entries=())
    (folder / LIBRARY_FILE).write_text(norms.path.read_text())
    calls = [*MISTAKES, *(f"{command} --help" for command in HELP)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=True,
    )
    return {words: tuple(answer) for words, answer in json.loads(done.stdout).items()}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_answered_from_the_text(
    words: str, answers: dict[str, tuple[int, str, bool, bool]]
) -> None:
    code, line, torch, scipy = answers[words]
    assert code == 2 and line.count("\n") == 1 and MISTAKES[words] in line, line
    assert not torch and (not scipy or words.startswith("trace"))


@pytest.mark.parametrize("command", HELP)
def test_help_needs_no_torch(command: str, answers: dict[str, tuple[int, str, bool, bool]]) -> None:
    assert answers[f"{command} --help"] == (0, "", False, False)


def test_names_that_are_known_without_torch_are_those_that_there_are() -> None:
    listed = [name for names in NAMES.values() for name in names]
    assert listed == [problem.name for problem in load_suite("training")]
    assert {name: tuple(family.sizes) for name, family in FAMILIES.items()} == SIZES
    assert {name for name, one in FAMILIES.items() if one.unit == "images"} == set(OF_IMAGES)
    assert set(known()) > set(SIZES)
    assert kernel_lever_names() == tuple(lever.name for lever in kernel_levers())
    assert set(kernel_lever_names()) < set(all_levers())


def test_a_library_s_file_offers_its_entries_alone(
    answers: dict[str, tuple[int, str, bool, bool]],
) -> None:
    line = answers[f"inspect silu {LIBRARY_FILE}"][1]
    assert line.rstrip().endswith(
        "its entries are rms_norm_forward, add_rms_norm_forward, rms_norm_backward, "
        "add_rms_norm_backward, layer_norm_forward, add_layer_norm_forward, layer_norm_backward, "
        "add_layer_norm_backward"
    )
