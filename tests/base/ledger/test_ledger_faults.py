"""What can be wrong with a ledger, with real files and real processes: one line each."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from ratchet.base.errors import LedgerError
from ratchet.base.ledger import SCHEMA_VERSION, Fingerprint, Ledger, connect

HERE = Fingerprint(device="dev-a", software="soft-a")

_LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""

_WRITE = """
import sys
from ratchet.base.ledger import Ledger, connect
connect.BUSY_TIMEOUT_S = 60.0
here = {"device": "d", "software": "s"}
with Ledger.open(sys.argv[1]) as ledger:
    for index in range(int(sys.argv[3])):
        ledger.remember(sys.argv[2], str(index), {"filler": "x" * 3000}, fingerprint=here)
        print(index, flush=True)
"""


def _message(action: Callable[[], object]) -> str:
    with pytest.raises(LedgerError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def _start(source: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.remember("screen", "fused", {"ratio": 1.1}, fingerprint=HERE)
    return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_S", 0.3)


@pytest.mark.usefixtures("impatient")
def test_a_ledger_locked_by_another_process(file: Path) -> None:
    with _start(_LOCK, str(file)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        message = _message(lambda: Ledger.open(file))
        holder.communicate("")
    assert f"the ledger {file} is locked by another process" in message
    assert "wait for it to end, or point --ledger or RATCHET_LEDGER at another file" in message
    with Ledger.open(file) as ledger:
        assert ledger.recall("screen", "fused") == {"ratio": 1.1}


@pytest.mark.usefixtures("impatient")
def test_a_ledger_locked_in_the_middle_of_a_turn(file: Path) -> None:
    with Ledger.open(file) as ledger:
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        message = _message(lambda: ledger.remember("a", "b", {}, fingerprint=HERE))
        other.execute("ROLLBACK")
        other.close()
        ledger.remember("a", "b", {"now": True}, fingerprint=HERE)
        assert ledger.recall("a", "b") == {"now": True}
    assert "is locked by another process" in message


def test_a_writer_waits_for_a_lock_that_is_given_back(file: Path) -> None:
    with _start(_LOCK, str(file)) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert holder.stdin is not None
        holder.stdin.close()  # the holder ends while the next line waits
        with Ledger.open(file) as ledger:
            assert ledger.recall("screen", "fused") == {"ratio": 1.1}


def test_a_read_only_file_is_found_at_once(file: Path) -> None:
    message = _message(lambda: Ledger.open(f"sqlite:///file:{file}?mode=ro&uri=true"))
    assert "is read-only; make the file and its folder writable" in message


def test_a_ledger_that_turns_read_only(file: Path) -> None:
    with Ledger.open(file) as ledger:
        _on_connections(ledger, "PRAGMA query_only = ON")
        message = _message(lambda: ledger.remember("a", "b", {}, fingerprint=HERE))
        assert "is read-only" in message
        assert ledger.recall("screen", "fused") == {"ratio": 1.1}


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    message = _message(lambda: Ledger.open(tmp_path / "file" / "deeper" / "ledger.db"))
    assert "lies below" in message and "which is a file" in message
    assert "point --ledger or RATCHET_LEDGER at a file in a folder that can be written" in message


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    message = _message(lambda: Ledger.open(tmp_path))
    assert "is a folder; point --ledger or RATCHET_LEDGER at a file" in message


def test_a_full_disk_keeps_what_was_committed(file: Path) -> None:
    with Ledger.open(file) as ledger:
        _on_connections(ledger, "PRAGMA max_page_count = 60")
        ledger.remember("a", "small", {"fits": True}, fingerprint=HERE)
        huge = {"filler": "x" * 1_000_000}
        message = _message(lambda: ledger.remember("a", "huge", huge, fingerprint=HERE))
        assert "is full: the disk has no room left" in message
        assert "run the same command again" in message
        assert "--" not in message.replace("--ledger", "")  # `bench` has no --resume
        assert ledger.recall("a", "huge") is None
    with Ledger.open(file) as ledger:
        assert ledger.recall("a", "small") == {"fits": True}


def test_a_newer_schema(file: Path) -> None:
    connection = sqlite3.connect(file)
    newer = SCHEMA_VERSION + 1
    connection.execute(
        "INSERT INTO schema_version (at, device, software, version) VALUES ('', '', '', ?)",
        (newer,),
    )
    connection.commit()
    connection.close()
    message = _message(lambda: Ledger.open(file))
    assert f"has schema {newer}, and this Ratchet supports up to {SCHEMA_VERSION}" in message
    assert "upgrade Ratchet" in message


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("these are my notes, and they matter\n" * 200)
    before = file.read_bytes()
    assert "is not a ledger (not an SQLite file)" in _message(lambda: Ledger.open(file))
    assert file.read_bytes() == before


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "photos.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.commit()
    connection.close()
    before = file.read_bytes()
    message = _message(lambda: Ledger.open(file))
    assert "is another program's database (it holds 'photos')" in message
    assert file.read_bytes() == before


def test_a_damaged_ledger(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with Ledger.open(file) as ledger:
        for index in range(200):
            ledger.remember("a", str(index), {"filler": "x" * 500}, fingerprint=HERE)
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    file.write_bytes(content)
    message = _message(lambda: Ledger.open(file).recall("a", "1"))
    assert "is damaged; move it away and start again" in message


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql://localhost/x", "needs SQLite or PostgreSQL, not 'mysql'"),
        ("http://[::x", "URL cannot be read"),
        ("://", "URL cannot be read"),
    ],
)
def test_a_url_that_is_no_ledger(url: str, expected: str) -> None:
    assert expected in _message(lambda: Ledger.open(url))


def test_a_killed_writer_leaves_a_whole_ledger(file: Path) -> None:
    for attempt, pause_s in enumerate((0.0, 0.01, 0.05)):
        with _start(_WRITE, str(file), f"run {attempt}", "100000") as writer:
            assert writer.stdout is not None
            for _ in range(20):
                assert writer.stdout.readline()
            time.sleep(pause_s)
            writer.send_signal(signal.SIGKILL)
            said = writer.stdout.read().split()
        written = 20 + len(said)
        with Ledger.open(file) as ledger:
            assert ledger.recall("screen", "fused") == {"ratio": 1.1}
            for index in range(written):
                assert ledger.recall(f"run {attempt}", str(index)) is not None
            ledger.remember("after", str(attempt), {}, fingerprint=HERE)
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_first_opening_killed_half_way_is_made_good(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with Ledger.open(file):
        pass
    connection = sqlite3.connect(file)
    connection.executescript("DELETE FROM schema_version; DROP TABLE turns; DROP TABLE verdicts;")
    connection.close()
    with Ledger.open(file) as ledger:
        turn = ledger.start_turn("llama-8m", fingerprint=HERE)
        ledger.finish_turn(turn)


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    writers = [_start(_WRITE, str(file), name, "60") for name in ("one", "two", "three")]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    with Ledger.open(file) as ledger:
        counts = ledger.counts()
        assert counts["evidence"] == 180
        assert all(ledger.recall(name, "59") is not None for name in ("one", "two", "three"))


def test_every_remedy_is_one_line() -> None:
    for remedy in connect._REMEDIES.values():
        assert "\n" not in remedy
        assert "RATCHET_LEDGER" in remedy


def _on_connections(ledger: Ledger, pragma: str) -> None:
    """Run a pragma on every connection that the ledger has or makes from now on."""

    def run(connection: sqlite3.Connection, *rest: object) -> None:
        connection.execute(pragma)

    pool: Pool = ledger.engine.pool
    event.listen(pool, "checkout", run)
