"""The machines that judge: a protocol, and this machine as the smallest fleet."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from ratchet.base import VERSION, Json
from ratchet.base.devices.probe import Device, Software, probe, short_hash, software
from ratchet.base.errors import KernelError, RatchetError
from ratchet.base.process.channel import Message
from ratchet.base.serialise import document_of
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.problem import Problem
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Screening, Verdict


class Fleet(Protocol):
    """Machines of one kind, each of which judges one candidate at a time."""

    @property
    def width(self) -> int:
        """Return how many candidates are judged at once."""

    @property
    def versions(self) -> Software:
        """Return the software on every machine."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for each machine that does not take part, with the reason."""

    def device(self, name: str) -> Device:
        """Return what `auto`, `cpu`, `cuda` or `cuda:N` names on every machine.

        Raises DeviceError: there is no such device.
        """

    def screen(
        self,
        kernels: Sequence[Kernel],
        problem: Problem,
        terms: Terms,
        *,
        best: Kernel | None = None,
    ) -> Sequence[Screening]:
        """Return a quick estimate of each kernel, in their order; see `KernelJudge.screen`."""

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

    def close(self) -> None:
        """End what the fleet runs."""


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
        return lent(probe(name), self._threads)

    def begin(self, language: Language) -> None:
        """Start what a kernel in `language` needs; see `KernelJudge.begin`."""
        self._judge.begin(language)

    def describe(self, request: Message, limit_s: float) -> Message:
        """Run a problem's file beside the judge; see `problem_file.Describe`."""
        return self._judge.describe(request, limit_s)

    def screen(
        self,
        kernels: Sequence[Kernel],
        problem: Problem,
        terms: Terms,
        *,
        best: Kernel | None = None,
    ) -> Sequence[Screening]:
        """Screen here; see `KernelJudge.screen`."""
        return self._judge.screen(
            problem, kernels, best=best, time_limit_s=terms.time_limit_s, device=terms.device
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
            yield kernel, self._judge.judge(kernel, problem, then=after, **terms.for_trial())

    def close(self) -> None:
        """End the judge's processes."""
        self._judge.close()


def lent(device: Device, threads: int | None) -> Device:
    """Return the device that is judged on: a machine that lends fewer cores is another one."""
    if device.kind != "cpu" or threads is None or threads >= device.threads:
        return device
    return replace(device, threads=threads, cores=min(device.cores, threads))


# The messages between a run and the machines of a fleet: kernels' sources and verdicts as data.


class SeatFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a fleet, as its machine describes it."""

    host: str
    cpu: Device
    gpu: Device | None
    software: Software
    ratchet: str
    revision: str  # The judge's; see `judge.revision`

    @property
    def kind(self) -> str:
        """Return a hash that is equal on machines whose times may be compared."""
        gpu = "" if self.gpu is None else self.gpu.fingerprint
        return short_hash(
            {"cpu": self.cpu.fingerprint, "gpu": gpu, "software": self.software.fingerprint}
        )

    @property
    def name(self) -> str:
        """Return the device's name for people."""
        return self.cpu.model if self.gpu is None else self.gpu.model


class FleetOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to give a kernel a verdict, or to screen several."""

    screened: bool
    problem: Problem
    problem_hash: str
    kernels: tuple[Kernel, ...]
    terms: Terms
    best: Kernel | None = None  # The kernel to be timed beside those that are screened


class SeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an order, with who gave it."""

    facts: SeatFacts
    screenings: tuple[Screening, ...] = ()
    verdict: dict[str, Json] | None = None  # A `Verdict`'s JSON
    error: str = ""  # A mistake in the order, or a fault of the machine; there is no answer then


def pack(message: FleetOrder | SeatFacts | SeatReply) -> bytes:
    """Return a message's bytes; NaN and infinities survive."""
    return msgspec.msgpack.encode(message)


# The part of a fleet that runs on its machines: a judge of their own, in their own sandbox.
#
# Ray calls `describe` and `obey` by name in a process of the machine, which it keeps for the next
# order of the same run. The ledger is not known here: only the run writes it.

_KEPT: dict[tuple[int, str], LocalFleet] = {}
"""This process's judge, by its threads and by the GPUs that Ray lets it see."""


def describe(threads: int, with_gpu: bool) -> bytes:
    """Return the `SeatFacts` of this machine, for a seat with so many threads."""
    return pack(_facts(threads, with_gpu))


def obey(data: bytes, threads: int, with_gpu: bool) -> bytes:
    """Return the `SeatReply` to an order."""
    facts = _facts(threads, with_gpu)
    order = msgspec.msgpack.decode(data, type=FleetOrder)
    try:
        if order.problem.hash != order.problem_hash:
            raise KernelError(
                f"{facts.host} holds another version of the reference of {order.problem.name!r}: "
                "install the same code on every machine"
            )
        return pack(_answered(order, facts, threads))
    except RatchetError as error:
        return pack(SeatReply(facts=facts, error=str(error)))


def _answered(order: FleetOrder, facts: SeatFacts, threads: int) -> SeatReply:
    here = _here(threads)
    if order.screened:
        found = here.screen(order.kernels, order.problem, order.terms, best=order.best)
        return SeatReply(facts=facts, screenings=tuple(found))
    ((_, verdict),) = here.judge(order.kernels, order.problem, order.terms)
    seat = {"host": facts.host, "device": facts.cpu.fingerprint, "kind": facts.kind}
    if facts.gpu is not None:
        seat["gpu"] = facts.gpu.fingerprint
    environment = {**verdict.environment, "seat": seat}
    named = msgspec.structs.replace(verdict, environment=environment)
    return SeatReply(facts=facts, verdict=document_of(named))


def _here(threads: int) -> LocalFleet:
    """Return the judge that this process keeps; another one if Ray moved it to another GPU."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    wanted = (threads, "|".join(os.environ.get(name, "") for name in names))
    for key in [one for one in _KEPT if one != wanted]:
        _KEPT.pop(key).close()
    if wanted not in _KEPT:
        _KEPT[wanted] = LocalFleet(threads=threads)
    return _KEPT[wanted]


def _facts(threads: int, with_gpu: bool) -> SeatFacts:
    return SeatFacts(
        host=platform.node(),
        cpu=lent(probe("cpu"), threads),
        gpu=replace(probe("cuda"), index=0) if with_gpu else None,
        software=software(),
        ratchet=VERSION,
        revision=revision(),
    )
