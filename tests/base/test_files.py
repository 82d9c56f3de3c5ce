"""Why a path cannot be what it is given for, in words that are right for each kind of file."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from full_disk import full_disk

from ratchet.base import files
from ratchet.base.errors import (
    FileError,
    KernelError,
    LedgerError,
    RatchetError,
    RecipeError,
    TraceError,
    WorkloadError,
)
from ratchet.base.ledger import Ledger
from ratchet.base.text import file_text
from ratchet.judge.court.show_suite import check_out
from ratchet.judge.court.suite import kernelbench_suite
from ratchet.judge.kernels.kernel_file import load_kernel
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.terms import Terms
from ratchet.trace.compare import report_run
from ratchet.trace.record import record
from ratchet.train.recipe import Recipe
from ratchet.train.turn.loop import check_settings
from ratchet.train.turn.settings import Settings
from ratchet.train.workloads.names import user_file


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file of each kind."""
    monkeypatch.chdir(tmp_path)
    for name in ("fifo", "fifo.cpp", "fifo.py"):
        os.mkfifo(name)
    for name in ("folder", "folder.cpp", "folder.py"):
        Path(name).mkdir()
    Path("file").touch()
    Path("device").symlink_to("/dev/zero")
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    return tmp_path


KINDS = {"fifo": "is a FIFO", "socket": "is a socket", "device": "is a device"}
LOOP = "Too many levels of symbolic links"


@pytest.mark.usefixtures("place")
def test_each_kind_is_named() -> None:
    said = {name: files.why_not_file(Path(name)) for name in ("file", "folder", "gone", "loop")}
    assert said == {
        "file": "",
        "folder": "is a folder",
        "gone": "cannot be read (No such file or directory)",
        "loop": f"cannot be read ({LOOP})",
    }
    assert files.why_not_folder(Path("folder")) == ""
    assert files.why_not_folder(Path("file")) == "is a file"
    for name, words in KINDS.items():
        assert files.why_not_file(Path(name)) == files.why_not_folder(Path(name)) == words


@pytest.mark.usefixtures("place")
def test_what_is_to_be_written_is_asked_for_its_folder() -> None:
    assert files.why_not_new_folder(Path("folder/a/b")) == ""
    assert files.why_not_new_folder(Path("fifo")) == "is a FIFO"
    assert files.why_not_new_folder(Path("file/a/b")) == "lies below file, which is a file"
    assert files.why_not_new_folder(Path("loop")) == f"cannot be created as a folder ({LOOP})"
    assert files.why_not_new_file(Path("file")) == files.why_not_new_file(Path("folder/a")) == ""
    assert files.why_not_new_file(Path("/dev/null")) == ""
    assert files.why_not_new_file(Path("fifo")) == "is a FIFO"
    assert files.why_not_new_file(Path("gone/a")) == "is in a folder that does not exist"
    assert files.why_not_new_file(Path("file/a")) == "cannot be written (Not a directory)"


TAKEN: dict[str, tuple[Callable[[Path], object], type[RatchetError], str]] = {
    "kernel": (load_kernel, KernelError, ".cpp"),
    "problem": (load_problem, KernelError, ".py"),
    "recipe": (Recipe.load, RecipeError, ""),
    "ledger": (Ledger.open, LedgerError, ""),
    "text": (file_text, WorkloadError, ""),
}


def kernelbench(folder: Path) -> object:
    return kernelbench_suite(
        folder, Terms(scale=None, time_limit_s=1.0), level=1, candidate="eager"
    )


MADE: dict[str, tuple[Callable[[Path], object], type[RatchetError]]] = {
    "trace": (report_run, TraceError),
    "record": (lambda path: record(["true"], path), FileError),
    "judge": (check_out, RatchetError),
    "optimize": (
        lambda path: check_settings(Settings(workload="llama-tiny", out=path)),
        RatchetError,
    ),
    "kernelbench": (lambda path: kernelbench(path), RatchetError),
}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("kind", ["a FIFO", "a folder"])
@pytest.mark.parametrize("name", TAKEN)
def test_every_file_that_is_read_is_asked_for_its_kind(name: str, kind: str) -> None:
    read, error, ending = TAKEN[name]
    with pytest.raises(error, match=f"is {kind}"):
        read(Path(kind.split()[1].lower() + ending))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", MADE)
def test_every_folder_is_asked_for_its_kind(name: str) -> None:
    take, error = MADE[name]
    with pytest.raises(error, match="is a FIFO"):
        take(Path("fifo"))


def test_a_workload_s_file_is_no_folder(place: Path) -> None:
    assert files.why_not_file(user_file("folder.py:make")) == "is a folder"


def test_what_takes_no_file_is_told(tmp_path: Path) -> None:
    for why in (files.why_not_new_folder(Path("/proc/x")), files.why_not_new_file(Path("/proc/x"))):
        assert why == "cannot be written (No such file or directory)"
    with full_disk(0):
        assert files.why_not_new_folder(tmp_path / "x") == "cannot be written (File too large)"
        assert files.why_not_new_file(tmp_path / "x") == "cannot be written (File too large)"
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    old, other = tmp_path / "old", tmp_path / "other"
    old.write_bytes(b"old")
    old.chmod(0o640)
    with full_disk(8192), pytest.raises(FileError, match="make room there") as caught:
        files.write_whole(old, bytes(20_000))
    assert isinstance(caught.value, OSError) and caught.value.filename == old
    with full_disk(8192), pytest.raises(FileError):
        files.write_all({old: b"new", other: bytes(20_000)})
    assert old.read_bytes() == b"old" and [one.name for one in tmp_path.iterdir()] == ["old"]
    files.write_all({old: b"new", other: b"too"})
    assert (old.read_bytes(), other.read_bytes()) == (b"new", b"too")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no"), files.whole_file(path) as file:
        file.write(b"new")
        raise ValueError("no")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("link", "null"):
        files.write_whole(tmp_path / name, b"new")
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    assert Path("/dev/null").is_char_device()
    with pytest.raises(FileError, match="No space left on device"):
        files.write_whole(Path("/dev/full"), b"new")


def test_a_name_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    files.write_whole(tmp_path / ("n" * 255), b"new")
    files.copy_whole(tmp_path / ("n" * 255), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"new"


def test_one_variable_moves_every_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path))
    assert files.cache_folder("text") == tmp_path / "text"
    monkeypatch.delenv("RATCHET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert files.cache_folder("text") == tmp_path / "home" / "ratchet" / "text"
