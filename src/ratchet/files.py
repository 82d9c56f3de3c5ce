"""Checks of every path that a user names, and whole writes.

A check returns a reason to print after the path, such as "is a FIFO", or an empty text if the path
is fine. None of them opens the file, since opening a FIFO could block forever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind(mode: int) -> str:
    """Name the kind of a file by its mode: `a folder`."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def why_not_file(path: Path) -> str:
    """Return the reason why a file cannot be read."""
    return _why_not(path, stat.S_IFREG, os.R_OK)


def why_not_folder(path: Path) -> str:
    """Return the reason why the files of a folder cannot be read."""
    return _why_not(path, stat.S_IFDIR, os.R_OK | os.X_OK)


def why_not_new_folder(path: Path) -> str:
    """Return the reason why a folder cannot be created, such as a file in its place or above it."""
    for place in (path, *path.parents):
        try:
            found = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"cannot be created as a folder ({error.strerror})"
        if stat.S_ISDIR(found):
            return ""
        return (
            f"is {kind(found)}" if place == path else f"lies below {place}, which is {kind(found)}"
        )
    return ""


def why_not_new_file(path: Path) -> str:
    """Return the reason why a file cannot be written; its folder must exist."""
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        return why_not_folder(path.absolute().parent) and "is in a folder that does not exist"
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    if stat.S_ISREG(found) or stat.S_ISCHR(found):  # /dev/null and /dev/stdout are devices
        return ""
    return f"is {kind(found)}"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file through another beside it, so that no reader sees half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _why_not(path: Path, wanted: int, access: int) -> str:
    try:
        found = path.stat().st_mode
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if stat.S_IFMT(found) != wanted:
        return f"is {kind(found)}"
    return "" if os.access(path, access) else "may not be read"
