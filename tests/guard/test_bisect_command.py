"""`ratchet bisect` on a real repository, killed half-way, and on repositories that do not do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands_guard import mistake
from noisy_repository import git, make_repository

METRIC = r"steps: ([\d.]+)"
PROGRAM = [sys.executable, "program.py"]


def _words(repository: Path, state: Path, good: str, bad: str) -> list[str]:
    own = ["--repository", str(repository), "--state", str(state), "--metric", METRIC, "--json"]
    return ["bisect", good, bad, "--build", "sh build.sh", *own, "--", *PROGRAM]


def _start(words: list[str], counter: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ratchet.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COUNTER": str(counter)},
    )


def test_a_slowdown_in_a_real_repository_is_found_by_a_killed_run(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    made = make_repository(repository, commits=17, slow_at=11, broken=(4, 8))
    (repository / "program.py").write_text("raise SystemExit('the checkout is dirty')\n")
    (repository / "own.txt").write_text("untracked\n")
    before = git(repository, "status", "--porcelain"), git(repository, "rev-parse", "HEAD")
    words = _words(repository, tmp_path / "state", made[0], "HEAD")

    with _start(words, tmp_path / "counter") as run:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and run.poll() is None:
            if sum(f.read_bytes().count(b"\n") for f in tmp_path.glob("state/*/*.jsonl")) >= 8:
                break
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
        run.communicate()
    assert run.returncode == -signal.SIGKILL

    with _start(words, tmp_path / "counter") as run:
        out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    result = json.loads(out)
    assert result["answer"] == "found" and result["pairs"]["confirm"] > 0
    assert result["suspects"][0]["revision"] == made[11]
    assert result["suspects"][0]["subject"] == "change 11"
    assert result["resumed_pairs"] >= 6
    assert "your checkout has uncommitted changes" in result["notes"][0]

    after = git(repository, "status", "--porcelain"), git(repository, "rev-parse", "HEAD")
    assert after == before
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not list((tmp_path / "state").iterdir())


def test_mistakes_are_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = tmp_path / "repository"
    make_repository(repository, commits=3, slow_at=1)
    git(repository, "branch", "side", "HEAD~1")
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "side"), "side")
    (tmp_path / "side" / "x").write_text("x")
    git(tmp_path / "side", "add", "x")
    git(tmp_path / "side", "commit", "--quiet", "-m", "x")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(shallow))

    def said(*words: str, folder: Path = repository) -> str:
        place = ["--repository", str(folder), "--state", str(tmp_path / "state")]
        return mistake(capsys, "bisect", *words[:2], *place, *words[2:])

    assert "no COMMAND" in said("HEAD~1", "HEAD")
    assert "has no commit 'v9'" in said("v9", "HEAD", "--", "true")
    assert "same commit" in said("HEAD", "HEAD", "--", "true")
    line = said("HEAD", "side", "--", "true")
    assert "not an ancestor" in line and "from where they part" in line
    assert "git fetch --unshallow" in said("HEAD~1", "HEAD", "--", "true", folder=shallow)
    assert "not a git repository" in said("a", "b", "--", "true", folder=tmp_path)
    assert "no regular expression" in said("HEAD~1", "HEAD", "--metric", "(", "--", "true")
    assert "exited with 1" in said("HEAD~1", "HEAD", "--", "false")
    assert "printed no number" in said("HEAD~1", "HEAD", "--metric", "last-number", "--", "true")
    assert "took more than" in said("HEAD~1", "HEAD", "--time-limit", "0.2", "--", "sleep", "9")
    assert "cannot be started" in said("HEAD~1", "HEAD", "--", "no-such-program")
    assert "--at-least 'x'" in said("HEAD~1", "HEAD", "--at-least", "x", "--", "true")
