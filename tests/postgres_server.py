"""A PostgreSQL server of the test's own, in a folder of its own, reached through a Unix socket."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
"""initdb and postgres refuse to run as root."""
SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "listen_addresses=")


def programs() -> Path:
    """The folder of the newest server that is installed; skips the test where there is none."""
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed: pip install 'torch-ratchet[postgres]'")
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if on_path is None and not found:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    folder = Path(on_path).parent if on_path else found[-1].parent
    try:
        subprocess.run([folder / "postgres", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"PostgreSQL's server does not run ({error}): apt install postgresql")
    return folder


@contextmanager
def postgres() -> Iterator[Callable[[], str]]:
    """A server; what it gives makes a new, empty database and returns its URL."""
    bin = programs()
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="rpg-", dir="/tmp", ignore_cleanup_errors=True) as home:
        if user:
            os.chown(home, NOBODY, NOBODY)
        data = f"{home}/data"
        subprocess.run(
            [bin / "initdb", "-D", data, "-U", "ratchet", "-A", "trust", "--no-sync"],
            **user,
            cwd=home,
            check=True,
            capture_output=True,
        )
        words = [word for one in SETTINGS for word in ("-c", one)]
        server = subprocess.Popen(
            [bin / "postgres", "-D", data, "-k", home, *words],
            **user,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(home, server)
            yield lambda: _new_database(home)
        finally:
            server.terminate()  # it ends when no session is left
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(home: str, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    until = time.monotonic() + 120
    while True:
        try:
            psycopg.connect(host=home, user="ratchet", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > until:
                raise
        time.sleep(0.1)


def _new_database(home: str) -> str:
    import psycopg

    name = f"ledger_{uuid.uuid4().hex}"
    with psycopg.connect(host=home, user="ratchet", dbname="postgres", autocommit=True) as opened:
        opened.execute(f'CREATE DATABASE "{name}"')
    return f"postgresql+psycopg://ratchet@/{name}?host={home}"
