"""A run that is killed for real goes on from the ledger, and judges nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import HEEDING, needs_judge

from ratchet.base.ledger import Ledger

WORDS = [
    *("write", "silu_rows.py", "--authors", "search", "--json"),
    *("--candidates", "30", "--budget", "5m"),  # a busy machine has the time too
]
PROBLEM = """
import torch
from ratchet import Case, Problem, TensorSpec

def silu_rows(x, scalars):
    scaled = x * scalars[0]
    return (scaled * (1 / (1 + torch.exp(-x))),)

def case(name, *shape, **kw):
    return Case(name=name, scalars=(1.5,), inputs=(TensorSpec(shape=shape, dtype="float32"),), **kw)

PROBLEM = Problem(
    name="silu_rows", reference="silu_rows",
    cases=(case("rows", 256, 512, timed=True), case("tails", 7, 33, hidden=True)),
)
"""


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"RATCHET_LEDGER": str(folder / "ledger.db")}
    return subprocess.Popen(
        [*HEEDING, sys.executable, "-m", "ratchet.cli", *WORDS, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers(folder: Path) -> int:
    if not (folder / "ledger.db").exists():
        return 0
    with Ledger.open(folder / "ledger.db") as ledger:
        return ledger.counts()["writing_answers"]


@needs_judge
@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_is_resumed(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "silu_rows.py").write_text(PROBLEM)
    first = started(tmp_path)
    deadline = time.monotonic() + 200
    while answers(tmp_path) == 0 and first.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    first.send_signal(number)
    first.communicate(timeout=60)
    before = answers(tmp_path)
    assert before > 0

    second = started(tmp_path, "--resume")
    output, errors = second.communicate(timeout=300)
    assert second.returncode in (0, 1), errors
    document = json.loads(output)
    assert document["status"] in ("proven", "correct")
    places = [(row["kernel_hash"], row["stage"], row["rung"]) for row in document["rows"]]
    assert len(places) == len(set(places)) == answers(tmp_path) >= before
