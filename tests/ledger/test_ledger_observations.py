"""A ledger of an older schema gets the tables of `ratchet history`, and keeps its rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ratchet.ledger import Fingerprint, Ledger
from ratchet.ledger.observations import Observation, ObservationBook

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
        assert book.record([written]) == 1
        assert book.record([]) == 0
        assert book.observations() == [written]
