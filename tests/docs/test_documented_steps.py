"""Every step of docs/how-to/workloads.md trains as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.check import load_checked
from ratchet.train.workloads.step import TrainingStep

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "workloads.md"
SECTION = PAGE.read_text().partition("## A step of your own")[2].partition("\n## ")[0]
COMMON, *STEPS = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


def _title(code: str) -> str:
    return re.findall(r'name="(\w+)"', code)[0] if "name=" in code else "script"


@pytest.mark.parametrize("code", STEPS, ids=_title)
def test_a_documented_step_trains(code: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{COMMON}\n\n{code}")
    name = "build" if "def build" in code else "make_workload"
    precision = "bf16_autocast" if "autocast(" in code else None
    workload, warnings = load_checked(f"{path}:{name}", precision=precision)
    assert warnings == ()
    step = TrainingStep(workload, workload.as_written())
    first = {n: p.detach().clone() for n, p in step.parameters.items()}
    losses = [step(batch_of(workload, index)) for index in range(2)]
    assert all(loss.isfinite() for loss in losses)
    assert all((p != first[n]).any() for n, p in step.parameters.items())


def test_there_is_a_step_of_each_form() -> None:
    forms = ["own", "script", "groups", "gan", "accumulated", "scheduled", "ema", "scaled"]
    assert [_title(code) for code in STEPS] == forms
