"""A finding: where, by which rule, how bad it is, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

Severity = Literal["error", "warning", "note"]
"""error: does not build on ROCm, or gives wrong results; warning: runs otherwise or slower, look at
it; note: nothing is left to do."""
ORDER: Final[Mapping[Severity, int]] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A replacement of a file's bytes from `start` to `end`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A place that a rule matches, before it knows its file's lines."""

    at: int
    """The byte in the text."""
    detail: str = ""
    """The text found there: the call, the instruction, the value."""
    fix: str = ""
    """The fix, if it is more precise than the rule's own."""
    edits: tuple[Edit, ...] = ()
    """The fix as replacements; none if a person has to decide."""
    needs: tuple[str, ...] = ()
    """Names of compatibility macros that the edits use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PortFinding:
    """One thing that stands between a file and ROCm."""

    file: str
    """The path, relative to the root of the scan, with forward slashes."""
    line: int
    """Counted from 1."""
    rule: str
    severity: Severity
    detail: str
    why: str
    fix: str
    edits: tuple[Edit, ...] = field(default=(), repr=False)
    needs: tuple[str, ...] = ()

    @property
    def fixable(self) -> bool:
        """True if the patch holds the fix."""
        return bool(self.edits)

    def as_json(self, fixed: bool) -> dict[str, object]:
        """Return the finding as plain data; `fixed_by` is `patch` or `hand`, empty for a note."""
        found = asdict(self)
        del found["edits"], found["needs"]
        by = "patch" if fixed else "" if self.severity == "note" else "hand"
        return found | {"fixed_by": by}
