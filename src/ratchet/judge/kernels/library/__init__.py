"""The shipped kernels. Importing this package imports no torch; an op's module does.

`LIBRARY` names every kernel; a module of `HOMES` holds it as the constant of that name. Importing
the module registers its ops under `torch.ops.ratchet`; `register_ops` imports them all.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import problems_of
from ratchet.judge.problems.suites.shipped import HOMES, WorkloadShapes

# The shipped sources as kernels: C++ with Ratchet's headers inlined, and Triton. No torch.

ISAS: Final = ("amx", "avx512_bf16", "avx512", "avx2", "portable")
"""Every variant in C++, best first: the targets of CPUs."""
ANY_GPU: Final = "gpu"
_GPU: Final = re.compile(r"gfx[0-9a-f]+|sm_[0-9]+[a-z]?|" + ANY_GPU)

_HERE: Final = Path(__file__).parent
_FOLDERS: Final = (_HERE / "csrc", _HERE.parent / "languages")
_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.MULTILINE)
_PRAGMA_ONCE: Final = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*\n", re.MULTILINE)


def language_for(target: str) -> Language:
    """Return the language of the kernels for a target; a KernelError if it is unknown."""
    if target in ISAS:
        return "cpp"
    if _GPU.fullmatch(target):
        return "triton"
    raise KernelError(
        f"unknown target {target!r}: use one of {', '.join(ISAS)}, or a GPU's such as gfx942"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A source of the library: `csrc/FILE.cpp`, or `triton/FILE.py`, which serves every GPU."""

    language: Language
    file: str
    entries: tuple[str, ...]
    schedule: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> Path:
        """The source's file."""
        folder, ending = ("csrc", "cpp") if self.language == "cpp" else ("triton", "py")
        return _HERE / folder / f"{self.file}.{ending}"

    def kernels(self, name: str, target: str) -> tuple[Kernel, ...]:
        """Return one kernel per entry for a target of the language; they share one source."""
        compiled = self.language == "cpp"
        source = self_contained(self.path.name) if compiled else self.path.read_text("utf-8")
        return tuple(
            Kernel(
                name=f"{name}:{entry}:{target if compiled else self.language}",
                language=self.language,
                source=source,
                entry=entry,
                schedule=(("isa", target), *self.schedule) if compiled else (),
            )
            for entry in self.entries
        )


@functools.cache
def self_contained(file: str) -> str:
    """Return the text of `csrc/FILE`, with Ratchet's headers inlined at their first include."""
    return inlined(_read(file), {file})


def inlined(text: str, seen: set[str] | None = None) -> str:
    """Return a text with Ratchet's headers inlined at their first include, but for those `seen`."""
    known = set() if seen is None else seen

    def replace(match: re.Match[str]) -> str:
        header = match.group(1)
        if header in known:
            return ""
        known.add(header)
        return inlined(_read(header), known)

    return _INCLUDE.sub(replace, text)


def _read(file: str) -> str:
    for folder in _FOLDERS:
        path = folder / file
        if path.is_file():
            return _PRAGMA_ONCE.sub("", path.read_text(encoding="utf-8"))
    raise KernelError(f"source {file!r} is missing from this installation: install ratchet again")


__all__ = ["FUSED", "LIBRARY", "LibraryKernel", "kernels_for", "register_ops", "why_no_kernel"]

FUSED: Final = ("elementwise", "compiled", "memory")
"""Categories of step time where inductor puts fused operations, and eager puts their parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryKernel:
    """One kernel of the library: its description and its variants."""

    name: str
    summary: str
    source_of_idea: str
    variants: tuple[Variant, ...]
    """Its sources in each language."""
    acts_on: tuple[str, ...]
    """The categories of step time that it can shorten."""
    alternatives: tuple[str, ...] = ()
    """Entries each of which answers a call alone, in the order in which they are tried."""
    on_cores: tuple[str, ...] = ()
    """Entries that the op asks for on cores alone."""

    def kernels(self, target: str) -> tuple[Kernel, ...]:
        """Return one kernel per entry that the op asks for on a device of that target.

        None if no variant is for it. Raises KernelError for an unknown target.
        """
        unasked = () if language_for(target) == "cpp" else self.on_cores
        return tuple(one for one in self.written_for(target) if one.entry not in unasked)

    def written_for(self, target: str) -> tuple[Kernel, ...]:
        """Return one kernel per entry; each answers the problem with its entry's name."""
        language = language_for(target)
        own = [one for one in self.variants if one.language == language]
        return tuple(kernel for one in own for kernel in one.kernels(self.name, target))

    def problems(self, shapes: WorkloadShapes) -> tuple[Problem, ...]:
        """Return the problems at a workload's shapes; each has the name of a kernel's entry."""
        return problems_of(self.name)(shapes)


class _LazyLibrary(Mapping[str, LibraryKernel]):
    """A mapping that imports a kernel's module (and torch) at the kernel's first use."""

    def __getitem__(self, name: str) -> LibraryKernel:
        module = importlib.import_module(f"{__name__}.{HOMES[name].file}")
        found = getattr(module, name.upper())
        assert isinstance(found, LibraryKernel), name
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(HOMES)

    def __len__(self) -> int:
        return len(HOMES)


LIBRARY: Final[Mapping[str, LibraryKernel]] = _LazyLibrary()
"""Every shipped kernel by name, in the order in which to try them."""


def kernels_for(target: str) -> dict[str, Kernel]:
    """Return every shipped kernel for a device's target, by its entry.

    The target is `Device.target`, or `sources.ANY_GPU`: Triton has one source for all of them.
    """
    return {one.entry: one for library in LIBRARY.values() for one in library.written_for(target)}


def why_no_kernel(name: str, target: str) -> str | None:
    """Return in one line why a library kernel cannot serve a device; None if it can."""
    language = language_for(target)
    if any(one.language == language for one in LIBRARY[name].variants):
        return None
    return f"the library has no {name} kernel in {language}, which {target} needs"


def register_ops() -> None:
    """Register every op of the library under `torch.ops.ratchet`."""
    for module in dict.fromkeys(home.file for home in HOMES.values()):
        importlib.import_module(f"{__name__}.{module}")
