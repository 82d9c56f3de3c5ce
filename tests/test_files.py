"""Why a path cannot be what it is given for, in words that are right for each kind of file."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet import files
from ratchet.errors import (
    KernelError,
    LedgerError,
    RatchetError,
    RecipeError,
    TraceError,
    WorkloadError,
)
from ratchet.kernels.problem_file import load_kernel, load_problem
from ratchet.ledger import Ledger
from ratchet.optimize.recipe.recipe import Recipe
from ratchet.optimize.turn.loop import check_settings
from ratchet.optimize.turn.settings import Settings
from ratchet.suites.candidates import kernelbench_suite
from ratchet.suites.verdict_files import check_out
from ratchet.trace.compare.runs import report_run
from ratchet.trace.record.command import record
from ratchet.workloads.names import user_file
from ratchet.workloads.text import file_text


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
    return kernelbench_suite(folder, level=1, scale=None, candidate="eager", time_limit_s=1.0)


MADE: dict[str, tuple[Callable[[Path], object], type[RatchetError]]] = {
    "trace": (report_run, TraceError),
    "record": (lambda path: record(["true"], path), TraceError),
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
