"""What a killed process leaves: nothing, however young its children are and whatever they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ratchet
from ratchet.base.process import watchdog

Run = Callable[[str], "subprocess.Popen[bytes]"]
TOKEN = "RATCHET_TEST_TOKEN"
FOR_EVER = "import time\ntime.sleep(1 << 20)\n"
A_CHILD = """
import subprocess, sys
from ratchet.base.process import watchdog
code = "import os, time; os.fork(); os.setsid(); os.fork(); time.sleep(1 << 20)"
subprocess.Popen([sys.executable, "-I", "-S", "-c", code], env=watchdog.environment()).wait()
"""
A_WORKER = """
import os, sys
from ratchet.base.process.child import Child, program
command = [sys.executable, "-P", "-m", "{module}"]
child = Child(program(lambda c: [*command, str(c), str(os.getpid())], dict(os.environ)))
child.receive("start", limit_s=1 << 20)
"""
A_PROBLEM = """
from ratchet.judge.problems.problem_file import load_problem
load_problem("problem.py", time_limit_s=1 << 20)
"""
A_COMPILER = """
from pathlib import Path
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages.cpp import compile_kernel
compile_kernel(Kernel(name="k", language="cpp", source="", entry="k"), cache=Path("cache"))
"""
PROBLEM = "import time\nclass Model: pass\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
COMPILER = '#!/bin/sh\n[ "$1" = --version ] && exit\nsleep 1000000\n'


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], subprocess.Popen[bytes]]:
    """Start a program in a folder where torch and the compiler take for ever."""
    (tmp_path / "torch.py").write_text(FOR_EVER)
    (tmp_path / "problem.py").write_text(PROBLEM + FOR_EVER)
    (tmp_path / "compiler").write_text(COMPILER)
    (tmp_path / "compiler").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(source_folder())]))
    monkeypatch.setenv("RATCHET_CXX", str(tmp_path / "compiler"))
    monkeypatch.setenv(TOKEN, str(tmp_path))
    monkeypatch.delenv(watchdog.MARK, raising=False)
    return lambda code: subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


def source_folder() -> Path:
    return Path(ratchet.__file__).parents[1]


def of_test(folder: Path) -> Iterator[int]:
    """The processes that a test's program has started, and itself."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{TOKEN}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue


def wait_until(condition: Callable[[], bool], *, times: int = 1, pause_s: float = 0.005) -> None:
    """Wait until it holds so often in a row; what lives on lives for ever."""
    deadline = time.monotonic() + 60
    held = 0
    while held < times and time.monotonic() < deadline:
        held = held + 1 if condition() else 0
        time.sleep(pause_s)
    assert held == times


def kill(program: subprocess.Popen[bytes], folder: Path, *, after: int) -> None:
    """Kill a program as soon as it has so many processes; none may be left."""
    wait_until(lambda: len(set(of_test(folder)) - {os.getpid()}) > after)
    program.kill()
    program.wait()
    # A process that is just being replaced by its program has no environment for a moment.
    wait_until(lambda: set(of_test(folder)) <= {os.getpid()}, times=10, pause_s=0.025)


@pytest.mark.parametrize("after", [1, 1, 1, 4])
def test_a_killed_process_leaves_nothing(run: Run, tmp_path: Path, after: int) -> None:
    kill(run(A_CHILD), tmp_path, after=after)


@pytest.mark.parametrize(
    ("code", "after"),
    [
        (A_WORKER.format(module="ratchet.judge.workers.reference"), 1),
        (A_WORKER.format(module="ratchet.judge.workers.arm"), 1),
        (A_PROBLEM, 1),
        (A_PROBLEM, 2),
        (A_COMPILER, 2),
    ],
    ids=["reference", "arm", "keeper", "file", "compiler"],
)
def test_a_killed_judge_leaves_no_worker(run: Run, tmp_path: Path, code: str, after: int) -> None:
    kill(run(code), tmp_path, after=after)


def test_what_carries_a_mark_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(watchdog.MARK, "a mark")
    assert watchdog.environment({"A": "b"}) == {"A": "b", watchdog.MARK: "a mark"}


def test_one_watchdog_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(watchdog.MARK, raising=False)
    first, second = watchdog.environment({}), watchdog.environment()
    assert first[watchdog.MARK] == second[watchdog.MARK]
    assert first[watchdog.MARK].startswith(f"{os.getpid()}-")
