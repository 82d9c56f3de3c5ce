"""The tables, the same on SQLite and PostgreSQL, and the plain types of their rows.

Rows are only appended. Every row carries `at` (UTC, ISO 8601) and the fingerprints of its device
and software. The newest row of a kind is the one with the largest `id`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

from ratchet.base import Json

SCHEMA_VERSION = 3
"""Increased by one with every change of the tables below. A change only adds tables: when an older
ledger is opened, it gets those that it lacks. 2 added
`exchanges`, `writing_runs` and `writing_answers`, 3 `observations` and `incident_events`."""

metadata = MetaData()

# SQLite numbers rows by itself only if the key's type is exactly INTEGER.
_ID = BigInteger().with_variant(Integer(), "sqlite")


class _AnyText(TypeDecorator[str]):
    """Text that may hold NUL, which PostgreSQL's may not: it is kept there as its symbol."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or dialect.name == "sqlite":
            return value
        return value.replace("\0", "\N{SYMBOL FOR NULL}")


def _table(name: str, *columns: Column[object], unique: str = "") -> Table:
    """Return a table of the ledger: an id, the three columns of every row, then its own columns."""
    return Table(
        name,
        metadata,
        Column("id", _ID, primary_key=True, autoincrement=True),
        Column("at", String(32), nullable=False),
        Column("device", String(64), nullable=False, unique=unique == "device"),
        Column("software", String(64), nullable=False, unique=unique == "software"),
        *columns,
    )


def _text(name: str, *, unique: bool = False) -> Column[object]:
    return Column(name, _AnyText, nullable=False, unique=unique)


def _texts(names: str) -> Iterator[Column[object]]:
    return map(_text, names.split())


def _numbers(names: str) -> Iterator[Column[object]]:
    return (Column(name, Integer, nullable=False) for name in names.split())


def _payload(name: str = "payload") -> Column[object]:
    return Column(name, JSON, nullable=False)


# One row describes a device or software; its fingerprint is the key.
devices = _table("devices", _payload(), unique="device")
software = _table("software", _payload(), unique="software")
problems = _table("problems", _text("hash", unique=True), _text("name"), _payload())
kernels = _table("kernels", _text("hash", unique=True), _text("name"), _payload())
verdicts = _table("verdicts", *_texts("kernel_hash problem_hash status"), _payload())
measurements = _table(
    "measurements",
    *_texts("turn purpose arm"),
    *_numbers("launch round position iterations"),
    # Float(53) is double precision on PostgreSQL; SQLite's REAL always is.
    Column("wall_time_s", Float(53), nullable=False),
    Column("cpu_time_s", Float(53), nullable=False),
)
evidence = _table("evidence", *_texts("kind key"), _payload())
recipes = _table("recipes", *_texts("turn workload"), _payload())
turns = _table("turns", *_texts("turn event command workload"), _payload())
# The runs of `ratchet write`, and what the judge said of each proposed kernel.
writing_runs = _table("writing_runs", *_texts("run event problem_hash name"), _payload())
writing_answers = _table(
    "writing_answers", *_texts("run problem_hash kernel_hash author stage status"), _payload()
)
# What a writing run asked a language model, and what it answered; one row for each attempt.
exchanges = _table(
    "exchanges",
    *_texts("run problem_hash"),
    *_numbers("turn sample attempt"),
    Column("started_at", String(32), nullable=False),
    Column("time_s", Float(53), nullable=False),
    *_texts("model status reason language kind"),
    _payload("parents"),
    *_texts("prompt_version prompt_hash"),
    _payload("messages"),
    _text("answer"),
    _payload("usage"),
)
# One figure of one benchmark at one commit. `device` and `software` are fingerprints of this
# machine, or the names that an imported file gives.
observations = _table(
    "observations",
    *_texts("benchmark metric unit"),
    Column("better", String(8), nullable=False),
    _text("revision"),
    Column("committed_at", String(32), nullable=False),
    Column("value", Float(53)),  # SQLite keeps NaN as NULL
    Column("low", Float(53)),
    Column("high", Float(53)),
    _text("source"),
)
# The life of an incident: opened, acknowledged, resolved, went_away, reopened.
incident_events = _table("incident_events", *_texts("incident event revision"), _payload())
schema_version = _table("schema_version", Column("version", Integer, nullable=False))

for _named, _of, _by in (
    ("verdicts_by_kernel", verdicts, "kernel_hash problem_hash"),
    ("measurements_by_turn", measurements, "turn"),
    ("evidence_by_key", evidence, "kind key"),
    ("recipes_by_workload", recipes, "workload"),
    ("turns_by_workload", turns, "workload command"),
    ("exchanges_by_run", exchanges, "run"),
    ("turns_by_turn", turns, "turn"),
    ("writing_runs_by_problem", writing_runs, "problem_hash"),
    ("writing_runs_by_run", writing_runs, "run"),
    ("writing_answers_by_run", writing_answers, "run"),
    ("writing_answers_by_problem", writing_answers, "problem_hash"),
    ("observations_by_series", observations, "benchmark metric device"),
):
    Index(_named, *(_of.c[name] for name in _by.split()))


Payload: TypeAlias = dict[str, Json]
"""The document of a row, as it was remembered: who asks knows its kind and converts it."""


class Fingerprint(TypedDict):
    """Short stable hashes of a row's device and software."""

    device: str
    software: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTurn:
    """A turn that was started, as the ledger holds it."""

    turn: str  # Its identity: 32 hex digits
    command: str
    workload: str
    started_at: str
    payload: Payload  # The options given to `start_turn`; a resumed turn compares them with its own
    fingerprint: Fingerprint
