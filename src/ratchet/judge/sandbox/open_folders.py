"""Private folders of candidates without a private /tmp, and what they leave on the disk."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

SCRATCH_PREFIX: Final = "ratchet-candidate-"
OPEN_FOLDERS: Final = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Where every user may write: a candidate too, when it has no private view of the machine."""


def private_folder(uid: int | None) -> Path:
    """A new folder, given to a uid; one whose judge was killed goes when the next is made."""
    clear_abandoned()
    prefix = f"{SCRATCH_PREFIX}{os.getpid()}-{pid_namespace()}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_base()))
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


def clear_abandoned() -> None:
    """Remove the folders of judges that were killed: each carries its judge's process id.

    Containers may share a folder for temporary files: another's process ids say nothing here.
    """
    abandoned = [one for base in _bases() for one in base.glob(f"{SCRATCH_PREFIX}*-*-*")]
    for folder in abandoned:
        pid, namespace, _ = folder.name.removeprefix(SCRATCH_PREFIX).split("-", 2)
        if namespace == pid_namespace() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def pid_namespace() -> str:
    """Return what tells this process's namespace of process ids from others (namespaces(7))."""
    return str(os.stat("/proc/self/ns/pid").st_ino)


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
