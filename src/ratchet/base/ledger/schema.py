"""The tables, the same on SQLite and PostgreSQL, and the plain types of their rows.

Rows are only appended. Every row carries `at` (UTC, ISO 8601) and the fingerprints of its device
and software. The newest row of a kind is the one with the largest `id`.
"""

from __future__ import annotations

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


def _payload(name: str = "payload") -> Column[object]:
    return Column(name, JSON, nullable=False)


# One row describes a device or software; its fingerprint is the key.
devices = _table("devices", _payload(), unique="device")
software = _table("software", _payload(), unique="software")
problems = _table("problems", _text("hash", unique=True), _text("name"), _payload())
kernels = _table("kernels", _text("hash", unique=True), _text("name"), _payload())
verdicts = _table(
    "verdicts", _text("kernel_hash"), _text("problem_hash"), _text("status"), _payload()
)
measurements = _table(
    "measurements",
    _text("turn"),
    _text("purpose"),
    _text("arm"),
    Column("launch", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("iterations", Integer, nullable=False),
    # Float(53) is double precision on PostgreSQL; SQLite's REAL always is.
    Column("wall_time_s", Float(53), nullable=False),
    Column("cpu_time_s", Float(53), nullable=False),
)
evidence = _table("evidence", _text("kind"), _text("key"), _payload())
recipes = _table("recipes", _text("turn"), _text("workload"), _payload())
turns = _table(
    "turns", _text("turn"), _text("event"), _text("command"), _text("workload"), _payload()
)
# The runs of `ratchet write`, and what the judge said of each proposed kernel.
writing_runs = _table(
    "writing_runs", _text("run"), _text("event"), _text("problem_hash"), _text("name"), _payload()
)
writing_answers = _table(
    "writing_answers",
    _text("run"),
    _text("problem_hash"),
    _text("kernel_hash"),
    _text("author"),
    _text("stage"),
    _text("status"),
    _payload(),
)
# What a writing run asked a language model, and what it answered; one row for each attempt.
exchanges = _table(
    "exchanges",
    _text("run"),
    _text("problem_hash"),
    Column("turn", Integer, nullable=False),
    Column("sample", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("started_at", String(32), nullable=False),
    Column("time_s", Float(53), nullable=False),
    _text("model"),
    _text("status"),
    _text("reason"),
    _text("language"),
    _text("kind"),
    _payload("parents"),
    _text("prompt_version"),
    _text("prompt_hash"),
    _payload("messages"),
    _text("answer"),
    _payload("usage"),
)
# One figure of one benchmark at one commit. `device` and `software` are fingerprints of this
# machine, or the names that an imported file gives.
observations = _table(
    "observations",
    _text("benchmark"),
    _text("metric"),
    _text("unit"),
    Column("better", String(8), nullable=False),
    _text("revision"),
    Column("committed_at", String(32), nullable=False),
    Column("value", Float(53)),  # SQLite keeps NaN as NULL
    Column("low", Float(53)),
    Column("high", Float(53)),
    _text("source"),
)
# The life of an incident: opened, acknowledged, resolved, went_away, reopened.
incident_events = _table(
    "incident_events", _text("incident"), _text("event"), _text("revision"), _payload()
)
schema_version = _table("schema_version", Column("version", Integer, nullable=False))

Index("verdicts_by_kernel", verdicts.c.kernel_hash, verdicts.c.problem_hash)
Index("measurements_by_turn", measurements.c.turn)
Index("evidence_by_key", evidence.c.kind, evidence.c.key)
Index("recipes_by_workload", recipes.c.workload)
Index("turns_by_workload", turns.c.workload, turns.c.command)
Index("exchanges_by_run", exchanges.c.run)
Index("turns_by_turn", turns.c.turn)
Index("writing_runs_by_problem", writing_runs.c.problem_hash)
Index("writing_runs_by_run", writing_runs.c.run)
Index("writing_answers_by_run", writing_answers.c.run)
Index("writing_answers_by_problem", writing_answers.c.problem_hash)
Index(
    "observations_by_series",
    observations.c.benchmark,
    observations.c.metric,
    observations.c.device,
)


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
