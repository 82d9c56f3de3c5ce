"""Load kernels into a process: only those that this machine's ledger lists as proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import RecipeError
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp
from ratchet.kernels.library import LIBRARY, activate


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledKernel:
    """A proven library kernel, by its place and its hash."""

    library: str
    entry: str
    hash: str
    isa: str

    def as_json(self) -> dict[str, str]:
        return {"library": self.library, "entry": self.entry, "hash": self.hash, "isa": self.isa}


def find_kernel(installed: InstalledKernel) -> Kernel:
    """Return the library's kernel with this hash; raise RecipeError if this version has none."""
    library = LIBRARY.get(installed.library)
    if library is not None:
        for kernel in library.kernels(installed.isa):
            if kernel.hash == installed.hash:
                return kernel
    raise RecipeError(
        f"kernel {installed.library}:{installed.entry} with hash {installed.hash[:12]} is not in "
        "this version's library: run `ratchet optimize` again to make a recipe for this version"
    )


def activate_proven(kernels: Sequence[dict[str, str]]) -> None:
    """Load kernels that the caller has found proven in the ledger into this process."""
    for entry in kernels:
        kernel = find_kernel(InstalledKernel(**entry))
        path: Path = cpp.compile_kernel(kernel)
        activate(kernel, path)
