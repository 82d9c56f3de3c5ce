"""The shipped kernels. Importing this package imports no torch; an op's module does.

`LIBRARY` names every kernel. Importing a module below registers its ops under `torch.ops.ratchet`;
`register_ops` imports them all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library.shapes import WorkloadShapes

if TYPE_CHECKING:
    from ratchet.problems.problem import Problem

__all__ = ["LIBRARY", "LibraryKernel", "WorkloadShapes", "activate", "best_isa", "register_ops"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryKernel:
    """One kernel of the library: its description, its variants and its problems."""

    name: str
    summary: str
    source_of_idea: str
    kernels: Callable[[str], tuple[Kernel, ...]]
    """isa -> one kernel per entry (forward, backward); each answers the problem with its entry's
    name."""
    problems: Callable[[WorkloadShapes], tuple[Problem, ...]]
    """The problems, at a workload's shapes; `problem.name` is the entry of the kernel."""


MODULES: Final[dict[str, str]] = {
    "attention": "attention",
    "linear_cross_entropy": "linear_cross_entropy",
    "adamw": "adamw",
    "gated_activation": "gated_activation",
    "rms_norm": "rms_norm",
    "layer_norm": "layer_norm",
    "rope": "rope",
    "linear": "linear",
}
"""Name in LIBRARY -> module of this package; every module defines one `LIBRARY_KERNEL`."""


class _LazyLibrary(Mapping[str, LibraryKernel]):
    """A mapping that imports a kernel's module (and torch) at the kernel's first use."""

    def __getitem__(self, name: str) -> LibraryKernel:
        module = importlib.import_module(f"{__name__}.{MODULES[name]}")
        found = module.LIBRARY_KERNEL
        assert isinstance(found, LibraryKernel), name
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


LIBRARY: Final[Mapping[str, LibraryKernel]] = _LazyLibrary()
"""Every shipped kernel by name, in the order in which to try them."""


def activate(kernel: Kernel, path: Path, *, name: str = "") -> None:
    """Make the op of `kernel.entry` run the compiled library at `path`, in this process.

    A kernel of a region serves the op's calls under the region's `name` instead.
    """
    from ratchet.kernels.library import registry

    registry.activate(kernel, path, name=name)


def register_ops() -> None:
    """Register every op of the library under `torch.ops.ratchet`."""
    for module in MODULES.values():
        importlib.import_module(f"{__name__}.{module}")


def best_isa() -> str:
    """Return the best variant that this CPU can run."""
    from ratchet.devices.probe import best_isa as probed

    return probed()
