"""Tests in forks: every one is told once, also those behind a process that dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = """
import pytest
from forked_workers import SHARED, pytest_addoption, pytest_runtestloop

@pytest.fixture(scope="session", autouse=True)
def left(pytestconfig, tmp_path_factory):
    yield
    place = pytestconfig.stash[SHARED] / (tmp_path_factory.getbasetemp().name + ".left")
    place.touch(exist_ok=False)
"""
FIRST = """
import os, signal

def test_one(tmp_path):
    print("printed by one")

def test_two():
    os.kill(os.getpid(), signal.SIGKILL)

def test_three():
    print("printed by three")
    assert False
"""
OTHERS = "def test_four(tmp_path): pass\n"


def test_forks_run_every_test_once_and_one_that_dies_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_first.py").write_text(FIRST)
    for number in range(3):
        (tmp_path / f"test_other_{number}.py").write_text(OTHERS)
    words = ["--workers", "2", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "made")]
    path = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import pytest; "
    done = subprocess.run(
        [sys.executable, "-c", f"{path}sys.exit(pytest.main(sys.argv[1:]))", *words, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 4 passed" in done.stdout.splitlines()[-1], done.stdout
    assert "test_two - its process ended: -9" in done.stdout
    assert "printed by three" in done.stdout and "printed by one" not in done.stdout
    assert len([*(tmp_path / "made").glob("*.left")]) == 2  # the one that died left nothing
