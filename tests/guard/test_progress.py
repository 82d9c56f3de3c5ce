"""Long commands on a terminal: a moving line on stderr says what they do; a pipe gets nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

WATCH = 'pairs = 3\n[[benchmark]]\nname = "quick"\ncommand = "sleep 1.2"\n'
BUILD = "sleep 1.2"
"""The line is drawn once a second: what takes longer is on it."""
CALLS = {
    "watch": (
        ("watch", "--base", "HEAD~1"),
        ("building the base", "building the head", "quick: 2 of 3 done"),
    ),
    "compare": (
        ("compare", "--budget", "30s", "--rev-a", "HEAD~1", "--setup", BUILD, "--", "sleep 0.3"),
        ("preparing both sides", "pair ", "of 30.0 s"),
    ),
    "bisect": (
        ("bisect", "HEAD~1", "HEAD", "--build", BUILD, "--", "sh", "-c", "sleep 0.$(cat file)"),
        ("1 commits; building ", "ends: 1 pairs, the best commit 0%; running "),
    ),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for words in ("init -q", "config user.email a@b", "config user.name a"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    (tmp_path / "ratchet-watch.toml").write_text(f'build = "{BUILD}"\n{WATCH}')
    for at in range(2):
        (tmp_path / "file").write_text(f"{3 + 6 * at}\n")
        subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
        subprocess.run(["git", "commit", "-qm", str(at)], cwd=tmp_path, check=True)
    return tmp_path


def call(words: tuple[str, ...], folder: Path, stderr: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ratchet.cli", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={
            **os.environ,
            "RATCHET_LEDGER": str(folder / ".git" / "ledger.db"),
            "XDG_CACHE_HOME": str(folder / ".git" / "cache"),
            "COLUMNS": "120",
            "TERM": "xterm",
        },
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_terminal_sees_what_a_long_command_does(name: str, repository: Path) -> None:
    words, said = CALLS[name]
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 65536):
                shown.append(piece)
        except OSError:  # the other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    done = call(words, repository, theirs)
    os.close(theirs)
    reader.join()
    os.close(ours)
    text = b"".join(shown).decode()
    assert done.returncode in (0, 1, 3), text
    for one in said:
        assert one in text, (one, text)


@pytest.mark.parametrize("name", ["watch"])
def test_a_pipe_sees_nothing_of_it(name: str, repository: Path) -> None:
    done = call(CALLS[name][0], repository, subprocess.PIPE)
    assert done.returncode in (0, 1, 3) and done.stderr == b""
