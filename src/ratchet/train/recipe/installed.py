"""Load kernels into a process: only those that this machine's ledger lists as proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec

from ratchet.base.errors import KernelError, RecipeError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.kernels.registry import DEVICES, build_kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites.shipped import WorkloadShapes
from ratchet.train.graph.regions import check_region_problem, region_name

KEY = r"^[0-9a-f]{64}$"


@runtime_checkable
class AnyKernel(Protocol):
    """A kernel that a step runs: the library's, or one for a region."""

    @property
    def hash(self) -> str: ...
    @property
    def library(self) -> str: ...
    def find(self) -> Kernel: ...
    def problems(self) -> list[Problem]: ...
    def activate(self, kernel: Kernel, path: Path) -> None: ...


class InstalledKernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel, by its place in the library and the hash of its content."""

    library: str
    entry: str
    hash: str
    isa: str

    def find(self) -> Kernel:
        """Return the library's kernel with this hash; a RecipeError if this version has none."""
        library = LIBRARY.get(self.library)
        if library is not None:
            for kernel in library.kernels(self.isa):
                if kernel.hash == self.hash:
                    return kernel
        raise RecipeError(
            f"kernel {self.library}:{self.entry} with hash {self.hash[:12]} is not in "
            "this version's library: run `ratchet optimize` again to make a recipe for this version"
        )

    def problems(self) -> list[Problem]:
        """Return the library's problems for it, on which it can be proven again."""
        found = LIBRARY[self.library].problems(WorkloadShapes())
        return [problem for problem in found if problem.name == self.entry]

    def activate(self, kernel: Kernel, path: Path) -> None:
        """Load it into this process."""
        registry.activate(kernel, path)


class RegionKernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel for a region of a workload's graphs, with its source and the region's problem."""

    region: Annotated[str, msgspec.Meta(pattern=KEY)]
    """The region's key."""
    hash: str
    """The kernel's, of its content."""
    kernel: dict[str, object]
    """`Kernel.as_json`."""
    problem: dict[str, object]
    """`Problem.as_json`."""

    @property
    def library(self) -> str:
        """The name that stands for it among a config's kernels."""
        return region_name(self.region)

    def find(self) -> Kernel:
        """Return the kernel; a RecipeError if it is not the one that was proven for the region."""
        try:
            kernel = Kernel.from_json(self.kernel)
            self.problems()
        except KernelError as error:
            raise RecipeError(f"{self._title} is damaged: {error}") from error
        if kernel.hash != self.hash or kernel.language not in DEVICES:
            raise RecipeError(f"{self._title} is damaged: its source has another hash")
        return kernel

    def problems(self) -> list[Problem]:
        """Return the region's problem; a KernelError if it is not this region's."""
        problem = Problem.from_json(self.problem)
        check_region_problem(problem, self.region)
        return [problem]

    def activate(self, kernel: Kernel, path: Path) -> None:
        """Load it into this process, for the region's calls."""
        registry.activate(kernel, path, name=self.library)

    @property
    def _title(self) -> str:
        return f"the kernel for region {self.region[:8]}"


def as_kernel(_: object, document: Mapping[str, Any]) -> AnyKernel:
    """Read one kernel: the `dec_hook` of each document that holds some."""
    if "region" in document:
        return msgspec.convert(document, RegionKernel)
    return msgspec.convert(document, InstalledKernel)


def activate_proven(kernels: Sequence[Mapping[str, object]]) -> None:
    """Load kernels that the caller has found proven in the ledger into this process."""
    for document in kernels:
        installed = as_kernel(AnyKernel, document)
        kernel = installed.find()
        installed.activate(kernel, build_kernel(kernel))
