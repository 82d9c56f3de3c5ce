"""GPUs that are not here: what the judge asks of the package that compiles for and emulates them.

A package registers one module in the entry-point group `ratchet.targets`, which has the names of
`Targets`. Ratchet's own is `ratchet.amd.targets`. It is imported when a verdict needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from typing import Protocol, cast

from ratchet.base.errors import JudgeError
from ratchet.base.process import Clock
from ratchet.judge.integrity.census import CaseCensus
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.shared_memory import PackedFiles
from ratchet.judge.verdict import Decided, EmulatedCase, Evidence

Build = Callable[[object], PackedFiles]
"""Compiles what a candidate orders, outside of its reach. Raises KernelError, for the candidate."""
GROUP = "ratchet.targets"


class References(Protocol):
    """Compiled references of problems, kept between verdicts."""

    def compared(
        self, cases: Sequence[EmulatedCase], problem: Problem, clock: Clock
    ) -> list[EmulatedCase]:
        """Return the cases with the reference's bound beside the kernel's."""


class Targets(Protocol):
    """A module that judges kernels for GPUs that are not here; see `ratchet.amd.targets`."""

    DECIDING: tuple[str, ...]
    """Patterns of the files that decide an emulated verdict (`ratchet.judge.revision`)."""
    INTERPRETER: str  # The words for a run in Triton's interpreter
    RIGHT: str  # The reason of a verdict on a kernel that was right there

    def toolchain(self, target: str, /) -> str: ...
    def make_ready(self, kernel: Kernel, target: str, /) -> None: ...
    def interpreted(self, kernel: Kernel, /) -> Kernel: ...
    def emulated(self, kernel: Kernel, target: str, clock: Clock, /) -> Kernel: ...
    def builder_for(self, kernel: Kernel, target: str, clock: Clock, /) -> Build | None: ...
    def sealed_machine(self, target: str, /) -> AbstractContextManager[int]: ...
    def runs(self, where: str, /) -> AbstractContextManager[None]: ...
    def without_blame(self, decided: Decided, where: str, /) -> Decided: ...
    def estimates(
        self, problem: Problem, target: str, censuses: Sequence[CaseCensus], /
    ) -> list[EmulatedCase]: ...
    def right_on(
        self, target: str, cases: Sequence[EmulatedCase], source: str, evidence: list[Evidence], /
    ) -> Decided: ...
    def references(self) -> References: ...
    def said(self, cases: Sequence[EmulatedCase], /) -> list[Evidence]: ...
    def profile_in_verdict(
        self, kernel: Kernel, problem: Problem, targets: Sequence[str], clock: Clock, /
    ) -> dict[str, object]: ...
    def ported(self, kernel: Kernel, /) -> Kernel: ...


@functools.cache
def targets() -> Targets:
    """Return the registered module. Raises JudgeError if none is installed."""
    for one in entry_points(group=GROUP):
        return cast(Targets, one.load())
    raise JudgeError(f"no package serves {GROUP!r}: reinstall torch-ratchet")


def small_cases(problem: Problem) -> Problem:
    """Return the problem at tier `ci` if it has such cases: these runs are a thousand times slower.

    A problem without them is kept whole.
    """
    has_small = any(case.tier == "ci" and not case.hidden for case in problem.cases)
    return problem.at("ci") if has_small else problem
