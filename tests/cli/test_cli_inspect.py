"""`ratchet inspect` of a small Triton kernel for a GPU that is not here."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from commands import mistake

from ratchet.amd import profile
from ratchet.cli import main
from ratchet.judge.trial.kernel_trial import why_no_kernels

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
    pytest.mark.skipif(
        why_no_kernels() is not None,
        reason="no kernel can be tried on this machine",
    ),
]
SQUARED_RELU = """
import torch
import triton
import triton.language as tl

@triton.jit
def squared_relu_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.maximum(tl.load(x + at, at < n, 0.0), 0.0)
    tl.store(y + at, kept * kept, at < n)

def squared_relu(x, scalars):
    y = torch.empty_like(x)
    squared_relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return (y,)
"""
COUNTS = ("vgprs", "agprs", "sgprs", "spills", "lds_bytes", "scratch_bytes", "occupancy_waves")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "squared_relu.py"
    path.write_text(SQUARED_RELU)
    return path


def test_the_json_tells_what_a_kernel_takes_of_a_target(
    kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", "squared_relu", str(kernel), "--tier", "ci", "--target", "gfx942"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["targets"]) == ["gfx942"]
    assert found["targets"]["gfx942"]["error"] is None
    (only,) = found["targets"]["gfx942"]["kernels"]
    assert only["name"] == "squared_relu_kernel"
    assert all(type(only[name]) is int and only[name] >= 0 for name in COUNTS), only
    assert only["vgprs"] > 0 and only["sgprs"] > 0 and only["occupancy_waves"] > 0
    assert only["agprs"] == only["spills"] == only["lds_bytes"] == only["scratch_bytes"] == 0
    assert only["matrix_instructions"] == []


DOCS = Path(__file__).parents[2] / "docs" / "reference" / "judge.md"
GATED = """
import torch
import triton
import triton.language as tl

@triton.jit
def fill(y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.zeros((BLOCK,), tl.float32), at < n)

def gated_backward(grad, x, w, scalars):
    dx, dw = torch.empty_like(x), torch.empty_like(w)
    for y in (dx, dw):
        fill[(triton.cdiv(y.numel(), 256),)](y, y.numel(), BLOCK=256)
    return dx, dw
"""


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded_once: None) -> Path:
    """The problem of docs/reference/judge.md as it stands there, all of tier cpu, and a kernel."""
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```python\n(# gated_backward\.py\n.*?)```", DOCS.read_text(), re.DOTALL)
    path = tmp_path / "gated_backward.py"
    path.write_text(text)
    (tmp_path / "kernel.py").write_text(GATED)
    return path


def test_the_documented_problem_is_launched_at_the_largest_tier_that_it_has(
    documented: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", str(documented), "kernel.py", "--target", "gfx942"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["case"], found["tier"]) == ("rows", "cpu")
    assert found["targets"]["gfx942"]["kernels"][0]["name"] == "fill"
    assert main(words) == 0
    assert "case rows (tier cpu)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["inspect", "judge"])
def test_a_tier_that_a_problem_has_not_is_answered_with_those_it_has(
    command: str, documented: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = mistake(capsys, command, str(documented), "kernel.py", "--tier", "gpu")
    assert "'gated_backward' has no case of tier 'gpu': it has cpu" in line


def test_a_problem_with_a_fault_is_one_line_and_exit_code_1(
    documented: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documented.write_text(documented.read_text() + "raise OSError('no')\n")
    words = ["inspect", str(documented), "kernel.py"]
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1, captured.err
    assert "cannot be judged: it raises OSError: no" in captured.err
    assert main([*words, "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "" and json.loads(captured.out)["targets"] == {}
    assert "it raises OSError: no" in json.loads(captured.out)["reason"]
    assert "gfx000" in mistake(capsys, *words, "--target", "gfx000")


BROKEN = {
    "on one target": (
        "    if triton.runtime.driver.active.get_current_target().arch == 'gfx950': raise OSError",
        [1, 0],
    ),
    "on both": ("    raise OSError('no')", [0, 0]),
    "launches nothing": ("    return torch.empty_like(x), torch.empty_like(w)", [0, 0]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_did_not_compile_on_a_target_is_exit_code_1(
    name: str, documented: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, counts = BROKEN[name]
    head = "def gated_backward(grad, x, w, scalars):\n"
    Path("kernel.py").write_text(GATED.replace(head, f"{head}{line}\n"))
    words = ["inspect", str(documented), "kernel.py", "--target", "gfx942,gfx950"]
    assert main([*words, "--json"]) == 1
    captured = capsys.readouterr()
    targets = json.loads(captured.out)["targets"]
    assert captured.err == "" and list(targets) == ["gfx942", "gfx950"]
    assert [len(one["kernels"]) for one in targets.values()] == counts
    failed = name != "launches nothing"
    assert bool(targets["gfx950"]["error"]) is failed
    assert ("reason" in json.loads(captured.out)) is not failed


def test_a_target_without_a_kernel_or_with_an_error_has_not_compiled() -> None:
    good = {"kernels": [{"name": "k"}], "error": None}
    for one, compiled in (
        (good, True),
        (good | {"error": "the entry raised OSError"}, False),
        ({"kernels": [], "error": None}, False),
    ):
        assert profile.all_compiled({"targets": {"a": good, "b": one}}) is compiled
    assert not profile.all_compiled({"targets": {}})


@pytest.mark.thorough
def test_the_table_names_the_kernel_and_the_target(
    kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", "squared_relu", str(kernel), "--tier", "ci", "--target", "gfx942"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "squared_relu_kernel" in shown and "gfx942" in shown
