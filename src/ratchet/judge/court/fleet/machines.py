"""The machines that judge: a protocol, and this machine as the smallest fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Protocol

from ratchet.base.devices.probe import Device, Software, probe, software
from ratchet.base.process.channel import Message
from ratchet.judge.court.terms import Terms
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Screening, Verdict


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
        device: str = "auto",
    ) -> Sequence[Screening]:
        """Return a quick estimate of each kernel, in their order; see `KernelJudge.screen`."""
        ...

    def judge(
        self,
        kernels: Sequence[Kernel],
        problem: Problem,
        terms: Terms,
        *,
        then: Kernel | None = None,
    ) -> Iterator[tuple[Kernel, Verdict]]:
        """Give each kernel a verdict; each comes as soon as it is given.

        `then` is the kernel to be judged after them; its compiler may start meanwhile.
        """
        ...

    def close(self) -> None:
        """End what the fleet runs."""
        ...


class LocalFleet:
    """This machine alone, or `threads` of its cores."""

    width = 1
    notes = ()

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = threads
        self._judge = KernelJudge(threads=threads)

    @property
    def versions(self) -> Software:
        return software()

    def device(self, name: str) -> Device:
        """Return a device of this machine."""
        return lent(probe(name), self._threads)

    def begin(self, language: Language) -> None:
        """Start what a kernel in `language` needs; see `KernelJudge.begin`."""
        self._judge.begin(language)

    def describe(self, request: Message, limit_s: float) -> Message:
        """Run a problem's file beside the judge; see `problem_file.Describe`."""
        return self._judge.describe(request, limit_s)

    def screen(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        *,
        best: Kernel | None,
        time_limit_s: float,
        device: str = "auto",
    ) -> Sequence[Screening]:
        """Screen here; see `KernelJudge.screen`."""
        return self._judge.screen(
            problem, kernels, best=best, time_limit_s=time_limit_s, device=device
        )

    def judge(
        self,
        kernels: Sequence[Kernel],
        problem: Problem,
        terms: Terms,
        *,
        then: Kernel | None = None,
    ) -> Iterator[tuple[Kernel, Verdict]]:
        """Judge here, one kernel after another."""
        for kernel, after in zip(kernels, [*kernels[1:], then], strict=False):
            yield kernel, self._judge.judge(kernel, problem, then=after, **asdict(terms))

    def close(self) -> None:
        """End the judge's processes."""
        self._judge.close()


def lent(device: Device, threads: int | None) -> Device:
    """Return the device that is judged on: a machine that lends fewer cores is another one."""
    if device.kind != "cpu" or threads is None or threads >= device.threads:
        return device
    return replace(device, threads=threads, cores=min(device.cores, threads))
