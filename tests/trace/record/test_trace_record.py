"""Recording a script that knows nothing of it, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.base.errors import TraceError
from ratchet.trace.answers.report import report
from ratchet.trace.read import read
from ratchet.trace.record import Schedule, record

SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    other.step()
    optimizer.zero_grad()
"""


def command(folder: Path, steps: int) -> list[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return [sys.executable, str(script), str(steps)]


def test_a_script_is_recorded_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "traces"
    (path,) = record(command(tmp_path, 8), out, Schedule(wait=1, warmup=1, active=2))
    assert "sitecustomize" not in capfd.readouterr().err
    trace = read(path)
    found = report(trace)
    assert (trace.platform, trace.rank, trace.faults) == ("cpu", 0, ())
    assert len(found.steps) == 2
    assert found.identity.compute > 0
    names = {row.name for row in found.ops}
    assert "aten::addmm" in names
    assert any(row.shapes.startswith("[[16], [5, 8]") for row in found.ops)
    assert any(row.path.endswith("Linear_0") for row in found.modules)
    assert found.memory is not None and found.memory.allocations > 0


def test_a_trial_run_with_an_optimizer_of_its_own_is_not_counted(tmp_path: Path) -> None:
    """`ratchet trace record train.py:build` checks a script's step on a copy of its own."""
    script = tmp_path / "train.py"
    trial = "torch.optim.SGD(model.parameters(), lr=0.1).step()\n"
    script.write_text(SCRIPT.replace("optimizer =", f"{trial}optimizer =", 1))
    asked = Schedule(wait=1, warmup=1, active=2)
    (path,) = record([sys.executable, str(script), "8"], tmp_path / "traces", asked)
    assert len(report(read(path)).steps) == 2


def test_too_few_steps_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="left no trace"):
        record(command(tmp_path, 2), tmp_path / "traces", Schedule(wait=5))


def test_a_command_that_fails_or_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="ended with code 3"):
        record([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
    with pytest.raises(TraceError, match="cannot start"):
        record(["no-such-program-here"], tmp_path)


def test_a_schedule_that_records_nothing() -> None:
    with pytest.raises(TraceError, match="at least 1"):
        Schedule(active=0)
