"""The messages between a run and the machines of a fleet: kernels' sources and verdicts as data."""

from __future__ import annotations

from typing import Any

import msgspec

from ratchet.court.terms import Terms
from ratchet.devices.fingerprint import Software, short_hash
from ratchet.devices.probe import Device
from ratchet.judge.verdict import Screening
from ratchet.kernels.kernel import Kernel
from ratchet.problems.problem import Problem


class SeatFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a fleet, as its machine describes it."""

    host: str
    cpu: Device
    gpu: Device | None
    software: Software
    ratchet: str
    revision: str
    """The judge's; see `judge.revision`."""

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


class ScreenOrder(msgspec.Struct, frozen=True, kw_only=True, tag="screen"):
    """An order to screen some kernels."""

    problem: Problem
    problem_hash: str
    kernels: tuple[Kernel, ...]
    best: Kernel | None
    time_limit_s: float
    device: str


class JudgeOrder(msgspec.Struct, frozen=True, kw_only=True, tag="judge"):
    """An order to give one kernel a verdict."""

    problem: Problem
    problem_hash: str
    kernel: Kernel
    terms: Terms

    @property
    def time_limit_s(self) -> float:
        """Return the verdict's time limit."""
        return self.terms.time_limit_s


Order = ScreenOrder | JudgeOrder


class SeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an order, with who gave it."""

    facts: SeatFacts
    screenings: tuple[Screening, ...] = ()
    verdict: dict[str, Any] | None = None
    """A `Verdict`'s JSON."""
    error: str = ""
    """A mistake in the order, or a fault of the machine; there is no answer then."""


def pack(message: Order | SeatFacts | SeatReply) -> bytes:
    """Return a message's bytes; NaN and infinities survive."""
    return msgspec.msgpack.encode(message)


def read_order(data: bytes) -> Order:
    """Return the order that `pack` wrote."""
    order: Order = msgspec.msgpack.decode(data, type=Order)
    return order


def read_facts(data: bytes) -> SeatFacts:
    """Return the facts that `pack` wrote."""
    return msgspec.msgpack.decode(data, type=SeatFacts)


def read_reply(data: bytes) -> SeatReply:
    """Return the reply that `pack` wrote."""
    return msgspec.msgpack.decode(data, type=SeatReply)
