"""A turn killed at random moments goes on from the ledger and proves nothing twice."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

EVERYTHING = os.environ.get("RATCHET_TEST") == "all"
pytestmark = [pytest.mark.slow, pytest.mark.compiler, pytest.mark.timeout(900)]

TURN = ["optimize", "llama-tiny", "--try", "allocator-mallopt", "--keep-precision"]
TURN += ["--launches", "1", "--budget", "15m", "--device", "cpu", "--json"]
KILLS = 3 if EVERYTHING else 1


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RATCHET_LEDGER": str(folder / "ledger.db")}
    return subprocess.Popen(
        [sys.executable, "-m", "ratchet.cli", *TURN, "--out", str(folder / "out"), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def evidence(folder: Path) -> list[tuple[str, str]]:
    if not (folder / "ledger.db").exists():
        return []
    with sqlite3.connect(folder / "ledger.db") as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'evidence'")
        if tables.fetchone() is None:  # the file is there a moment before its tables
            return []
        return list(connection.execute("SELECT kind, key FROM evidence ORDER BY id"))


def wait_for_evidence(process: subprocess.Popen[str], folder: Path, rows: int) -> None:
    """Until the ledger holds `rows` pieces, or the turn ended."""
    while process.poll() is None and len(evidence(folder)) < rows:
        time.sleep(0.05)


def arms_alive(folder: Path) -> list[str]:
    """The workers that still have this ledger in their environment."""
    mark = str(folder).encode()
    alive = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes():
                alive.append(entry.parent.name)
        except OSError:
            continue
    return alive


def test_a_killed_turn_goes_on_and_proves_nothing_twice(tmp_path: Path) -> None:
    drawn = random.Random()
    more: list[str] = []
    for _ in range(KILLS):
        process = start(tmp_path, *more)
        wait_for_evidence(process, tmp_path, len(evidence(tmp_path)) + drawn.randint(1, 2))
        time.sleep(drawn.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        more = ["--resume"]
    deadline = time.monotonic() + 10
    while arms_alive(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert arms_alive(tmp_path) == []
    before = evidence(tmp_path)
    process = start(tmp_path, "--resume")
    out, err = process.communicate(timeout=2000)
    assert process.returncode == 0, err
    after = evidence(tmp_path)
    assert after[: len(before)] == before
    assert [row for row, count in Counter(after).items() if count > 1] == []
    document = json.loads(out)
    assert document["resumed"] is True
    assert set(document["speedup"]) >= {"vs_written", "vs_compile"}
    assert (tmp_path / "out" / "recipe.json").exists()
    assert (tmp_path / "out" / "report.html").exists()
