"""Load a recipe's kernels: only those for which this machine's ledger speaks.

In a recipe that a turn proved here in its step, a library kernel must be right. In any other, and
for a region, it must be proven alone. A kernel that the ledger does not know is judged again in
the sandbox. Any failure there leaves the kernel out and never stops the training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

import msgspec

from ratchet.base.errors import DeviceError, KernelError, RatchetError, RecipeError
from ratchet.train.workloads.config import StepConfig

# Every script that installs a recipe imports this module. Most recipes have no kernels, and the
# ledger proves nearly all that there are: so the library, the ledger and above all the court, with
# its sandbox and its trials, are imported by what needs them.
if TYPE_CHECKING:
    from ratchet.base.ledger import Ledger
    from ratchet.judge.court.court import Court
    from ratchet.judge.kernels.kernel import Kernel
    from ratchet.judge.problems.problem import Problem
    from ratchet.judge.verdict import Verdict

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
        from ratchet.judge.kernels.library import LIBRARY

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
        from ratchet.judge.kernels.library import LIBRARY
        from ratchet.judge.problems.suites.shipped import WorkloadShapes

        found = LIBRARY[self.library].problems(WorkloadShapes())
        return [problem for problem in found if problem.name == self.entry]

    def activate(self, kernel: Kernel, path: Path) -> None:
        """Load it into this process."""
        from ratchet.judge.kernels import registry

        registry.activate(kernel, path)


class RegionKernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel for a region of a workload's graphs, with its source and the region's problem."""

    region: Annotated[str, msgspec.Meta(pattern=KEY)]  # The region's key
    hash: str  # The kernel's, of its content
    kernel: dict[str, object]  # `Kernel.as_json`
    problem: dict[str, object]  # `Problem.as_json`

    @property
    def library(self) -> str:
        """The name that stands for it among a config's kernels."""
        from ratchet.train.graph.regions import region_name

        return region_name(self.region)

    def find(self) -> Kernel:
        """Return the kernel; a RecipeError if it is not the one that was proven for the region."""
        from ratchet.judge.kernels.kernel import Kernel
        from ratchet.judge.kernels.registry import DEVICES

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
        from ratchet.judge.problems.problem import Problem
        from ratchet.train.graph.regions import check_region_problem

        problem = Problem.from_json(self.problem)
        check_region_problem(problem, self.region)
        return [problem]

    def activate(self, kernel: Kernel, path: Path) -> None:
        """Load it into this process, for the region's calls."""
        from ratchet.judge.kernels import registry

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
    if not kernels:
        return
    from ratchet.judge.kernels.registry import build_kernel

    for document in kernels:
        installed = as_kernel(AnyKernel, document)
        kernel = installed.find()
        installed.activate(kernel, build_kernel(kernel))


ADAMW = "adamw"
SHOWN = 24  # Characters of a kernel's name that a message shows: a region's key is long


@dataclass(kw_only=True)
class ReadyKernels:
    """Compiled kernels of a recipe that may be loaded, and those that may not."""

    compiled: list[tuple[AnyKernel, Kernel, Path]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Name in the library -> the reason why torch's own op runs instead."""

    def activate(self) -> None:
        """Load the kernels into this process."""
        for installed, kernel, path in self.compiled:
            installed.activate(kernel, path)

    def why(self) -> str:
        """Return the names and reasons of the kernels left out, in one line."""
        return ", ".join(f"{name[:SHOWN]} ({reason})" for name, reason in self.left_out.items())

    def without_left_out(self, config: StepConfig) -> StepConfig:
        """Return the config with torch's own ops in place of the kernels left out."""
        changes: dict[str, object] = {
            "kernels": tuple(name for name in config.kernels if name not in self.left_out)
        }
        if config.optimizer == "kernel" and ADAMW in self.left_out:
            changes["optimizer"] = "as_written"
        return msgspec.structs.replace(config, **changes)


def ready_kernels(
    installed: Sequence[AnyKernel], ledger_url: str | None, *, recipe: str = ""
) -> ReadyKernels:
    """Find, judge and compile a recipe's kernels; nothing is loaded yet.

    `recipe` is its checksum, by which the ledger knows whether it was proven here. A library kernel
    is all or nothing: if one of its entries may not be loaded, none is.
    """
    ready = ReadyKernels()
    if not installed:
        return ready
    from ratchet.base.ledger import Ledger
    from ratchet.judge.kernels.registry import build_kernel, load_entry

    found: dict[str, list[tuple[AnyKernel, Kernel]]] = {}
    for name in dict.fromkeys(kernel.library for kernel in installed):
        own = [kernel for kernel in installed if kernel.library == name]
        try:
            found[name] = [(kernel, kernel.find()) for kernel in own]
        except RecipeError as error:
            ready.left_out[name] = str(error)
    try:
        with Ledger.open(ledger_url) as ledger:
            reasons = _Doorkeeper.of(ledger, recipe).objections(found)
    except (RatchetError, OSError) as error:
        reasons = dict.fromkeys(found, _line(error))
    ready.left_out |= {name: reason for name, reason in reasons.items() if reason}
    for name in found.keys() - ready.left_out.keys():
        try:
            compiled = [(one, kernel, build_kernel(kernel)) for one, kernel in found[name]]
            for _, kernel, path in compiled:
                load_entry(kernel, path)
            ready.compiled += compiled
        except (RatchetError, OSError) as error:
            ready.left_out[name] = _line(error)
    return ready


@dataclass(frozen=True, kw_only=True, slots=True)
class _Doorkeeper:
    """Says which kernels of one recipe may be loaded here."""

    ledger: Ledger
    is_proven: bool  # True if a turn proved the recipe on this machine

    @classmethod
    def of(cls, ledger: Ledger, recipe: str) -> _Doorkeeper:
        from ratchet.base.devices.probe import probe

        devices = [probe("cpu")]
        with contextlib.suppress(DeviceError):
            devices.append(probe("auto"))
        is_proven = any(ledger.proves_recipe(recipe, ledger.here(one)) for one in devices)
        return cls(ledger=ledger, is_proven=bool(recipe) and is_proven)

    def objections(self, found: Mapping[str, Sequence[tuple[AnyKernel, Kernel]]]) -> dict[str, str]:
        """Return the reason why each library kernel may not be loaded; "" if it may."""
        left = {
            name: [(one, kernel) for one, kernel in kernels if not self._admits(one, kernel)]
            for name, kernels in found.items()
        }
        if not any(left.values()):
            return dict.fromkeys(found, "")
        from ratchet.judge.court.court import Court

        with Court(self.ledger) as court:
            return {name: self._judged(court, kernels) for name, kernels in left.items()}

    def _admits(self, installed: AnyKernel, kernel: Kernel) -> bool:
        from ratchet.base.devices.probe import probe
        from ratchet.judge.revision import revision
        from ratchet.judge.sandbox.accelerator import may_use_gpu

        try:  # a GPU's verdict is not this CPU's; see `Court.fingerprint_for`
            here = self.ledger.here(probe("auto" if may_use_gpu(kernel, "auto") else "cpu"))
        except DeviceError:
            here = self.ledger.here(probe("cpu"))
        if isinstance(installed, InstalledKernel):  # it belongs to its op, whatever the problem
            asked = self.ledger.right if self.is_proven else self.ledger.proven
            return asked(kernel.hash, here, judge=revision())
        if not self.ledger.proven(kernel.hash, here, judge=revision()):
            return False
        verdicts = [
            self.ledger.verdict(kernel.hash, problem.hash, here, judge=revision())
            for problem in installed.problems()
        ]
        return all(one is not None and one["status"] == "proven" for one in verdicts)

    def _judged(self, court: Court, left: Sequence[tuple[AnyKernel, Kernel]]) -> str:
        """Judge kernels that were not admitted: all for correctness before any is timed."""
        from ratchet.judge.terms import Terms

        terms = Terms()
        try:
            asked = [(one, kernel, problem) for one, kernel in left for problem in one.problems()]
            for _, kernel, problem in asked:
                judged = court.judge(kernel, problem.untimed(), terms)
                if judged.verdict.status not in ("correct", "proven"):
                    return _said(kernel, judged.verdict)
            for one, kernel, problem in asked:
                if self._admits(one, kernel):
                    continue
                judged = court.judge(kernel, problem, terms)
                if not self._admits(one, kernel):
                    return _said(kernel, judged.verdict)
        except (RatchetError, OSError) as error:
            return _line(error)
        left = [(one, kernel) for one, kernel in left if not self._admits(one, kernel)]
        return f"{left[0][1].entry}: the library has no problem to judge it on" if left else ""


def _said(kernel: Kernel, verdict: Verdict) -> str:
    if verdict.status == "proven":
        return f"{kernel.entry} is proven here but disproven on another problem"
    return f"{kernel.entry} is {verdict.status} here: {verdict.reason}"


def _line(error: Exception) -> str:
    """Return an error as one line; file errors name the file."""
    if isinstance(error, RatchetError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())
