"""The files below a folder, each once, with a reason for everything that is left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratchet.base import files

MOST_FILES: Final = 20_000
PASSED_OVER: Final = frozenset(
    {"__pycache__", "node_modules", "site-packages", ".git", ".hg", ".svn", ".venv"}
)
"""Folders that hold no documents of their own; they are left out without a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A path that was not indexed, and why."""

    path: str
    why: str

    @staticmethod
    def of(path: Path, why: str) -> LeftOut:
        """Return a path's reason; bytes of its name that are no text are written out."""
        return LeftOut(path=printable(path), why=why)


def printable(path: Path) -> str:
    """Return a path in which bytes that are not UTF-8, and control characters, are written out."""
    text = str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def walk(start: Path) -> Iterator[Path | LeftOut]:
    """Yield `start` if it is a file, else the files below it, sorted; symbolic links are followed.

    A folder is entered once, however many links lead to it. Anything that is neither a file nor a
    folder, or cannot be read, is yielded as `LeftOut`. Nothing is opened.
    """
    seen: set[tuple[int, int]] = set()
    waiting, count = [start], 0
    while waiting:
        path = waiting.pop()
        try:
            found = path.stat()
        except OSError as error:
            yield LeftOut.of(path, f"cannot be read ({_words(error)})")
            continue
        identity = (found.st_dev, found.st_ino)
        if stat.S_ISDIR(found.st_mode):
            if identity in seen:
                yield LeftOut.of(path, "is a folder that was read already (a link to it)")
                continue
            seen.add(identity)
            try:
                names = sorted(os.listdir(path), reverse=True)
            except OSError as error:
                yield LeftOut.of(path, f"cannot be read ({_words(error)})")
                continue
            waiting += [path / name for name in names if name not in PASSED_OVER]
            continue
        if not stat.S_ISREG(found.st_mode):
            yield LeftOut.of(path, f"is {files.kind(found.st_mode)}")
            continue
        if identity in seen:
            continue  # the same file under another name
        seen.add(identity)
        count += 1
        if count > MOST_FILES:
            yield LeftOut.of(start, f"has more than {MOST_FILES:,} files: add parts of it")
            return
        yield path


def _words(error: OSError) -> str:
    return error.strerror or type(error).__name__
