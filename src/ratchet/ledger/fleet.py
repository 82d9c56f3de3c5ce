"""The machines that judge: a protocol, and this machine as the smallest fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ratchet.devices.fingerprint import Software, software
from ratchet.devices.probe import Device, probe
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Screening, Verdict
from ratchet.judge.workers.candidate.architectures import TARGETS
from ratchet.kernels.kernel import Kernel
from ratchet.problems.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The options of a verdict."""

    time_limit_s: float = 60.0
    against_compile: bool = False
    """Time torch.compile of the reference beside it."""
    device: str = "auto"
    """`cpu`, `cuda` or `cuda:N`; by default Triton's kernels take a GPU where there is one."""
    among: int = 1
    """Verdicts that share one chance of a false answer: see `KernelJudge.judge`."""
    target: str | None = None
    """A GPU whose machine code is emulated, such as `gfx942`."""
    profiled: tuple[str, ...] = TARGETS
    """AMD targets of the static profile of a kernel in Triton or HIP."""
    compared: bool = True
    """Estimate the bound of the reference's compiled kernels too, where a `target` is given."""


class Fleet(Protocol):
    """Machines of one kind, each of which judges one candidate at a time."""

    @property
    def width(self) -> int:
        """Return how many candidates are judged at once."""
        ...

    @property
    def versions(self) -> Software:
        """Return the software on every machine."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for each machine that does not take part, with the reason."""
        ...

    def device(self, name: str) -> Device:
        """Return what `auto`, `cpu`, `cuda` or `cuda:N` names on every machine.

        Raises:
            DeviceError: there is no such device.
        """
        ...

    def screen(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        *,
        best: Kernel | None,
        time_limit_s: float,
    ) -> Sequence[Screening]:
        """Return a quick estimate of each kernel, in their order; see `KernelJudge.screen`."""
        ...

    def judge(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms
    ) -> Iterator[tuple[Kernel, Verdict]]:
        """Give each kernel a verdict; each comes as soon as it is given."""
        ...

    def close(self) -> None:
        """End what the fleet runs."""
        ...


class LocalFleet:
    """This machine alone."""

    width = 1
    notes = ()

    def __init__(self, judge: KernelJudge) -> None:
        self.court = judge

    @property
    def versions(self) -> Software:
        """Return this process's software."""
        return software()

    def device(self, name: str) -> Device:
        """Return a device of this machine."""
        return probe(name)

    def screen(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        *,
        best: Kernel | None,
        time_limit_s: float,
    ) -> Sequence[Screening]:
        """Screen here; see `KernelJudge.screen`."""
        return self.court.screen(problem, kernels, best=best, time_limit_s=time_limit_s)

    def judge(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms
    ) -> Iterator[tuple[Kernel, Verdict]]:
        """Judge here, one kernel after another."""
        for kernel in kernels:
            yield kernel, verdict_under(terms, self.court, kernel, problem)

    def close(self) -> None:
        """End the judge's processes."""
        self.court.close()


def verdict_under(
    terms: Terms,
    judge: KernelJudge,
    kernel: Kernel,
    problem: Problem,
    *,
    then: Kernel | None = None,
    spent_s: float = 0.0,
) -> Verdict:
    """Return a judge's verdict under terms; see `KernelJudge.judge`."""
    return judge.judge(
        kernel,
        problem,
        time_limit_s=terms.time_limit_s,
        spent_s=spent_s,
        against_compile=terms.against_compile,
        then=then,
        device=terms.device,
        among=terms.among,
        target=terms.target,
        profiled=terms.profiled,
        compared=terms.compared,
    )
