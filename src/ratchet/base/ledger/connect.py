"""Opening of the ledger's database: its place, pragmas, tables, a test write, and its errors.

The place is an argument, `RATCHET_LEDGER`, or the platform's data folder. A database's error
becomes one line with the remedy.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.schema import CreateIndex, CreateTable

from ratchet.base import Json, files
from ratchet.base.errors import LedgerError
from ratchet.base.files import SQLITE
from ratchet.base.ledger import schema

_DATABASES = ("sqlite", "postgresql")


def resolve(url: str | os.PathLike[str] | None = None) -> URL:
    """Return the database's URL from a URL, a path, `RATCHET_LEDGER` or the default, in this order.

    LedgerError if the text is not a URL of SQLite or PostgreSQL.
    """
    text = files.ledger_place(url)
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser().absolute()))
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise LedgerError(
            f"the ledger's URL cannot be read ({error}); give a path, sqlite:///FILE or "
            "postgresql://USER@HOST/DATABASE"
        ) from error
    database = parsed.get_backend_name()
    if database not in _DATABASES:
        raise LedgerError(
            f"the ledger needs SQLite or PostgreSQL, not {database!r}; give a path, "
            "sqlite:///FILE or postgresql://USER@HOST/DATABASE"
        )
    # Older releases of SQLAlchemy pick another driver for a bare postgresql://.
    return parsed.set(drivername="postgresql+psycopg") if database == "postgresql" else parsed


def shown(url: URL) -> str:
    """Return the ledger's place for a message, without a password."""
    if url.get_backend_name() == "sqlite" and url.database:
        return url.database
    return url.render_as_string(hide_password=True)


def why_no_database(file: Path) -> str:
    """Return why a file that exists is no database. SQLite would overwrite one of a few bytes."""
    try:
        with file.open("rb") as opened:
            head = opened.read(len(SQLITE))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if head in (b"", SQLITE) else "is not an SQLite file"


def file_of(url: URL) -> Path | None:
    """Return the SQLite file of a URL; None for a server, and for a ledger in memory."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    if url.database.startswith("file:"):
        return None
    return Path(url.database)


BUSY_TIMEOUT_S = 5.0  # Time that a writer waits for another one before it gives up

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
        said = " ".join(str(error.orig).split())
        unknown = f"failed ({said}); check the database, or {_ELSEWHERE}"
        remedy = _REMEDIES.get(code_of(error) or -1, unknown)
        raise LedgerError(f"the ledger {shown(url)} {remedy}") from error


_KEY = "$float"


def dumps(payload: object) -> str:
    """Return strict JSON; a float that JSON lacks becomes `{"$float": "nan"}` (also inf, -inf).

    PostgreSQL refuses the bare `NaN` that Python would write, and one infinite loss must not cost
    the whole turn.
    """
    return json.dumps(_encoded(payload), allow_nan=False, separators=(",", ":"))


def loads(text: str) -> Json:
    """Return the value that `dumps` was given, with lists in place of tuples."""
    return json.loads(text, object_hook=_decoded)


def _encoded(value: object) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return {_KEY: str(value)}
    if isinstance(value, Mapping):
        return {str(key): _encoded(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_encoded(item) for item in value]
    return value


def _decoded(value: dict[str, Json]) -> Json:
    return float(value[_KEY]) if value.keys() == {_KEY} else value


_CREATING = 0x7261_7463  # Key of PostgreSQL's advisory lock for creating the tables


def utc_now() -> str:
    """Return the current time in UTC, as ISO 8601 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def connect(url: URL) -> Engine:
    """Return an engine for a ledger that is intact, has this schema and can be written.

    LedgerError if it is locked, read-only, damaged, newer or another program's, or has no driver.
    """
    _make_folder(url)
    engine = _engine(url)
    try:
        with explained(url):
            _prepare(engine)
            # Tell of a read-only or locked ledger now, not after half an hour of measuring. Only
            # writing a row tells: permission bits do not bind root, and SQLite begins a
            # transaction even on a file that it cannot write.
            with engine.connect() as connection:
                connection.execute(insert(schema.schema_version).values(**_version_row()))
                connection.rollback()
    except BaseException:
        engine.dispose()
        raise
    return engine


def alone(connection: Connection, table: Table) -> None:
    """Begin a transaction that no other one of `alone` runs beside: read, then write what lacks."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE")


def _make_folder(url: URL) -> None:
    file = file_of(url)
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = files.why_not_new_folder(file.parent) or f"cannot be created ({error.strerror})"
        raise LedgerError(
            f"the ledger's folder {file.parent} {why}; point --ledger "
            "or RATCHET_LEDGER at a file in a folder that can be written"
        ) from error
    check_place(file)
    if why := why_no_database(file):
        raise LedgerError(
            f"the ledger {file} is not a ledger ({why.removeprefix('is ')}); move it away, or "
            "point --ledger or RATCHET_LEDGER at another file"
        )


def check_place(file: Path | None) -> None:
    """Raise a LedgerError if a ledger's file cannot be made or written; nothing is made."""
    if file is None:
        return
    there = file.parent.exists()
    if why := files.why_not_new_file(file) if there else files.why_not_new_folder(file.parent):
        raise LedgerError(f"the ledger {file} {why}; point --ledger or RATCHET_LEDGER at a file")


def _engine(url: URL) -> Engine:
    try:
        engine = create_engine(url, json_serializer=dumps, json_deserializer=loads)
    except ModuleNotFoundError as error:
        raise LedgerError(
            f"a ledger in PostgreSQL needs {error.name}; pip install 'torch-ratchet[postgres]'"
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: DBAPIConnection, record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    # With FULL, a commit also survives a power cut. A turn commits rarely, so it can afford this.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _set_wal(engine: Engine) -> None:
    """Switch the new file to write-ahead logging for good.

    SQLite's busy timeout does not cover the switch, and two processes may create one ledger.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("PRAGMA journal_mode = WAL"))
            return
        except OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _prepare(engine: Engine) -> None:
    version = _version(engine)
    if version is None or version < schema.SCHEMA_VERSION:
        _create(engine)  # a newer version only adds tables, so an older ledger keeps its rows
    elif version > schema.SCHEMA_VERSION:
        raise LedgerError(
            f"the ledger {shown(engine.url)} has schema {version}, and this Ratchet supports up to "
            f"{schema.SCHEMA_VERSION}; upgrade Ratchet, or point --ledger at another file"
        )


def _version(engine: Engine) -> int | None:
    """Return the ledger's schema version, or None before its tables are created."""
    with engine.connect() as connection:
        names = set(inspect(connection).get_table_names())
        if schema.schema_version.name in names:
            newest = select(func.max(schema.schema_version.c.version))
            version: object = connection.execute(newest).scalar()
            if version is None or isinstance(version, int):
                return version
            raise LedgerError(
                f"the ledger {shown(engine.url)} is damaged (its schema version is {version!r}, "
                "and must be a whole number); move it away and start again, or point --ledger at "
                "another file"
            )
    if names and engine.dialect.name == "sqlite":
        raise LedgerError(
            f"{shown(engine.url)} is another program's database (it holds {min(names)!r}); "
            "point --ledger at a file of its own"
        )
    return None


def _create(engine: Engine) -> None:
    """Create missing tables, of a new ledger or of one with an older schema.

    The version comes last, so the next start repairs a killed one.
    """
    if engine.dialect.name == "sqlite":
        _set_wal(engine)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_CREATING)))
        for statement in _statements(engine.url.drivername):
            connection.exec_driver_sql(statement)
        connection.execute(insert(schema.schema_version).values(**_version_row()))


@functools.cache
def _statements(driver: str) -> tuple[str, ...]:
    """Return what creates missing tables and indexes; compiling it takes most of a new ledger."""
    # The version's table first: it distinguishes a half-made ledger from another database.
    first, found = schema.schema_version, list[CreateTable | CreateIndex]()
    for table in (first, *(one for one in schema.metadata.sorted_tables if one is not first)):
        found.append(CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            found.append(CreateIndex(index, if_not_exists=True))
    dialect = URL.create(driver).get_dialect()()
    return tuple(str(one.compile(dialect=dialect)) for one in found)


def _version_row() -> dict[str, object]:
    return {"at": utc_now(), "device": "", "software": "", "version": schema.SCHEMA_VERSION}
