"""A kernel: source text in a language, its entry and its schedule, identified by a hash."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, cast, get_args

from ratchet.base import Json
from ratchet.base.errors import KernelError

Language = Literal["cpp", "triton", "hip", "torch"]
WITH_TORCH: Final[tuple[Language, ...]] = ("torch", "triton")
"""Languages in Python: their worker imports torch, and only it can use a GPU."""
TARGETS: Final = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
"""AMD GPUs whose machine code is emulated and profiled where there is none."""
ARGUMENTS: Final = re.compile(r"TypeError: (\S*)\(\) (?:takes|missing) .*\bpositional arguments?\b")
"""Python's words if a function is called with other arguments than it takes."""
TAKEN: Final = {
    "ModelNew.forward": "ModelNew's forward takes what get_inputs returns",
    "ModelNew.__init__": "ModelNew takes what get_init_inputs returns, and answers no problem in "
    "Ratchet's form",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """Source text, its entry point and its schedule parameters."""

    name: str  # A name for people; not part of the hash
    language: Language
    source: str  # Self-contained text: Ratchet's own headers are inlined first
    entry: str  # The name of the C function, or of the Python function
    schedule: tuple[tuple[str, str], ...] = ()
    """Parameters of this variant; in cpp they become -D macros."""

    def __post_init__(self) -> None:
        if self.language not in get_args(Language):
            raise KernelError(
                f"kernel {self.name!r} has the unknown language {self.language!r}: "
                f"use one of {', '.join(get_args(Language))}"
            )

    @property
    def hash(self) -> str:
        """Hex SHA-256 of language, source, entry and schedule."""
        return _hash_of(self)

    @property
    def build_hash(self) -> str:
        """Hex SHA-256 of the compiler's input: entries of one source share a library."""
        return _digest([self.language, self.source, self.schedule])

    def as_json(self) -> dict[str, Json]:
        """Return a JSON object; `from_json` makes an equal kernel of it."""
        return {
            "name": self.name,
            "language": self.language,
            "source": self.source,
            "entry": self.entry,
            "schedule": [list(pair) for pair in self.schedule],
        }

    @staticmethod
    def from_json(document: dict[str, Json]) -> Kernel:
        """Return the kernel that `as_json` wrote; a KernelError if a field is missing."""
        try:
            return Kernel(
                name=document["name"],
                language=cast(Language, document["language"]),
                source=document["source"],
                entry=document["entry"],
                schedule=tuple((str(key), str(value)) for key, value in document["schedule"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise KernelError(f"this is not a kernel's JSON ({error!r}): write it again") from error


def with_remedy(error: str, remedy: str = "") -> str:
    """Return a kernel's error with its remedy; of an entry with wrong arguments, what it takes."""
    if (found := ARGUMENTS.search(error)) is not None:
        remedy = TAKEN.get(found[1], "an entry takes the tensors of a case, then its scalars")
    return f"{error}; {remedy}" if remedy else error


@lru_cache(maxsize=4096)
def _hash_of(kernel: Kernel) -> str:
    """Return a kernel's hash; a run asks for it many times."""
    return _digest([kernel.language, kernel.source, kernel.entry, kernel.schedule])


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
