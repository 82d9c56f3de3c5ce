"""The command by which a level of KernelBench is judged under torch.compile, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import RIGHT
from commands import needs_judge

from ratchet.cli import main
from ratchet.judge.trial import plan

MATMUL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    \"\"\"A product of two square matrices.\"\"\"
    def __init__(self):
        super(Model, self).__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.matmul(A, B)

N = 512

def get_inputs():
    A = torch.rand(N, N)
    B = torch.rand(N, N)
    return [A, B]

def get_init_inputs():
    return []  # No special initialization inputs needed
"""
SWISH = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super(Model, self).__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)

batch_size = 4096
dim = 16384

def get_inputs():
    x = torch.rand(batch_size, dim)
    return [x]

def get_init_inputs():
    return []
"""
FILES = {"1_Square_matrix_multiplication_.py": MATMUL, "25_Swish.py": SWISH}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Laid out as KernelBench's repository is; the problems are our own."""
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "LAUNCHES", 2)
    monkeypatch.setattr(plan, "MIN_ROUNDS", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 2)
    monkeypatch.setattr(plan, "LOOKS", 1)
    root = tmp_path / "KernelBench"
    for level in (1, 2):
        (root / "KernelBench" / f"level{level}").mkdir(parents=True)
    (root / "README.md").write_text("# KernelBench\n")
    (root / "src").mkdir()
    (root / "src" / "eval.py").write_text("raise SystemExit('never run')\n")
    for name, text in FILES.items():
        (root / "KernelBench" / "level1" / name).write_text(text)
    (root / "KernelBench" / "level2" / "1_Other.py").write_text(SWISH)
    return root


@pytest.mark.thorough
@pytest.mark.timeout(600)
@needs_judge
def test_every_problem_of_the_level_stands_in_the_table_with_its_answer(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["judge", "--kernelbench", str(clone), "--level", "1"]
    code = main([*command, "--scale", "auto", "--candidate", "torch.compile"])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    rows = {
        name: next(line for line in captured.out.splitlines() if Path(name).stem in line)
        for name in FILES
    }
    for name, row in rows.items():
        assert any(answer in row for answer in RIGHT), (name, captured.out)
    assert "1_Other" not in captured.out
    assert code in (0, 1)
