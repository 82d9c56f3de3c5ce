"""Translation of a database's errors into one line with the remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError

from ratchet.base.errors import LedgerError
from ratchet.base.ledger.place import shown

BUSY_TIMEOUT_S = 5.0
"""Time that a writer waits for another one before it gives up."""

_ELSEWHERE = "point --ledger or RATCHET_LEDGER at another file"

# Primary result codes of SQLite, https://www.sqlite.org/rescode.html
_REMEDIES: dict[int, str] = {
    sqlite3.SQLITE_BUSY: (
        f"is locked by another process (waited {BUSY_TIMEOUT_S:g} s); wait for it to end, or "
        f"{_ELSEWHERE}"
    ),
    sqlite3.SQLITE_READONLY: (
        f"is read-only; make the file and its folder writable, or {_ELSEWHERE}"
    ),
    sqlite3.SQLITE_FULL: (
        "is full: the disk has no room left; free some space and run the same command again, "
        f"or {_ELSEWHERE}. No committed row is lost"
    ),
    sqlite3.SQLITE_CANTOPEN: f"cannot be opened; check its folder's permissions, or {_ELSEWHERE}",
    sqlite3.SQLITE_NOTADB: f"is not a ledger (not an SQLite file); move it away, or {_ELSEWHERE}",
    sqlite3.SQLITE_CORRUPT: f"is damaged; move it away and start again, or {_ELSEWHERE}",
    sqlite3.SQLITE_IOERR: (
        f"cannot be read or written; check the disk for errors and free space, or {_ELSEWHERE}"
    ),
}
_REMEDIES[sqlite3.SQLITE_LOCKED] = _REMEDIES[sqlite3.SQLITE_BUSY]
_REMEDIES[sqlite3.SQLITE_PERM] = _REMEDIES[sqlite3.SQLITE_READONLY]


def code_of(error: DBAPIError) -> int | None:
    """Return SQLite's primary result code of an error; None for another database."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn the database's errors into a `LedgerError` of one line.

    `IntegrityError` passes: it tells an append that its row exists already.
    """
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise LedgerError(f"the ledger {shown(url)} {_remedy(error)}") from error


def _remedy(error: DBAPIError) -> str:
    remedy = _REMEDIES.get(code_of(error) or -1)
    if remedy is not None:
        return remedy
    said = " ".join(str(error.orig).split())
    return f"failed ({said}); check the database, or {_ELSEWHERE}"
