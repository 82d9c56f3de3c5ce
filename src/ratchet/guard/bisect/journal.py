"""Measurements of a bisection, one JSON line each: a killed one goes on from it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ratchet.base.files import make_folder, write_whole
from ratchet.guard.bisect.search import CommitPair


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pair, or a commit that is skipped."""

    phase: str
    """`ends`, `search`, `confirm` or `skip`."""
    commit: int
    against: int = -1
    value: float = 0.0
    reference: float = 0.0
    why: str = ""

    @property
    def pair(self) -> CommitPair:
        return CommitPair(
            commit=self.commit, against=self.against, value=self.value, reference=self.reference
        )


class Journal:
    """The lines of one bisection; a line cut off by a kill is dropped."""

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self._path = path
        self.lines: list[JournalLine] = []
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        self.lines = [msgspec.json.decode(one, type=JournalLine) for one in whole.splitlines()]
        if whole != content:
            write_whole(path, whole)

    def add(self, line: JournalLine) -> None:
        """Append a line; it is on the disk when this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self.lines.append(line)

    def of(self, phase: str) -> list[JournalLine]:
        """Return the lines of one phase."""
        return [one for one in self.lines if one.phase == phase]
