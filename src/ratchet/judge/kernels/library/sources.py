"""The shipped sources as kernels: C++ with Ratchet's headers inlined, and Triton. No torch."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites.shipped import WorkloadShapes

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


FUSED: Final = ("elementwise", "compiled", "memory")
"""Categories of step time where inductor puts fused operations, and eager puts their parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpExample:
    """A call of an op as Python text; `F` is torch.nn.functional, `x(*shape)` a new fp32 tensor."""

    arguments: str
    expected: str  # The result in plain torch, of the arguments `a`
    tolerance: float = 1e-4
    """Largest error of a result or a gradient, as a share of its largest value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryKernel:
    """One kernel of the library: its description and its variants."""

    name: str
    module: str  # The module that declares its ops
    problems: Callable[[WorkloadShapes], tuple[Problem, ...]]
    """Returns the problems at a workload's shapes; each has the name of a kernel's entry."""
    summary: str
    source_of_idea: str
    variants: tuple[Variant, ...]  # Its sources in each language
    acts_on: tuple[str, ...]  # The categories of step time that it can shorten
    examples: Mapping[str, OpExample]
    """A call of each public op by its name: an exported package names and tests these."""
    alternatives: tuple[str, ...] = ()
    """Entries each of which answers a call alone, in the order in which they are tried."""
    on_cores: tuple[str, ...] = ()  # Entries that the op asks for on cores alone

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
