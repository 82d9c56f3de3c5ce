"""Temporary folders: nothing is left by a process that ended, and nothing is taken from another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.base import scratch

HOLDER = """
import sys, time
from ratchet.base import scratch
with scratch.folder("held") as place:
    (place / "inner").mkdir()
    (place / "inner" / "file").write_text("x")
    print(place, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def holder(code: str = HOLDER) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a folder until it is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


def test_a_folder_is_private_and_goes(tmp_path: Path) -> None:
    with scratch.folder("mine") as place:
        assert place.parent == tmp_path and place.stat().st_mode & 0o077 == 0
        (place / "file").touch()
    assert not list(tmp_path.iterdir())


def test_the_living_keep_theirs_and_the_killed_lose_it(tmp_path: Path) -> None:
    process, theirs = holder()
    with scratch.folder("mine"):
        scratch.clear_abandoned()
        assert (theirs / "inner" / "file").exists()
        process.send_signal(signal.SIGKILL)
        end(process)
        assert theirs.exists(), "nobody was there to remove it"
        with scratch.folder("next"):
            assert not theirs.exists()
    assert not list(tmp_path.iterdir())


def test_one_of_its_own_processes_may_clear(tmp_path: Path) -> None:
    with scratch.folder("mine") as place:
        code = "from ratchet.base import scratch; scratch.clear_abandoned()"
        subprocess.run([sys.executable, "-c", code], check=True)
        scratch.clear_abandoned()
        assert place.exists()


def test_what_was_never_removed_goes_at_the_end(tmp_path: Path) -> None:
    code = "from ratchet.base import scratch; print(scratch.make('lost'), flush=True); input()"
    process, place = holder(code)
    assert place.exists()
    process.communicate("\n")
    assert process.returncode == 0 and not place.exists()


def test_a_fork_that_ends_takes_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from ratchet.base import scratch; place = scratch.make('mine')\n"
        "child = os.fork()\n"
        "if not child: sys.exit(0)\n"
        "os.waitpid(child, 0); print(place.exists())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_only_folders_of_ours_are_taken(tmp_path: Path) -> None:
    (tmp_path / "ratchet-out").mkdir()
    (tmp_path / f"{scratch.PREFIX}file").touch()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").touch()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(tmp_path / "target")
    (tmp_path / f"{scratch.PREFIX}dead").mkdir()
    scratch.clear_abandoned()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["ratchet-out", f"{scratch.PREFIX}file", f"{scratch.PREFIX}link", "target"]
    assert (tmp_path / "target" / "file").exists()


def test_a_folder_that_cannot_be_read_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    scratch.clear_abandoned()


def test_where_there_are_no_locks_nothing_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(scratch.fcntl, "flock", no_locks)
    with scratch.folder("mine") as place:
        (tmp_path / f"{scratch.PREFIX}other").mkdir()
        scratch.clear_abandoned()
        assert place.exists() and (tmp_path / f"{scratch.PREFIX}other").exists()
    assert not place.exists()


def test_a_place_of_its_own_is_cleared_too(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / f"{scratch.PREFIX}build-dead").mkdir(parents=True)
    with scratch.folder("build", place=cache) as place:
        assert [path.name for path in cache.iterdir()] == [place.name]
    assert os.listdir(cache) == []
