"""A ledger of an older schema gets the tables of `ratchet history`, and keeps its rows."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.base.errors import LedgerError
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.base.ledger.books import Appended, Observation, ObservationBook

HERE = Fingerprint(device="dev-a", software="soft-a")


def test_an_older_ledger_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.remember("bench", "llama-8m", {"step_time_s": 1.0}, fingerprint=HERE)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DROP TABLE observations")
        raw.execute("DROP TABLE incident_events")
        raw.execute("UPDATE schema_version SET version = 2")
        raw.commit()
    written = Observation(
        benchmark="llama-8m",
        metric="step_time_s",
        unit="s",
        better="lower",
        revision="abc",
        committed_at="2026-01-01T00:00:00+00:00",
        value=1.0,
        **HERE,
    )
    with Ledger.open(path) as ledger:
        assert ledger.recall("bench", "llama-8m") == {"step_time_s": 1.0}
        book = ObservationBook(ledger)
        assert book.observations() == []
        assert book.record([written]) == Appended(added=1, known=0)
        assert book.record([]) == Appended(added=0, known=0)
        assert book.observations() == [written]


def test_the_same_figure_counts_once(tmp_path: Path) -> None:
    one = Observation(
        benchmark="step", metric="time", unit="s", better="lower", revision="abc",
        committed_at="2026-01-01T00:00:00+00:00", value=1.0, **HERE,
    )  # fmt: skip
    others = [
        replace(one, value=2.0),
        replace(one, revision="abd"),
        replace(one, committed_at="2026-01-02T00:00:00+00:00"),
        replace(one, device="dev-b"),
        replace(one, value=math.nan),
    ]
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        book = ObservationBook(ledger)
        assert book.record([one, *others, one]) == Appended(added=6, known=1)
        assert book.record([*others, one, replace(one, value=3.0)]) == Appended(added=1, known=6)
        assert len(book.observations()) == 7
        with ledger.engine.begin() as connection:  # as earlier versions left it
            connection.exec_driver_sql(
                "INSERT INTO observations (at, device, software, benchmark, metric, unit, better, "
                "revision, committed_at, value, source) SELECT at, device, software, benchmark, "
                "metric, unit, better, revision, committed_at, value, source FROM observations"
            )
        assert len(book.observations()) == 7


def test_a_text_for_a_schema_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path):
        pass
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE schema_version SET version = 'three'")
        raw.commit()
    with pytest.raises(LedgerError, match="schema version is 'three'"):
        Ledger.open(path)


@pytest.mark.parametrize("content", [b"x", b"```cpp\n```\n", b"SQLite format 2\0"])
def test_a_short_file_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kernel.txt"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger.open(path)
    assert path.read_bytes() == content
