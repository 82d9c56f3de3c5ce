"""A rule of the port: what it matches in a text, and the finding that it gives."""

from __future__ import annotations

import bisect
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar

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


def inserted(at: int, text: str) -> Edit:
    return Edit(start=at, end=at, text=text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A place that a rule matches, before it knows its file's lines."""

    at: int  # the byte in the text
    detail: str = ""  # the text found there: the call, the instruction, the value
    fix: str = ""  # the fix, if it is more precise than the rule's own
    edits: tuple[Edit, ...] = ()  # the fix as replacements; none if a person has to decide
    needs: tuple[str, ...] = ()  # names of compatibility macros that the edits use


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that stands between a file and ROCm."""

    file: str  # the path, relative to the root of the scan, with forward slashes
    line: int  # counted from 1
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


# A text that rules read: a whole file, or CUDA code inside a Python string.

Kind = Literal["cuda", "python", "cmake", "docker", "shell", "yaml", "packages"]


@dataclass(frozen=True, kw_only=True)
class CodeText:
    """A text with its place. Offsets count bytes of `text`."""

    file: str
    kind: Kind
    text: bytes
    first_line: int = 1  # line of the file on which the text begins
    shift: int | None = 0
    """Byte of the file at which the text begins; None if its bytes are not the file's own."""
    for_torch: bool = False
    """torch builds it, and so hipifies it: an extension, or CUDA code in a Python string."""
    constants: dict[str, int] = field(default_factory=dict)
    """Integer constants of the whole repository's headers."""
    own_modules: frozenset[str] = frozenset()  # Python modules of the repository itself

    @cached_property
    def _starts(self) -> list[int]:
        found = [0]
        while (end := self.text.find(b"\n", found[-1])) >= 0:
            found.append(end + 1)
        return found

    def line_of(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, offset) + self.first_line - 1

    def start_of(self, line: int) -> int:
        """Return the byte at which a line begins, counted from 1 within the text."""
        return self._starts[min(line, len(self._starts)) - 1]

    def in_file(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        """Return edits of the text as those of its file; none if its bytes are not the file's."""
        if self.shift is None:
            return ()
        shift = self.shift
        return tuple(
            Edit(start=one.start + shift, end=one.end + shift, text=one.text) for one in edits
        )


Tree = TypeVar("Tree")
Matching = Callable[[Tree], Iterator[Match]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Generic[Tree]):
    """One rule on the syntax of one language."""

    name: str
    severity: Severity
    why: str
    fix: str
    matches: Matching[Tree]

    def findings(
        self, tree: Tree, source: CodeText, leave: Callable[[int], bool] = lambda _: False
    ) -> Iterator[Finding]:
        """Yield what the rule finds in a text; `leave` says which bytes are not looked at."""
        for match in self.matches(tree):
            if leave(match.at):
                continue
            edits = source.in_file(match.edits)
            yield Finding(
                file=source.file,
                line=source.line_of(match.at),
                rule=self.name,
                severity=self.severity,
                detail=match.detail,
                why=self.why,
                fix=match.fix or self.fix,
                edits=edits,
                needs=match.needs if edits else (),
            )


class Rules(list[Rule[Tree]]):
    """The rules of one file: a function becomes one by the decorator `add`."""

    def add(
        self, name: str, severity: Severity, *, fix: str
    ) -> Callable[[Matching[Tree]], Matching[Tree]]:
        """Return the decorator that makes a rule of what matches; its docstring is the reason."""

        def added(matches: Matching[Tree]) -> Matching[Tree]:
            why = " ".join((matches.__doc__ or "").split())
            self.append(Rule(name=name, severity=severity, why=why, fix=fix, matches=matches))
            return matches

        return added


# Words of CUDA's world, and what ROCm says instead: the tables of data/counterparts.toml.

_FILE: Final = Path(__file__).with_name("data") / "counterparts.toml"
_TABLES: Final[dict[str, dict[str, str]]] = tomllib.loads(_FILE.read_text("utf-8"))
VARIABLES: Final = _TABLES["variables"]
FLAGS: Final = _TABLES["flags"]
PROGRAMS: Final = _TABLES["programs"]
IMAGES: Final = _TABLES["images"]
PACKAGES: Final = _TABLES["packages"]
MODULES: Final = _TABLES["modules"]
SWITCHES: Final = _TABLES["switches"]
LINKED: Final = _TABLES["linked"]
CMAKE_TARGETS: Final = _TABLES["cmake_targets"]
CMAKE_PACKAGES: Final = _TABLES["cmake_packages"]
HEADERS: Final = _TABLES["headers"]
DEVICE_FUNCTIONS: Final = _TABLES["device_functions"]
PTX: Final = _TABLES["ptx"]
