"""Exchanges with language models in the ledger, and ledgers from before there were any."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.base.errors import LedgerError
from ratchet.base.ledger import SCHEMA_VERSION, Fingerprint, Ledger, connect
from ratchet.base.ledger.books import Exchange, ExchangeBook, Message, Usage

HERE = Fingerprint(device="d", software="s")
ONE = Exchange(
    run="r1",
    problem_hash="p",
    turn=0,
    sample=0,
    attempt=0,
    started_at="2026-11-23T02:00:00.000000+00:00",
    time_s=1.5,
    model="m",
    status="answered",
    reason="",
    language="cpp",
    kind="cross",
    parents=("a", "b"),
    prompt_version="v",
    prompt_hash="h",
    messages=(Message(role="system", content="s"), Message(role="user", content="größer")),
    answer="```cpp\n```",
    usage=Usage(prompt_tokens=3, completion_tokens=4, estimated=True, usd=0.25),
)


def test_exchanges_come_back_as_they_were_in_their_order(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.db") as ledger:
        book = ExchangeBook(ledger, HERE)
        others = [
            replace(ONE, turn=1, sample=1),
            replace(ONE, turn=1, sample=0, attempt=1, status="answered"),
            replace(ONE, turn=1, sample=0, attempt=0, status="cut"),
        ]
        book.record([*others, ONE])
        book.record([replace(ONE, problem_hash="q"), replace(ONE, run="r2")])
        book.record([])
        assert book.of_run("r1", "p") == [ONE, others[2], others[1], others[0]]
        assert len(book.of_run("r1")) == 5 and book.of_run("r3") == []
        assert book.runs() == ["r2", "r1"]
        assert book.to_replay("r2") == [replace(ONE, run="r2")]
        with pytest.raises(LedgerError, match=r"no exchanges of run 'r3'.*the newest: r2, r1"):
            book.to_replay("r3")
        assert ONE.usage.tokens == 7


def test_a_ledger_from_before_gets_the_table_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger.open(path) as ledger:
        ledger.remember("screen", "k", {"ratio": 1.5}, fingerprint=HERE)
    old = sqlite3.connect(path)
    old.executescript("DROP TABLE exchanges; UPDATE schema_version SET version = 1;")
    old.close()
    for _ in range(2):
        with Ledger.open(path) as ledger:
            assert ledger.recall("screen", "k") == {"ratio": 1.5}
            ExchangeBook(ledger, HERE).record([ONE])
    found = sqlite3.connect(path)
    versions = found.execute("SELECT version FROM schema_version ORDER BY id").fetchall()
    found.close()
    assert versions == [(1,), (SCHEMA_VERSION,)], "upgraded once"


def test_a_ledger_from_before_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_S", 0.3)
    path = tmp_path / "l.db"
    with Ledger.open(path):
        pass
    old = sqlite3.connect(path)
    old.executescript("DROP TABLE exchanges; UPDATE schema_version SET version = 1;")
    old.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="is locked"):
        Ledger.open(path)
    old.close()
