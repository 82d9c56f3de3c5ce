"""Bad files: what cannot be read or parsed exits with 2, what is read and no good is `refused`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import mistake

from ratchet.cli import main

KERNEL = 'extern "C" long squared_relu(const void*, long, const double*, long) { return 1; }\n'
MODEL = "class Model:\n    pass\n"
INPUTS = "def get_inputs():\n    return []\n"
INIT = "def get_init_inputs():\n    return []\n"
OURS = """
import torch
from ratchet import Case, Problem, TensorSpec

def reference(x, scalars):
    return ({answer},)

PROBLEM = Problem(
    name="squared_relu", reference="reference",
    cases=(Case(name="rows", timed=True, inputs=(
        TensorSpec(shape=({rows}, 16), dtype="float32"),)),),
)
"""
Make = Callable[[Path], object]


def text(words: str) -> Make:
    return lambda path: path.write_text(words)


def octets(words: bytes) -> Make:
    return lambda path: path.write_bytes(words)


def gigabytes(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


ANY_FILE: dict[str, tuple[Make, str]] = {
    "missing": (lambda path: None, "No such file"),
    "directory": (Path.mkdir, "is a folder"),
    "FIFO": (os.mkfifo, "is a FIFO"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "link to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "gigabytes": (gigabytes, "has 8589934592 bytes"),
    "binary": (octets(b"\x7fELF\xff\xfe\x00"), "not UTF-8"),
}
PROBLEMS = ANY_FILE | {
    "empty": (text(""), "Model"),
    "null bytes": (octets(b"x = 1\0"), "not Python"),
    "not Python": (text("def Model(:\n"), "line 1"),
    "C++": (text(KERNEL), "not Python"),
    "deep": (text("x = " + "(" * 5000), "not Python"),
    "another file": (text("import torch\nx = 1\n"), "neither Model nor PROBLEM"),
    "no Model": (text(INPUTS + INIT), "neither Model nor PROBLEM"),
    "no get_inputs": (text(MODEL + INIT), "no get_inputs:"),
    "no get_init_inputs": (text(MODEL + INPUTS), "no get_init_inputs:"),
    "neither": (text(MODEL), "no get_inputs and no get_init_inputs:"),
}
KERNELS = ANY_FILE | {
    "empty": (text(""), "no 'squared_relu'"),
    "another entry": (text(KERNEL.replace("squared", "cubed")), "its entries are cubed_relu"),
}
PYTHON_KERNELS = {
    "empty": ("", "no 'squared_relu'"),
    "not Python": ("def squared_relu(:\n", "line 1"),
    "C++": (KERNEL, "not Python"),
    "no entry": ("def other(x, s): ...\ndef another(x, s): ...\n", "other, another"),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A ledger and a folder of this test's own, and a kernel that is none of the mistakes."""
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    Path("kernel.cpp").write_text(KERNEL)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("command", ["judge", "inspect"])
def test_a_problem_that_cannot_be_read(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words = PROBLEMS[name]
    make(Path("problem.py"))
    assert words in mistake(capsys, command, "problem.py", "kernel.cpp")


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_cannot_be_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = KERNELS[name]
    make(Path("given.cpp"))
    line = mistake(capsys, "judge", "squared_relu", "given.cpp")
    assert words in line and "given.cpp" in line


@pytest.mark.parametrize("name", PYTHON_KERNELS)
def test_a_python_kernel_that_cannot_be_parsed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, words = PYTHON_KERNELS[name]
    Path("given.py").write_text(source)
    assert words in mistake(capsys, "judge", "squared_relu", "given.py")


@pytest.mark.parametrize("name", ["kernel.rs", "kernel", "kernel.CPP", "kernel.cpp.txt"])
def test_a_kernel_in_no_language_that_is_known(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text(KERNEL)
    assert "has no ending of a kernel" in mistake(capsys, "judge", "squared_relu", name)


def test_files_that_may_not_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("problem.py").write_text(MODEL)
    for name in ("problem.py", "kernel.cpp"):
        Path(name).chmod(0)
    for command in ("judge", "inspect"):  # imports what the next calls need
        mistake(capsys, command, "missing.py", "kernel.cpp")
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        assert "Permission denied" in mistake(capsys, "judge", "problem.py", "kernel.cpp")
        assert "Permission denied" in mistake(capsys, "inspect", "problem.py", "kernel.cpp")
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("target", ["gfx000", "gfx942,sm_1", "h100"])
def test_a_target_that_does_not_exist(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(capsys, "inspect", "squared_relu", "kernel.cpp", "--target", target)
    assert target.rpartition(",")[2] in line


REFUSED = {
    "raises": ("raise OSError('no')\n" + OURS.format(answer="x", rows=4), "raises OSError: no"),
    "no problem": ("PROBLEM = 3\n", "PROBLEM is int"),
    "not callable": (MODEL + INIT + "get_inputs = 3\n", "get_inputs cannot be called"),
    "constant": (OURS.format(answer="torch.ones_like(x)", rows=4), "a constant"),
    "random": (OURS.format(answer="x + torch.rand_like(x)", rows=4), "nondeterministic"),
    "too large": (OURS.format(answer="x * x", rows=1 << 40), "too large for this machine"),
}
BRIEFLY = ("raises", "random")
"""The others are shown below the command line too."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in BRIEFLY else (pytest.mark.thorough,))
        for name in REFUSED
    ],
)
def test_a_problem_that_is_read_and_no_good_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, words = REFUSED[name]
    Path("problem.py").write_text(source)
    call = ["judge", "problem.py", "kernel.cpp", "--entry", "squared_relu", "--json"]
    assert main(call) == 1
    captured = capsys.readouterr()
    verdict = json.loads(captured.out)
    assert verdict["status"] == "refused", verdict["reason"]
    assert words in verdict["reason"] and "\n" not in verdict["reason"], verdict["reason"]
    assert captured.err == ""


@pytest.mark.compiler
def test_a_source_that_the_compiler_rejects_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("kernel.cpp").write_text(KERNEL + "int x = ;\n")
    assert main(["judge", "squared_relu", "kernel.cpp", "--tier", "ci", "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["status"] == "refused" and "\n" not in verdict["reason"]


@pytest.mark.parametrize("seed", ["-1", "4294967296", "9" * 24])
def test_a_seed_that_is_none_is_one_line(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(capsys, "optimize", "llama-tiny", "--seed", seed)
    assert f"seed {seed} is out of range" in line and "0 to 4294967295" in line


@pytest.mark.parametrize("kind", ["FIFO", "directory"])
@pytest.mark.parametrize("command", ["bench", "optimize"])
def test_a_text_that_is_none_is_one_line(
    command: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words = ANY_FILE[kind]
    make(Path("text"))
    assert f"text' {words}" in mistake(capsys, command, "llama-tiny", "--text", "text")
