"""Place of the ledger: an argument, `RATCHET_LEDGER`, or the platform's data folder."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ratchet.base.errors import LedgerError
from ratchet.base.files import SQLITE

ENVIRONMENT = "RATCHET_LEDGER"
_DATABASES = ("sqlite", "postgresql")


def default_path() -> Path:
    return Path(platformdirs.user_data_dir("ratchet", appauthor=False)) / "ledger.db"


def resolve(url: str | os.PathLike[str] | None = None) -> URL:
    """Return the database's URL from a URL, a path, `RATCHET_LEDGER` or the default, in this order.

    Raises:
        LedgerError: the text is not a URL of SQLite or PostgreSQL.
    """
    text = os.fspath(url) if url is not None else ""
    text = text or os.environ.get(ENVIRONMENT, "") or str(default_path())
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
