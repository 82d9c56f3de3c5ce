"""The rows of a ledger for its pages, without their payloads, and each payload alone.

A row that somebody damaged costs its own page and no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqlalchemy import Row, Table, Text, cast, func, select

from ratchet.base import Json
from ratchet.base.ledger import Ledger, schema
from ratchet.base.ledger.connect import explained, loads
from ratchet.base.ledger.schema import Payload

MOST_PAGES: Final = 1000  # Pages of a kind that a site has, for the newest rows
BENCHES: Final = ("bench", "bench-parallel")
WATCHED: Final = (
    schema.observations,
    schema.incident_events,
    schema.verdicts,
    schema.turns,
    schema.recipes,
    schema.evidence,
    schema.writing_runs,
    schema.writing_answers,
)
"""Tables whose new rows change a page."""
RunState = Literal["running or killed", "finished", "failed", "interrupted"]
STATES: Final[Mapping[str, RunState]] = {
    "finished": "finished",
    "failed": "failed",
    "interrupted": "interrupted",
}
"""The states that a run's last event leaves; any other event leaves it running."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRun:
    """A run of a command that the ledger knows by a name."""

    key: str  # Its identity
    command: str
    title: str
    at: str
    device: str
    software: str
    state: RunState
    place: tuple[str, int]  # Table and id of the row that holds its result, or its start


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, without its evidence."""

    id: int
    at: str
    device: str
    kernel: str  # Hashes
    problem: str
    status: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenRecipe:
    """A recipe that a turn wrote down."""

    id: int
    at: str
    device: str
    turn: str
    workload: str
    kernels: tuple[str, ...]  # Hashes
    changes_arithmetic: bool
    recipe_is: str  # `proven`, `rival`, `as_written`; empty if the ledger does not say
    speedups: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    hash: str
    name: str
    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedRows:
    """The newest rows of a kind, the newest first, and the number of all."""

    rows: Sequence[Any]
    every: int


class SiteBook:
    """The questions that the pages ask a ledger; nothing is written."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._engine = ledger.engine

    def newest(self) -> tuple[int, ...]:
        """Return the last row of each table, which changes with every append."""
        with explained(self._engine.url), self._engine.connect() as connection:
            return tuple(
                connection.execute(select(func.max(table.c.id))).scalar() or 0 for table in WATCHED
            )

    def described(self, table: Table, key: str) -> dict[str, Payload]:
        """Return what is known of each device or software, by its fingerprint."""
        found = {}
        for row in self._read(table, table.c[key], cast(table.c.payload, Text).label("payload")):
            found[str(row[0])] = _mapping(row.payload)
        return found

    def payload(self, table: str, id: int) -> Payload:
        """Return a row's document; an empty one if it is damaged."""
        place = schema.metadata.tables[table]
        return self._document(place, place.c.id == id)

    def _turn(self, turn: str, event: str) -> Payload:
        """Return what a turn wrote down at an event; an empty document if there was none."""
        table = schema.turns
        return self._document(table, table.c.turn == turn, table.c.event == event)

    def _document(self, table: Table, *where: Any) -> Payload:
        query = select(cast(table.c.payload, Text)).where(*where).limit(1)
        with explained(self._engine.url), self._engine.connect() as connection:
            return _mapping(connection.execute(query).scalar())

    def verdicts(self) -> list[Judged]:
        table = schema.verdicts
        names = ("id", "at", "device", "kernel_hash", "problem_hash", "status")
        return [
            Judged(*tuple(row)) for row in self._read(table, *(table.c[name] for name in names))
        ]

    def named(self, table: Table) -> dict[str, Named]:
        rows = self._read(table, table.c.hash, table.c.name, table.c.id)
        return {row.hash: Named(hash=row.hash, name=row.name, id=row.id) for row in rows}

    def recipes(self) -> CountedRows:
        """Return the recipes; what was damaged has no kernels."""
        table = schema.recipes
        rows = self._read(table, *(table.c[name] for name in ("id", "at", "device", "turn")))
        return CountedRows(rows=[self._recipe(row) for row in rows[:MOST_PAGES]], every=len(rows))

    def _recipe(self, row: Row[Any]) -> WrittenRecipe:
        found = self.payload("recipes", row.id)
        kernels = found.get("kernels")
        kernels = kernels if isinstance(kernels, list) else []
        hashes = [one.get("hash") for one in kernels if isinstance(one, dict)]
        speedups, ended = found.get("speedup"), self._turn(row.turn, "finished")
        return WrittenRecipe(
            id=row.id,
            at=row.at,
            device=row.device,
            turn=row.turn,
            workload=str(found.get("workload", "")),
            kernels=tuple(str(one) for one in hashes if one),
            changes_arithmetic=bool(found.get("changes_arithmetic")),
            recipe_is=str(ended.get("recipe_is", "")),
            speedups=speedups if isinstance(speedups, dict) else {},
        )

    def runs(self) -> CountedRows:
        """Return the runs of `optimize`, `compare`, `write` and `bench`."""
        found = self._lives(schema.turns, "turn", "workload")
        found += self._lives(schema.writing_runs, "run", "name", "write")
        found += self._benches()
        found.sort(key=lambda one: one.at, reverse=True)
        kept = found[:MOST_PAGES]
        titles = [self._titled(one) for one in kept]
        return CountedRows(rows=titles, every=len(found))

    def _titled(self, run: LedgerRun) -> LedgerRun:
        """Return a run with its workload's name: the ledger looks turns up by a hash."""
        if run.command != "optimize":
            return run
        return replace(run, title=str(self._turn(run.key, "started").get("workload") or run.title))

    def _lives(self, table: Table, key: str, title: str, command: str = "") -> list[LedgerRun]:
        """Return the runs of a table that has a row for each event of their lives."""
        names = [key, title, "event", "at", "device", "software", "id"]
        names += [] if command else ["command"]
        found: dict[str, LedgerRun] = {}
        for row in reversed(self._read(table, *(table.c[name] for name in names))):
            said = row._mapping
            state = STATES.get(row.event, "running or killed")
            old = found.get(said[key]) or LedgerRun(
                key=said[key],
                command=command or row.command,
                title=said[title],
                at=row.at,
                device=row.device,
                software=row.software,
                state=state,
                place=(table.name, row.id),
            )
            found[said[key]] = replace(old, state=state, place=(table.name, row.id))
        return list(found.values())

    def _benches(self) -> list[LedgerRun]:
        table = schema.evidence
        names = ("id", "kind", "key", "at", "device", "software")
        rows = self._read(table, *(table.c[n] for n in names), where=table.c.kind.in_(BENCHES))
        return [
            LedgerRun(
                key=f"bench {row.id}",
                command="bench",
                title=row.key,
                at=row.at,
                device=row.device,
                software=row.software,
                state="finished",
                place=("evidence", row.id),
            )
            for row in rows
        ]

    def proposals(self) -> dict[str, set[str]]:
        """Return the writing runs that proposed each kernel, by its hash."""
        table = schema.writing_answers
        found: dict[str, set[str]] = defaultdict(set)
        for row in self._read(table, table.c.kernel_hash, table.c.run):
            found[row.kernel_hash].add(row.run)
        return found

    def answers(self, run: str) -> list[Row[Any]]:
        """Return a writing run's answers without their payloads, the newest first."""
        table = schema.writing_answers
        names = ("kernel_hash", "problem_hash", "author", "stage", "status", "at")
        return self._read(table, *(table.c[name] for name in names), where=table.c.run == run)

    def _read(self, table: Table, *columns: Any, where: Any = None) -> list[Row[Any]]:
        query = select(*columns).order_by(table.c.id.desc())
        query = query if where is None else query.where(where)
        with explained(self._engine.url), self._engine.connect() as connection:
            return list(connection.execute(query).all())


def _mapping(text: object) -> Payload:
    try:
        found = loads(str(text))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
