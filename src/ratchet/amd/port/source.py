"""A text that rules read: a whole file, or CUDA code inside a Python string."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ratchet.amd.port.finding import Edit, Match, PortFinding, Severity

Kind = Literal["cuda", "python", "cmake", "docker", "shell", "yaml", "packages"]


@dataclass(frozen=True, kw_only=True)
class CodeText:
    """A text with its place. Offsets count bytes of `text`."""

    file: str
    kind: Kind
    text: bytes
    first_line: int = 1
    """Line of the file on which the text begins."""
    shift: int | None = 0
    """Byte of the file at which the text begins; None if its bytes are not the file's own."""
    for_torch: bool = False
    """torch builds it, and so hipifies it: an extension, or CUDA code in a Python string."""
    constants: dict[str, int] = field(default_factory=dict)
    """Integer constants of the whole repository's headers."""
    own_modules: frozenset[str] = frozenset()
    """Python modules of the repository itself."""

    @cached_property
    def _starts(self) -> list[int]:
        found = [0]
        while (end := self.text.find(b"\n", found[-1])) >= 0:
            found.append(end + 1)
        return found

    def line_of(self, offset: int) -> int:
        """Return the line of the file, counted from 1."""
        return bisect.bisect_right(self._starts, offset) + self.first_line - 1

    def start_of(self, line: int) -> int:
        """Return the byte at which a line begins, counted from 1 within the text."""
        return self._starts[min(line, len(self._starts)) - 1]

    def finding(
        self, match: Match, *, rule: str, severity: Severity, why: str, fix: str
    ) -> PortFinding:
        """Return the match as a finding in the file, with its edits moved to the file's bytes."""
        shift = self.shift
        moved = () if shift is None else tuple(_moved(edit, shift) for edit in match.edits)
        return PortFinding(
            file=self.file,
            line=self.line_of(match.at),
            rule=rule,
            severity=severity,
            detail=match.detail,
            why=why,
            fix=match.fix or fix,
            edits=moved,
            needs=match.needs if moved else (),
        )


def _moved(edit: Edit, shift: int) -> Edit:
    return Edit(start=edit.start + shift, end=edit.end + shift, text=edit.text)
