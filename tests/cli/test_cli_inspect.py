"""`ratchet inspect` of a small Triton kernel for a GPU that is not here."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from ratchet.cli import main
from ratchet.judge import isolation

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
    pytest.mark.skipif(
        isolation.bubblewrap() is None
        and os.geteuid() == 0
        and not isolation._enterable(sys.base_prefix),
        reason="no bubblewrap, and this Python lies where a candidate's uid may not read",
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


@pytest.mark.thorough
def test_the_table_names_the_kernel_and_the_target(
    kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", "squared_relu", str(kernel), "--tier", "ci", "--target", "gfx942"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "squared_relu_kernel" in shown and "gfx942" in shown
