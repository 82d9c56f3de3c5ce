"""Temporary folders that go when their process goes, however it ends.

A process that is ended by SIGKILL removes nothing. So each folder is locked by the process that
made it, the kernel drops the lock when that process dies, and `clear_abandoned` removes every
folder that nobody holds: it runs before each new folder is made, and at the start of each command.
A lock tells the living from the dead across containers and users too, where process ids do not.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "ratchet-scratch-"
"""No name that a user would give to a folder: what begins so and is not locked is removed."""
_held: dict[Path, tuple[int, int]] = {}
"""The descriptor that holds each folder's lock, and the process that made it: a fork has both, and
must not remove what is its parent's."""


@contextlib.contextmanager
def folder(kind: str, *, place: Path | None = None) -> Iterator[Path]:
    """Make a private folder for a while, in `place`, else where temporary files are kept."""
    made = make(kind, place=place)
    try:
        yield made
    finally:
        remove(made)


def make(kind: str, *, place: Path | None = None) -> Path:
    """Make a private folder that `remove`, or the end of this process, takes away."""
    clear_abandoned(place)
    while True:
        made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=place))
        try:
            lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):  # no lock can be taken here: nobody else can either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():  # no other process took it for abandoned before it was locked
            _held[made] = (lock, os.getpid())
            return made
        os.close(lock)


def remove(made: Path) -> None:
    """Remove a folder that `make` made, with everything in it."""
    shutil.rmtree(made, ignore_errors=True)
    if made in _held:  # until here, so that an interrupt leaves it to `_remove_own`
        os.close(_held.pop(made)[0])


@contextlib.contextmanager
def locked(made: Path) -> Iterator[None]:
    """Keep other processes that ask for the same folder waiting; make it if it is not there.

    Where no lock can be taken, as on some network's file systems, nobody waits.
    """
    made.mkdir(parents=True, exist_ok=True)
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def clear_abandoned(place: Path | None = None) -> None:
    """Remove the folders that killed processes have left in `place`."""
    with contextlib.suppress(OSError), os.scandir(place or tempfile.gettempdir()) as entries:
        for path in [Path(one.path) for one in entries if one.name.startswith(PREFIX)]:
            if path not in _held:
                _remove_abandoned(path)


def _remove_abandoned(path: Path) -> None:
    """Remove a folder if nobody holds its lock and this user may."""
    with contextlib.suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


@atexit.register
def _remove_own() -> None:
    """Remove what this process has made and not removed: an interrupt may come anywhere."""
    for made, (_, owner) in list(_held.items()):
        if owner == os.getpid():
            remove(made)
