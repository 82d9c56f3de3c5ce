"""The messages between a run and the machines of a fleet: kernels' sources and verdicts as data."""

from __future__ import annotations

import msgspec

from ratchet.base import Json
from ratchet.base.devices.probe import Device, Software, short_hash
from ratchet.judge.court.terms import Terms
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.verdict import Screening


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
        return self.terms.time_limit_s


Order = ScreenOrder | JudgeOrder


class SeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an order, with who gave it."""

    facts: SeatFacts
    screenings: tuple[Screening, ...] = ()
    verdict: dict[str, Json] | None = None
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
