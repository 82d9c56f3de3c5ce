"""Exchanges with language models: what was asked and answered, kept for replay and learning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sqlalchemy import Row, func, insert, select

from ratchet.base.errors import LedgerError
from ratchet.base.ledger import schema
from ratchet.base.ledger.connect import utc_now
from ratchet.base.ledger.faults import explained
from ratchet.base.ledger.store import Ledger
from ratchet.base.ledger.tables import Fingerprint


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    role: str
    """`system` or `user`."""
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
        """Return the tokens of prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One attempt to get one answer: a row of the table `exchanges`."""

    run: str
    problem_hash: str
    turn: int
    sample: int
    """Its place among the samples of its turn."""
    attempt: int
    """0, then one more for each retry of the same question."""
    started_at: str
    """UTC, ISO 8601."""
    time_s: float
    model: str
    status: str
    """`answered`, or the reason for no answer in one word: see `authors.agent.reply`."""
    reason: str
    """The fault, in a line; empty if there is none."""
    language: str
    """Language of the kernel that was asked for."""
    kind: str
    """The request: `draft`, `improve`, `fix`, `cross`."""
    parents: tuple[str, ...]
    """Hashes of the kernels that the prompt shows to start from."""
    prompt_version: str
    """Hash of the prompt's files."""
    prompt_hash: str
    """Hash of the messages."""
    messages: tuple[Message, ...]
    answer: str
    usage: Usage


class ExchangeBook:
    """The exchanges of one ledger. Every method raises a `LedgerError` if the database fails."""

    def __init__(self, ledger: Ledger, fingerprint: Fingerprint) -> None:
        self._engine = ledger.engine
        self._place = ledger.place
        self._fingerprint = fingerprint

    def record(self, exchanges: Iterable[Exchange]) -> None:
        """Append exchanges in one transaction."""
        stamp = {"at": utc_now(), **self._fingerprint}
        rows = [{**stamp, **asdict(one)} for one in exchanges]
        if rows:
            with explained(self._engine.url), self._engine.begin() as connection:
                connection.execute(insert(schema.exchanges), rows)

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
        with explained(self._engine.url), self._engine.connect() as connection:
            return [_exchange(row) for row in connection.execute(query)]

    def to_replay(self, run: str) -> list[Exchange]:
        """Return a run's exchanges; a `LedgerError` if it has none."""
        found = self.of_run(run)
        if not found:
            known = ", ".join(self.runs()[:5]) or "none"
            raise LedgerError(
                f"the ledger {self._place} holds no exchanges of run {run!r}, so it cannot be "
                f"replayed: give a run that asked a model (the newest: {known})"
            )
        return found

    def runs(self) -> list[str]:
        """Return the runs that have exchanges, the newest first."""
        table = schema.exchanges
        query = select(table.c.run).group_by(table.c.run).order_by(func.max(table.c.id).desc())
        with explained(self._engine.url), self._engine.connect() as connection:
            return [str(row.run) for row in connection.execute(query)]


def _exchange(row: Row[tuple[object, ...]]) -> Exchange:
    names = Exchange.__dataclass_fields__
    values = {name: row._mapping[name] for name in names}
    values["messages"] = tuple(Message(**one) for one in row.messages)
    values["parents"] = tuple(row.parents)
    values["usage"] = Usage(**row.usage)
    return Exchange(**values)
