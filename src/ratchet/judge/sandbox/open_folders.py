"""Folders that every user may fill: the private ones of candidates, and what these leave behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from ratchet.base import scratch

OPEN_FOLDERS: Final = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Where every user may write: a candidate too, when it has no private view of the machine."""


def private_folder(uid: int | None) -> Path:
    """Make a folder of one candidate, given to a uid; what killed judges have left goes."""
    for base in _bases():
        scratch.clear_abandoned(base)
    folder = scratch.make(f"candidate-{os.getpid()}", place=_base())
    if uid is not None:
        os.chown(folder, uid, uid)
    return folder


def _bases() -> list[Path]:
    return list(dict.fromkeys((Path(tempfile.gettempdir()), *OPEN_FOLDERS)))


def _base() -> Path:
    """The first of these that takes files whose code may run: what a candidate builds, it loads."""
    return next((base for base in _bases() if _takes_code(base)), _bases()[0])


def _takes_code(folder: Path) -> bool:
    try:
        is_open = os.access(folder, os.W_OK | os.X_OK)
        return is_open and not os.statvfs(folder).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def left_by(uid: int) -> list[Path]:
    """Return what a user has put into the folders where everybody may write."""
    found = []
    for folder in OPEN_FOLDERS:
        with contextlib.suppress(OSError):
            found += [Path(entry.path) for entry in os.scandir(folder) if _owner(entry) == uid]
    return found


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
