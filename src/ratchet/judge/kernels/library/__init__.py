"""The shipped kernels. Importing this package imports no torch; an op's module does.

Importing an op's module registers its ops under `torch.ops.ratchet`. Each `LibraryKernel` that a
module here defines is in the library.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Final

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library.sources import LibraryKernel, language_for
from ratchet.judge.problems.suites.shipped import entries


@functools.cache
def register_ops() -> dict[str, LibraryKernel]:
    """Import every op of the library, and return the kernels by name."""
    modules = [one.name for one in pkgutil.iter_modules(__path__) if not one.ispkg]
    return {
        one.name: one
        for name in modules
        for one in vars(importlib.import_module(f"{__name__}.{name}")).values()
        if isinstance(one, LibraryKernel)
    }


class _LazyLibrary(Mapping[str, LibraryKernel]):
    """A mapping that imports torch and the ops at the first use of a kernel."""

    def __getitem__(self, name: str) -> LibraryKernel:
        return register_ops()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(entries())

    def __len__(self) -> int:
        return len(entries())


LIBRARY: Final[Mapping[str, LibraryKernel]] = _LazyLibrary()
"""Every shipped kernel by name. The names are those of the problems that ship."""


def kernels_for(target: str) -> dict[str, Kernel]:
    """Return every shipped kernel for a device's target, by its entry."""
    return {one.entry: one for library in LIBRARY.values() for one in library.written_for(target)}


def why_no_kernel(name: str, target: str) -> str | None:
    """Return in one line why a library kernel cannot serve a device; None if it can."""
    language = language_for(target)
    if any(one.language == language for one in LIBRARY[name].variants):
        return None
    return f"the library has no {name} kernel in {language}, which {target} needs"
