"""Where the ledger stands: an argument, `RATCHET_LEDGER`, or the platform's data folder."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ratchet.errors import LedgerError

ENVIRONMENT = "RATCHET_LEDGER"
_DATABASES = ("sqlite", "postgresql")


def default_path() -> Path:
    """The file that is used where nothing else is asked for."""
    return Path(platformdirs.user_data_dir("ratchet", appauthor=False)) / "ledger.db"


def resolve(url: str | os.PathLike[str] | None = None) -> URL:
    """The database's URL from a URL, a path, `RATCHET_LEDGER` or the default, in this order.

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
            f"the ledger is kept in SQLite or PostgreSQL, not in {database!r}; give a path, "
            "sqlite:///FILE or postgresql://USER@HOST/DATABASE"
        )
    # A bare postgresql:// means another driver in older releases of SQLAlchemy.
    return parsed.set(drivername="postgresql+psycopg") if database == "postgresql" else parsed


def shown(url: URL) -> str:
    """The ledger's place as a person reads it, without a password."""
    if url.get_backend_name() == "sqlite" and url.database:
        return url.database
    return url.render_as_string(hide_password=True)


def file_of(url: URL) -> Path | None:
    """The SQLite file behind a URL; None for a server, and for a ledger held in memory."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    if url.database.startswith("file:"):
        return None
    return Path(url.database)
