"""Two books of the ledger: exchanges with language models, and results over commits.

`ExchangeBook` keeps what was asked and answered, for replay and learning. `ObservationBook` keeps
the results of `ratchet history` and the life of its incidents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Row, func, insert, select

from ratchet.base.errors import LedgerError
from ratchet.base.ledger import schema
from ratchet.base.ledger.connect import alone, explained, utc_now
from ratchet.base.ledger.schema import Fingerprint, Payload
from ratchet.base.ledger.store import Ledger


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    role: str  # `system` or `user`
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens and money of one answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    """Counted here from the texts' lengths, since the endpoint named no figures."""
    usd: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One attempt to get one answer: a row of the table `exchanges`."""

    run: str
    problem_hash: str
    turn: int
    sample: int  # Its place among the samples of its turn
    attempt: int  # 0, then one more for each retry of the same question
    started_at: str  # UTC, ISO 8601
    time_s: float
    model: str
    status: str  # `answered`, or the reason for no answer in one word: see `authors.agent.reply`
    reason: str  # The fault, in a line; empty if there is none
    language: str  # Language of the kernel that was asked for
    kind: str  # The request: `draft`, `improve`, `fix`, `cross`
    parents: tuple[str, ...]  # Hashes of the kernels that the prompt shows to start from
    prompt_version: str  # Hash of the prompt's files
    prompt_hash: str  # Hash of the messages
    messages: tuple[Message, ...]
    answer: str
    usage: Usage


class ExchangeBook:
    """The exchanges of one ledger. Every method raises a `LedgerError` if the database fails."""

    def __init__(self, ledger: Ledger, fingerprint: Fingerprint) -> None:
        self._ledger = ledger
        self._fingerprint = fingerprint

    def record(self, exchanges: Iterable[Exchange]) -> None:
        stamp = {"at": utc_now(), **self._fingerprint}
        self._ledger.insert(schema.exchanges, [{**stamp, **asdict(one)} for one in exchanges])

    def of_run(self, run: str, problem_hash: str | None = None) -> list[Exchange]:
        """Return a run's exchanges by turn, sample and attempt, on one problem if it is given."""
        table = schema.exchanges
        mine = table.c.run == run
        if problem_hash is not None:
            mine &= table.c.problem_hash == problem_hash
        query = (
            select(table)
            .where(mine)
            .order_by(table.c.turn, table.c.sample, table.c.attempt, table.c.id)
        )
        return [msgspec.convert(_values(row), Exchange) for row in self._ledger.read(query)]

    def to_replay(self, run: str) -> list[Exchange]:
        """Return a run's exchanges; a `LedgerError` if it has none."""
        found = self.of_run(run)
        if not found:
            known = ", ".join(self.runs()[:5]) or "none"
            raise LedgerError(
                f"the ledger {self._ledger.place} holds no exchanges of run {run!r}, so it cannot "
                f"be replayed: give a run that asked a model (the newest: {known})"
            )
        return found

    def runs(self) -> list[str]:
        table = schema.exchanges
        query = select(table.c.run).group_by(table.c.run).order_by(func.max(table.c.id).desc())
        return [str(row.run) for row in self._ledger.read(query)]


Better = Literal["lower", "higher"]
IncidentEventName = Literal["opened", "acknowledged", "resolved", "went_away", "reopened"]
_Figure = tuple[str, str, float | None]
"""An observation's identity in its series: commit, time and value."""
_BATCH = 20_000
_REPEATED = ("benchmark", "metric", "unit", "better", "device", "software", "source")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One figure of one benchmark at one commit."""

    benchmark: str
    metric: str
    unit: str
    better: Better
    revision: str  # The commit; empty if it is not known
    committed_at: str  # When it was committed, or else measured: UTC, ISO 8601
    value: float
    low: float | None = None
    high: float | None = None
    device: str  # Fingerprint of the machine, or the name that a file gives: never compared across
    software: str  # Fingerprint of the software, or the environment that a file names
    source: str = ""  # `bench`, `watch`, or the file that it was imported from


@dataclass(frozen=True, kw_only=True, slots=True)
class Appended:
    """Counts: how many observations were appended, and how many the ledger held already."""

    added: int
    known: int


@dataclass(frozen=True, kw_only=True, slots=True)
class IncidentEvent:
    """One step in the life of an incident."""

    incident: str
    event: IncidentEventName
    revision: str
    at: str
    series: tuple[str, ...]  # Keys of its series
    note: str = ""


class ObservationBook:
    """The results over commits of one ledger. Raises a `LedgerError` if the database fails."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._engine = ledger, ledger.engine

    def record(self, observations: Iterable[Observation]) -> Appended:
        """Append observations in one transaction, all or none; those that are there are skipped.

        The same figure of a series, at the same commit and time, counts once.
        """
        names = list(Observation.__dataclass_fields__)
        now, count, known, get = utc_now(), 0, 0, attrgetter(*names)
        with explained(self._engine.url), self._engine.begin() as connection:
            alone(connection, schema.observations)
            there: dict[tuple[str, ...], set[_Figure]] = {}
            waiting = iter(observations)
            while batch := list(islice(waiting, _BATCH)):
                new = [one for one in batch if _is_new(connection, one, there)]
                rows = [{"at": now, **dict(zip(names, get(one), strict=True))} for one in new]
                if rows:
                    connection.execute(insert(schema.observations), rows)
                count, known = count + len(new), known + len(batch) - len(new)
        return Appended(added=count, known=known)

    def observations(self) -> list[Observation]:
        """Return all observations by the time of their commits, then as they were recorded.

        Ledgers of earlier versions may hold a figure several times: it is returned once.
        """
        table = schema.observations
        names = list(Observation.__dataclass_fields__)
        query = select(*(table.c[name] for name in names)).order_by(
            table.c.committed_at, table.c.id
        )
        with explained(self._engine.url), self._engine.connect() as connection:
            # A million rows repeat a few names: each is kept once.
            known: dict[str, str] = {}
            return list(_once(_observation(row, known) for row in connection.execute(query)))

    def add_event(self, event: IncidentEvent) -> None:
        """Append one step of an incident's life."""
        row = {
            "at": event.at,
            "device": "",
            "software": "",
            "incident": event.incident,
            "event": event.event,
            "revision": event.revision,
            "payload": {"series": list(event.series), "note": event.note},
        }
        self._ledger.insert(schema.incident_events, [row])

    def events(self) -> list[IncidentEvent]:
        """Return the steps of all incidents in their order."""
        table = schema.incident_events
        rows = self._ledger.read(select(table).order_by(table.c.id))
        return [msgspec.convert(_values(row) | row.payload, IncidentEvent) for row in rows]


def _values(row: Row[Any]) -> dict[str, Any]:
    """Return a row's values by plain names, since msgspec takes no names of SQLAlchemy's own."""
    return {str(name): value for name, value in row._mapping.items()}


def _series(one: Observation) -> tuple[str, ...]:
    return one.benchmark, one.metric, one.device


def _figure(revision: str, committed_at: str, value: float | None) -> _Figure:
    # SQLite keeps NaN, which equals nothing, as NULL.
    return revision, committed_at, None if value is None or math.isnan(value) else value


def _is_new(
    connection: Connection, one: Observation, there: dict[tuple[str, ...], set[_Figure]]
) -> bool:
    """Return whether the ledger lacks an observation, and note it as there.

    `there` are the figures of each series that was asked for, from the ledger and from this call.
    """
    series = _series(one)
    if series not in there:
        table = schema.observations
        query = select(table.c.revision, table.c.committed_at, table.c.value).where(
            table.c.benchmark == one.benchmark,
            table.c.metric == one.metric,
            table.c.device == one.device,
        )
        there[series] = {_figure(*row) for row in connection.execute(query)}
    figure = _figure(one.revision, one.committed_at, one.value)
    figures = there[series]
    is_new = figure not in figures
    figures.add(figure)
    return is_new


def _once(rows: Iterable[Observation]) -> Iterator[Observation]:
    """Yield each figure once; the rows are in the order of their times."""
    time, seen = "", set[tuple[object, ...]]()
    for one in rows:
        if one.committed_at != time:
            time, seen = one.committed_at, set()
        identity = (*_series(one), *_figure(one.revision, one.committed_at, one.value))
        if identity not in seen:
            seen.add(identity)
            yield one


def _observation(row: Row[tuple[object, ...]], known: dict[str, str]) -> Observation:
    values: Payload = dict(row._mapping)
    for name in _REPEATED:
        values[name] = known.setdefault(values[name], values[name])
    if values["value"] is None:
        values["value"] = math.nan
    for name in ("value", "low", "high"):
        if not isinstance(values[name], float | int | None):
            raise LedgerError(
                f"the ledger is damaged: the {name} of a result of {values['benchmark']!r:.80} is "
                f"{values[name]!r:.40}, which is no number; remove that row, or point --ledger at "
                "another file"
            )
    return Observation(**values)
