"""The same schema on PostgreSQL: what can be said without a server, and the rest with one."""

from __future__ import annotations

import importlib.util
import os

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from ratchet.errors import LedgerError
from ratchet.ledger import Fingerprint, Ledger
from ratchet.ledger.place import resolve, shown
from ratchet.ledger.schema import metadata
from ratchet.measure.samples import Sample

JUDGE = "judge-a"
HERE = Fingerprint(device="dev-a", software="soft-a")
SERVER = os.environ.get("RATCHET_TEST_POSTGRES", "")
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
        "exchanges writing_runs writing_answers"
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


@pytest.mark.skipif(
    not (SERVER and HAS_DRIVER), reason="set RATCHET_TEST_POSTGRES to the URL of an empty database"
)
def test_a_turn_on_a_real_server() -> None:
    with Ledger.open(SERVER) as ledger:
        turn = ledger.start_turn("llama-8m", {"budget_s": float("inf")}, fingerprint=HERE)
        sample = Sample(
            arm="a",
            launch=0,
            round=0,
            position=0,
            iterations=1,
            wall_time_s=0.1234567890123456,
            cpu_time_s=0.2,
        )
        ledger.record_measurements(turn, [sample])
        assert ledger.measurements(turn) == [sample]
        for _ in range(2):
            ledger.record_kernel("k", "rope", {"source": ""}, fingerprint=HERE)
        assert ledger.counts()["kernels"] == 1
        found = ledger.unfinished_turn("llama-8m")
        assert found is not None
        assert found.payload == {"budget_s": float("inf")}
        ledger.finish_turn(turn)
        assert ledger.unfinished_turn("llama-8m") is None
        verdict = {
            "kernel_hash": "k",
            "problem_hash": "p",
            "status": "proven",
            "environment": {"judge": JUDGE},
        }
        ledger.record_verdict(verdict, fingerprint=HERE)
        assert ledger.proven("k", HERE, judge=JUDGE)
