"""The part of a fleet that runs on its machines: a judge of their own, in their own sandbox.

Ray calls `describe` and `obey` by name in a process of the machine, which it keeps for the next
order of the same run. The ledger is not known here: only the run writes it.
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace

import msgspec

from ratchet.base import VERSION
from ratchet.base.devices.probe import probe, software
from ratchet.base.errors import KernelError, RatchetError
from ratchet.base.serialise import document_of
from ratchet.judge.court.fleet.machines import LocalFleet, lent
from ratchet.judge.court.fleet.messages import (
    JudgeOrder,
    Order,
    SeatFacts,
    SeatReply,
    pack,
    read_order,
)
from ratchet.judge.revision import revision

_KEPT: dict[tuple[int, str], LocalFleet] = {}
"""This process's judge, by its threads and by the GPUs that Ray lets it see."""


def describe(threads: int, with_gpu: bool) -> bytes:
    """Return the `SeatFacts` of this machine, for a seat with so many threads."""
    return pack(_facts(threads, with_gpu))


def obey(data: bytes, threads: int, with_gpu: bool) -> bytes:
    """Return the `SeatReply` to an order."""
    facts = _facts(threads, with_gpu)
    order = read_order(data)
    try:
        if order.problem.hash != order.problem_hash:
            raise KernelError(
                f"{facts.host} holds another version of the reference of {order.problem.name!r}: "
                "install the same code on every machine"
            )
        return pack(_answered(order, facts, threads))
    except RatchetError as error:
        return pack(SeatReply(facts=facts, error=str(error)))


def _answered(order: Order, facts: SeatFacts, threads: int) -> SeatReply:
    here = _here(threads)
    if isinstance(order, JudgeOrder):
        ((_, verdict),) = here.judge([order.kernel], order.problem, order.terms)
        seat = {"host": facts.host, "device": facts.cpu.fingerprint, "kind": facts.kind}
        if facts.gpu is not None:
            seat["gpu"] = facts.gpu.fingerprint
        environment = {**verdict.environment, "seat": seat}
        named = msgspec.structs.replace(verdict, environment=environment)
        return SeatReply(facts=facts, verdict=document_of(named))
    found = here.screen(
        order.problem,
        order.kernels,
        best=order.best,
        time_limit_s=order.time_limit_s,
        device=order.device,
    )
    return SeatReply(facts=facts, screenings=tuple(found))


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
