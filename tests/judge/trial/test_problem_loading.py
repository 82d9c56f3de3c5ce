"""Reading a problem's file takes no longer than it may and leaves no process, whatever it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from ratchet.base.process import WALL_FACTOR, families
from ratchet.cli import main
from ratchet.judge.problems.problem_file import Describe, load_problem
from ratchet.judge.trial.kernel_trial import KernelJudge

LIKE = Path(__file__).parents[1] / "kernelbench_like"
LIMIT_S = 8.0
MOST_S = WALL_FACTOR * LIMIT_S + 20.0
"""On a busy machine what loops has longer."""
FILE = """
import os, time

PIDS = {pids!r}

def note():
    with open(PIDS, "a") as file:
        print(os.getpid(), file=file)

def loop():
    note()
    while True:
        pass

def leave():
    note()
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        os.setsid()
        note()
        time.sleep(1000)

class Model: pass
def get_init_inputs(): return []
def get_inputs():
    {get_inputs}

{at_import}
"""
LOOPS = ("pass", "loop()")
LEAVES = ("leave()\n    time.sleep(1000)", "")
RAISES = (
    "pass",
    "leave()\nwhile len(open(PIDS).readlines()) < 2: time.sleep(0.01)\n"
    "raise OSError('no')\nPROBLEM = 0",
)
SLEEPS = ("pass", "leave()\ntime.sleep(1000)\nPROBLEM = 0")
"""In our own form, which is read sooner."""


def written(folder: Path, get_inputs: str, at_import: str) -> tuple[Path, Path]:
    """The problem's file, and the file in which its processes note their ids."""
    problem, pids = folder / "problem.py", folder / "pids"
    text = FILE.format(pids=str(pids), get_inputs=get_inputs, at_import=at_import)
    problem.write_text(text)
    return problem, pids


def left_of(pids: Path) -> list[int]:
    """Which of the noted processes still run."""
    noted = [int(line) for line in pids.read_text().split()] if pids.exists() else []
    states = [families.read_state(pid) for pid in noted]
    return [state.pid for state in states if state is not None and state.alive]


@pytest.fixture(params=["alone", "beside a judge"])
def describe(request: pytest.FixtureRequest) -> Describe | None:
    """What runs a problem's file: a process of its own, or a fork of one of the judge's."""
    if request.param == "alone":
        return None
    return cast("KernelJudge", request.getfixturevalue("judge")).describe


def test_a_file_that_forks_and_sleeps_is_refused_in_time(
    tmp_path: Path, describe: Describe | None
) -> None:
    path, pids = written(tmp_path, *LEAVES)
    began = time.monotonic()
    problem = load_problem(path, scale=None, time_limit_s=LIMIT_S, describe=describe)
    assert time.monotonic() - began < MOST_S
    assert f"did not finish within {LIMIT_S:.0f} s" in problem.fault
    assert left_of(pids) == []


def test_a_daemon_ends_when_the_file_has_been_read(
    tmp_path: Path, describe: Describe | None
) -> None:
    path, pids = written(tmp_path, *RAISES)
    assert "it raises OSError: no" in load_problem(path, scale=None, describe=describe).fault
    assert len(pids.read_text().split()) >= 2
    assert left_of(pids) == []


def test_a_file_that_loops_as_it_is_imported_holds_no_verdict_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    path, pids = written(tmp_path, *LOOPS)
    Path("kernel.py").write_text("class ModelNew: pass\n")
    began = time.monotonic()
    code = main(["judge", str(path), "kernel.py", "--time-limit", f"{LIMIT_S:.0f}s", "--json"])
    assert time.monotonic() - began < MOST_S
    verdict = json.loads(capsys.readouterr().out)
    assert code == 1 and verdict["status"] == "refused"
    assert "did not finish" in verdict["reason"] and "\n" not in verdict["reason"]
    assert left_of(pids) == []


def test_a_problem_is_the_same_beside_a_judge(judge: KernelJudge) -> None:
    for path in sorted((LIKE / "level1").glob("*.py"))[:4]:
        found = load_problem(path, describe=judge.describe)
        assert found.fault == "" and found == load_problem(path)


ALONE = "load_problem({path!r})"
BESIDE = """
from ratchet.judge.trial.kernel_trial import KernelJudge
with KernelJudge() as judge: load_problem({path!r}, describe=judge.describe)
"""


@pytest.mark.parametrize("reads", [ALONE, BESIDE], ids=["alone", "beside a judge"])
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_whoever_reads_may_be_killed(number: signal.Signals, reads: str, tmp_path: Path) -> None:
    path, pids = written(tmp_path, *SLEEPS)
    code = (
        # A shell may start its background work with SIGINT ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from ratchet.judge.problems.problem_file import load_problem\n"
    ) + reads.format(path=str(path))
    reader = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (pids.exists() and len(pids.read_text().split()) >= 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(reader.pid, number)
    reader.wait()
    deadline = time.monotonic() + 30
    while left_of(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_of(pids) == []
