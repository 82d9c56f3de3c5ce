"""A command that is ended by a signal leaves nothing in the folder for temporary files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import HEEDING

from ratchet.base.git import git
from ratchet.cli import process as signals

BENCH = """
import os, time
open(os.environ["STARTED"], "w").close()
time.sleep(1 << 20)
"""
SUITE = f"""
[[benchmark]]
name = "endless"
command = ['{sys.executable}', "bench.py"]
"""
AUTHOR = ("-c", "user.name=me", "-c", "user.email=me@example.org")
COMMANDS = {
    "watch": ("watch", "--suite", "suite.toml", "--base", "HEAD~1"),
    "compare": (
        "compare",
        "--budget",
        "60s",
        "--rev-a",
        "HEAD~1",
        "--",
        sys.executable,
        "bench.py",
    ),
    "bisect": ("bisect", "HEAD~1", "HEAD", "--", sys.executable, "bench.py"),
    "record": ("trace", "record", "--out", "traces", "--", sys.executable, "bench.py"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository of two commits with a benchmark that never ends, and a folder for files."""
    folder = tmp_path / "repository"
    (tmp_path / "files").mkdir()
    folder.mkdir()
    (folder / "bench.py").write_text(BENCH)
    (folder / "suite.toml").write_text(SUITE)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    for name in ("one", "two"):
        git(folder, *AUTHOR, "commit", "--quiet", "--allow-empty", "-m", name)
    return tmp_path


def start(place: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command and wait until its benchmark runs."""
    environment = {
        **os.environ,
        "TMPDIR": str(place / "files"),
        "STARTED": str(place / "started"),
        "RATCHET_LEDGER": str(place / "ledger.db"),
        "XDG_CACHE_HOME": str(place / "cache"),
    }
    process = subprocess.Popen(
        [*HEEDING, sys.executable, "-m", "ratchet.cli", *words],
        cwd=place / "repository",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (place / "started").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.01)
    (place / "started").unlink()
    return process


def left(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "files").iterdir())


@pytest.mark.parametrize(
    "command",
    [pytest.param(one, marks=pytest.mark.thorough if one == "watch" else ()) for one in COMMANDS],
)
def test_a_terminated_command_leaves_nothing(place: Path, command: str) -> None:
    process = start(place, *COMMANDS[command])
    if command in ("watch", "compare"):
        assert left(place), "its checkouts"
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1].startswith("ratchet: ended by SIGTERM")
    assert "Traceback" not in said
    assert left(place) == []


@pytest.mark.parametrize(
    "sent", [pytest.param(signal.SIGHUP, marks=pytest.mark.thorough), signal.SIGINT]
)
def test_other_signals_that_end_a_command_leave_nothing(place: Path, sent: signal.Signals) -> None:
    process = start(place, *COMMANDS["bisect"])
    process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    assert left(place) == []


def test_a_signal_that_comes_twice_does_not_cut_the_tidying_short(place: Path) -> None:
    process = start(place, *COMMANDS["compare"])
    os.killpg(process.pid, signal.SIGTERM)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert left(place) == []


def test_what_a_killed_command_left_goes_with_the_next(place: Path) -> None:
    process = start(place, *COMMANDS["watch"])
    process.kill()
    process.communicate(timeout=60)
    dead = {*left(place)}
    assert dead
    other = start(place, *COMMANDS["compare"])  # any command takes it away, and leaves the living
    living = left(place)
    assert living and not dead & {*living}
    third = start(place, *COMMANDS["record"])
    assert left(place) == living
    for one in (other, third):
        one.terminate()
        one.communicate(timeout=60)
    assert left(place) == []


def test_a_recorded_command_may_end_itself_when_we_are_asked_to(place: Path) -> None:
    (place / "repository" / "bench.py").write_text(
        "import os, signal, sys, time\n"
        "def end(*_):\n"
        "    open('ended', 'w').close()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n" + BENCH
    )
    process = start(place, *COMMANDS["record"])
    process.terminate()
    process.communicate(timeout=60)
    assert (place / "repository" / "ended").exists()


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.ending_by_signal():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_caller_has_its_handlers_back() -> None:
    before = [signal.getsignal(one) for one in signals.ENDING]
    with signals.ending_by_signal() as ending, pytest.raises(signals.EndedBySignal):
        signal.raise_signal(signal.SIGTERM)
    assert ending.code(0) == 143
    assert [signal.getsignal(one) for one in signals.ENDING] == before
