"""Load kernels into a process: only those that this machine's ledger lists as proven."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ratchet.errors import RecipeError
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp
from ratchet.kernels.library import LIBRARY, activate


class InstalledKernel(BaseModel):
    """A kernel, by its place in the library and the hash of its content."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: str
    entry: str
    hash: str
    isa: str


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
