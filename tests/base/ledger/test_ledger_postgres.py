"""The same schema on PostgreSQL; `test_ledger_store` runs on both databases."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from postgres_server import postgres
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable
from test_ledger_exchanges import ONE

from ratchet.base.errors import LedgerError
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.base.ledger.books import ExchangeBook
from ratchet.base.ledger.connect import resolve, shown
from ratchet.base.ledger.schema import metadata
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.revision import revision
from ratchet.write.author import Answer
from ratchet.write.writing_book import WritingBook, WritingOptions

JUDGE = revision()
HERE = Fingerprint(device="dev-a", software="soft-a")
HAS_DRIVER = importlib.util.find_spec("psycopg") is not None


def test_every_table_can_be_written_in_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in metadata.sorted_tables:
        sql = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        assert "id BIGSERIAL NOT NULL" in sql
        for name in ("at", "device", "software"):
            assert f"{name} VARCHAR" in sql
        for index in table.indexes:
            assert "CREATE INDEX" in str(CreateIndex(index).compile(dialect=dialect))
    names = {table.name for table in metadata.sorted_tables}
    expected = (
        "devices software problems kernels verdicts measurements evidence recipes turns "
        "exchanges writing_runs writing_answers observations incident_events"
    )
    assert names == {*expected.split(), "schema_version"}


def test_a_password_is_never_shown() -> None:
    assert "secret" not in shown(resolve("postgresql://me:secret@host/ledger"))


@pytest.mark.skipif(HAS_DRIVER, reason="psycopg is installed here")
def test_a_missing_driver_is_named() -> None:
    with pytest.raises(
        LedgerError, match=r"needs psycopg; pip install 'torch-ratchet\[postgres\]'"
    ):
        Ledger.open("postgresql://host/ledger")


@pytest.mark.skipif(not HAS_DRIVER, reason="psycopg is not installed")
def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(LedgerError, match="failed") as caught:
        Ledger.open("postgresql://me:secret@127.0.0.1:1/ledger")
    assert "secret" not in str(caught.value)


def test_every_table_and_query_works_on_a_real_server(new_database: Callable[[], str]) -> None:
    url = new_database()
    problem = find_problem("squared_relu").at("ci")
    kernel = Kernel(name="k", language="cpp", source="int x;", entry="k")
    with Ledger.open(url) as ledger:
        book = WritingBook(ledger, HERE)
        options = WritingOptions(budget_s=60.0, seed=0, authors=("search",), judge=JUDGE)
        run = book.start(problem, options)
        answer = Answer(
            kernel=kernel,
            author="search",
            stage="screened",
            status="screened",
            reason="about 1.2x",
            time_s=1e-3,
            features=(1.0, 2.0),
        )
        book.add(run, answer, problem.hash)
        assert book.answers(run) == [answer]
        assert [one.features for one in book.earlier("search")] == [answer.features]
        assert book.kernel(kernel.hash) == kernel
        unfinished = book.unfinished(problem.hash)
        assert unfinished is not None and unfinished.run == run
        verdict = {
            "kernel_hash": kernel.hash,
            "problem_hash": problem.hash,
            "status": "proven",
            "environment": {"judge": JUDGE},
        }
        ledger.record_verdict(verdict, fingerprint=HERE)
        assert book.proven(problem.hash) == [(kernel, verdict)]
        book.end(run, "finished", {"status": "proven"})
        assert book.largest_budget_s(problem.hash) == 60.0
    with Ledger.open(url) as again:
        counts = again.counts()
        assert [counts[name] for name in ("verdicts", "writing_runs", "writing_answers")] == [
            1,
            2,
            1,
        ]


def test_a_text_may_hold_what_postgresql_refuses(new_database: Callable[[], str]) -> None:
    """A model's answer may hold NUL, which no text of PostgreSQL may."""
    with Ledger.open(new_database()) as ledger:
        book = ExchangeBook(ledger, HERE)
        book.record([replace(ONE, answer="a\0b")])
        assert book.of_run(ONE.run)[0].answer == "a\u2400b"
        ledger.remember("kind", "key", {"text": "a\0b"}, fingerprint=HERE)
        assert ledger.recall("kind", "key") == {"text": "a\0b"}


def test_many_that_open_a_new_database_make_its_tables_once(
    new_database: Callable[[], str],
) -> None:
    url = new_database()

    def opened(_: int) -> int:
        with Ledger.open(url) as ledger:
            ledger.record_kernel("k", "rope", {"source": ""}, fingerprint=HERE)
            return ledger.counts()["kernels"]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(opened, range(4))) == [1] * 4


def test_a_server_that_ends_is_one_line() -> None:
    with postgres() as new:
        ledger = Ledger.open(new())
    with ledger, pytest.raises(LedgerError, match="failed"):
        ledger.counts()
