"""Places that take no file: one line, exit code 2, and nothing is harmed, in every command."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from commands import mistake
from full_disk import full_disk

from ratchet.base.ledger import Ledger
from ratchet.cli import main

KERNEL = 'extern "C" long squared_relu(const void*, long, const double*, long) { return 1; }\n'
CSV = "benchmark,value,commit,time\n" + "".join(
    f"step,{1 + at % 3},c{at},{1767225600 + at}\n" for at in range(9)
)
EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at, "dur": 8}
    for at in (0, 10)
]
PLACE = "PLACE"
"""Stands for the place in the words of a command."""

WRITING: dict[str, list[str]] = {
    "history show": ["history", "show", "--out", PLACE],
    "history export, csv": ["history", "export", PLACE, "--format", "csv"],
    "history export, asv": ["history", "export", PLACE, "--format", "asv"],
    "history export, google": ["history", "export", PLACE, "--format", "google"],
    "trace report": ["trace", "report", "t.json", "--out", PLACE],
    "trace report, parquet": ["trace", "report", "t.json", "--parquet", PLACE],
    "trace diff": ["trace", "diff", "t.json", "t.json", "--out", PLACE],
    "trace diff, parquet": ["trace", "diff", "t.json", "t.json", "--parquet", PLACE],
    "trace merge": ["trace", "merge", "ranks", "--out", PLACE],
    "trace record": ["trace", "record", "--out", PLACE, "--", "true"],
    "watch, markdown": ["watch", "--against", "results.csv", "--markdown", PLACE],
    "watch, junit": ["watch", "--against", "results.csv", "--junit", PLACE],
    "compare": ["compare", "llama-tiny", "--b", "compile", "--numerics", "--out", PLACE],
    "bisect": ["bisect", "HEAD~1", "HEAD", "--state", PLACE, "--", "true"],
    "repro": ["repro", "abcdef12", "--out", PLACE],
    "sweep": ["sweep", "hf", "--out", PLACE],
    "judge": ["judge", "squared_relu", "k.cpp", "--out", PLACE],
    "write": ["write", "squared_relu", "--budget", "20s", "--out", PLACE],
    "optimize": ["optimize", "llama-tiny", "--budget", "30s", "--device", "cpu", "--out", PLACE],
    "learn corpus": ["learn", "corpus", "--draws", "0", "--out", PLACE],
    "learn pretrain": ["learn", "pretrain", "--out", PLACE],
    "learn sft": ["learn", "sft", "x", "--out", PLACE],
    "learn grpo": ["learn", "grpo", "x", "--out", PLACE],
    "learn loop": ["learn", "loop", "--budget", "20s", "--out", PLACE],
}
KEEPING: dict[str, list[str]] = {
    "history show": ["history", "show"],
    "history import": ["history", "import", "results.csv"],
    "history export": ["history", "export", "x.csv"],
    "history acknowledge": ["history", "acknowledge", "abc"],
    "history resolve": ["history", "resolve", "abc"],
    "knowledge add": ["knowledge", "add", "results.csv"],
    "bench": ["bench", "llama-tiny", "--steps", "1"],
    "compare": ["compare", "--budget", "3s", "--", "true", "true"],
    "repro": ["repro", "abcdef12"],
    "judge": ["judge", "squared_relu", "k.cpp"],
    "write": ["write", "squared_relu", "--budget", "20s"],
    "optimize": ["optimize", "llama-tiny", "--budget", "30s", "--device", "cpu"],
    "learn corpus": ["learn", "corpus", "--draws", "0"],
    "learn loop": ["learn", "loop", "--budget", "20s"],
}
NO_PLACES = {
    "in proc": "/proc/x",
    "below proc": "/proc/x/y",
    "below a file": "taken/x",
    "too long": "n" * 300,
    "not UTF-8": os.fsdecode(b"caf\xe9"),
    "a FIFO": "fifo",
}
NO_LEDGERS = {
    "in proc": "/proc/x",
    "below a file": "taken/x",
    "not UTF-8": os.fsdecode(b"caf\xe9"),
    "a folder": "ranks",
    "a short text": "taken",
    "a device": "/dev/full",
    "a server that is not there": "postgresql://nobody@127.0.0.1:1/x",
    "a text for its schema": "text.db",
}


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with whatever the commands read, and a ledger of its own."""
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    Path("k.cpp").write_text(KERNEL)
    Path("taken").write_text("```cpp\n```\n")
    os.mkfifo("fifo")
    Path("results.csv").write_text(CSV)
    Path("ranks").mkdir()
    for name in ("t.json", "ranks/r0.json"):
        Path(name).write_text(json.dumps({"traceEvents": EVENTS}))
    return tmp_path


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history of a repository with two commits."""
    folder = tmp_path_factory.mktemp("history")
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], *[[*name, "commit", "-q", "--allow-empty", "-m", "x"]] * 2):
        subprocess.run(["git", *words], check=True, cwd=folder)
    return folder / ".git"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that holds nothing."""
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    with Ledger.open(str(path)):
        pass
    return path


@pytest.fixture
def repository(place: Path, history: Path) -> None:
    """Two commits, for the commands that compare some."""
    shutil.copytree(history, ".git")


def told(words: list[str], place: str) -> list[str]:
    return [place if word is PLACE else word for word in words]


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("command", "where"),
    [  # a third of the pairs is quick: two of the places for each command
        pytest.param(command, where, marks=pytest.mark.thorough if (at + number) % 3 else ())
        for at, command in enumerate(WRITING)
        for number, where in enumerate(NO_PLACES)
    ],
)
def test_a_place_to_write_that_takes_no_file(
    command: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "parquet" in command:
        pytest.importorskip("pyarrow")
    line = mistake(capsys, *told(WRITING[command], NO_PLACES[where]))
    assert "internal" not in line
    assert NO_PLACES[where][:40] in line or where == "not UTF-8"
    assert Path("taken").read_text() == "```cpp\n```\n"


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("command", WRITING)
def test_a_full_disk_is_told_before_the_work(
    command: str, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "parquet" in command:
        pytest.importorskip("pyarrow")
    shutil.copy(empty, "ledger.db")
    with full_disk(0):
        line = mistake(capsys, *told(WRITING[command], "new"))
    assert "internal" not in line
    assert not Path("new").exists() or not list(Path("new").iterdir())


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database whose schema has a text for its version."""
    path = tmp_path_factory.mktemp("foreign") / "text.db"
    with Ledger.open(str(path)):
        pass
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE schema_version SET version = 'three'")
        raw.commit()
        raw.execute("PRAGMA journal_mode = DELETE")
    return path


@pytest.mark.parametrize(
    ("command", "where"),
    [
        # Each command at every third place, and each place in every third command.
        pytest.param(command, where, marks=() if (at + one) % 3 == 0 else pytest.mark.thorough)
        for at, command in enumerate(KEEPING)
        for one, where in enumerate(NO_LEDGERS)
    ],
)
def test_a_ledger_that_cannot_be(
    command: str, where: str, foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if where == "a server that is not there":
        pytest.importorskip("psycopg")
    if command == "knowledge add" and where in (
        *("a folder", "a device", "a server that is not there"),
        *("a short text", "a text for its schema"),
    ):
        pytest.skip("documents are indexed in a file beside the ledger: this ledger is not opened")
    shutil.copy(foreign, "text.db")
    line = mistake(capsys, *KEEPING[command], "--ledger", NO_LEDGERS[where])
    assert "internal" not in line
    assert Path("taken").read_text() == "```cpp\n```\n"


@pytest.mark.parametrize("command", KEEPING)
def test_a_ledger_on_a_full_disk(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with full_disk(0):
        line = mistake(capsys, *KEEPING[command], "--ledger", "new.db")
    assert "internal" not in line


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="a small file system is mounted by root, in a mount namespace of its own",
)
def test_an_export_onto_a_small_full_disk(place: Path) -> None:
    assert main(["history", "import", "results.csv"]) == 0
    script = (
        "mount -t tmpfs -o size=16k tmpfs ranks && echo old > ranks/x.csv || exit 77\n"
        "head -c 100000 /dev/zero > ranks/fill 2> /dev/null\n"
        f"{sys.executable} -m ratchet.cli history export ranks/x.csv; code=$?\n"
        "cat ranks/x.csv; ls -A ranks; exit $code"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if done.returncode in (1, 77):
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (2, "old\nfill\nx.csv\n"), done.stderr
    assert done.stderr.count("\n") == 1 and "No space left on device" in done.stderr


def test_a_page_that_is_written_to_a_device_leaves_the_device(place: Path) -> None:
    (place / "page.html").symlink_to("/dev/null")
    assert main(["history", "show", "--out", str(place / "page.html")]) == 0
    assert Path("/dev/null").is_char_device() and (place / "page.html").is_symlink()


def test_a_folder_for_temporary_files_that_is_not_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for by the child alone: this process keeps its own."""
    environment = {**os.environ, "TMPDIR": "/proc/x", "TEMP": "/proc/x", "TMP": "/proc/x"}
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.cli", "history", "import", "results.csv"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_in_a_folder_that_is_not_utf8(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("t.json", os.path.join("ranks", os.fsdecode(b"caf\xe9.json")))
    main(["trace", "report", "ranks", "--out", "page.html"])
    captured = capsys.readouterr()
    assert "internal" not in captured.err
