"""Orders spread over seats: a seat has one order at a time, and a lost one goes to another seat."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from ratchet.base.errors import JudgeError
from ratchet.judge.court.fleet.messages import Order, SeatFacts, pack

GRACE_S: Final = 180.0
"""A seat may take this long beyond an order's time limit: to open the problem, to import torch."""
MOST_LOSSES: Final = 3
"""Seats that one order may lose: an order that ends its machines must not end all of them."""
LOOK_S: Final = 2.0
"""Time between two looks at the cluster's machines."""
PATIENCE_S: Final = 60.0
"""Wait for a machine to come when none is left."""
DESCRIBED_S: Final = 120.0
"""Time limit of a machine's first answer: Ratchet is imported there."""

CONTINUED: Final = (
    "run the command again, `ratchet write` with --resume; the ledger kept the answers"
)


class SeatLost(Exception):
    """The process or the machine of an order is gone; says nothing about the order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """One device of one machine of the cluster."""

    node: str
    """Ray's identity of the machine, new with each start."""
    index: int
    """Among the seats of the machine."""
    host: str
    threads: int
    gpus: int
    """1 for a GPU's seat, 0 for that of a machine's cores."""


class Cluster(Protocol):
    """A cluster, as far as a fleet needs one. A handle is whatever the cluster makes it."""

    def seats(self) -> Sequence[Seat]:
        """Return the devices of the machines that are there now."""
        ...

    def describe(self, seat: Seat) -> object:
        """Ask a seat for its `SeatFacts`; return the handle of the answer."""
        ...

    def start(self, seat: Seat, order: bytes) -> object:
        """Give a seat an order; return the handle of the answer."""
        ...

    def wait(self, handles: Sequence[object], timeout_s: float) -> Sequence[object]:
        """Return the handles that are answered, at the latest after a time."""
        ...

    def result(self, handle: object) -> bytes:
        """Return an answer.

        Raises:
            SeatLost: the process or the machine died.
            JudgeError: the machine cannot do it.
        """
        ...

    def cancel(self, handle: object) -> None:
        """End what works on an answer that nobody waits for any more."""
        ...

    def close(self) -> None:
        """Leave the cluster; what still runs for this run ends."""
        ...


@dataclass(slots=True)
class _SeatTask:
    seat: Seat
    order: int
    """Its place among the orders; -1 for a description."""
    until: float


@dataclass(slots=True)
class Spread:
    """The seats of a cluster that `fits` lets in, and the orders that run on them."""

    cluster: Cluster
    fits: Callable[[SeatFacts], str] = lambda facts: ""
    """Returns why a seat is left out; empty if it takes part."""
    clock: Callable[[], float] = time.monotonic
    facts: dict[Seat, SeatFacts] = field(default_factory=dict)
    """The seats that take part."""
    left_out: dict[Seat, str] = field(default_factory=dict)
    _running: dict[object, _SeatTask] = field(default_factory=dict)
    _looked: float | None = None

    def meet(self) -> None:
        """Ask every seat who it is, and wait for the answers."""
        self._look()
        while self._running:
            for _ in self._step([], deque(), Counter(), {}):
                pass

    def run(self, orders: Sequence[Order]) -> Iterator[tuple[int, bytes | None]]:
        """Give the answer to each order, with its place; None if too many seats were lost with it.

        Raises:
            JudgeError: no machine is left, or one cannot do what it is asked.
        """
        waiting, losses = deque(range(len(orders))), Counter[int]()
        avoid: dict[int, set[str]] = {}
        missing_since: float | None = None
        try:
            while waiting or any(one.order >= 0 for one in self._running.values()):
                self._look()
                self._seat(orders, waiting, avoid)
                if self._running:
                    missing_since = None
                    yield from self._step(orders, waiting, losses, avoid)
                    continue
                now = self.clock()
                missing_since = now if missing_since is None else missing_since
                if now - missing_since > PATIENCE_S:
                    raise JudgeError(
                        "no machine of the cluster is left to judge on: start one "
                        f"(ray start --address=HEAD:6379), and {CONTINUED}"
                    )
                self.cluster.wait([], LOOK_S)
        finally:
            for handle in [one for one, task in self._running.items() if task.order >= 0]:
                self._running.pop(handle)
                self.cluster.cancel(handle)

    def _look(self) -> None:
        """Ask seats that are new who they are, and forget those whose machine is gone."""
        now = self.clock()
        if self._looked is not None and now - self._looked < LOOK_S:
            return
        self._looked = now
        there = set(self.cluster.seats())
        self.facts = {seat: facts for seat, facts in self.facts.items() if seat in there}
        asked = {one.seat for one in self._running.values()}
        for seat in there - asked - set(self.facts) - set(self.left_out):
            handle = self.cluster.describe(seat)
            self._running[handle] = _SeatTask(seat=seat, order=-1, until=now + DESCRIBED_S)

    def _seat(
        self, orders: Sequence[Order], waiting: deque[int], avoid: dict[int, set[str]]
    ) -> None:
        """Give free seats the orders that wait; one that lost a machine goes to another first."""
        busy = {one.seat for one in self._running.values()}
        for seat in [one for one in self.facts if one not in busy]:
            others = {one.node for one in self.facts}
            index = next(
                (
                    one
                    for one in waiting
                    if seat.node not in avoid.get(one, ()) or not others - avoid.get(one, set())
                ),
                None,
            )
            if index is None:
                continue
            waiting.remove(index)
            handle = self.cluster.start(seat, pack(orders[index]))
            until = self.clock() + orders[index].time_limit_s + GRACE_S
            self._running[handle] = _SeatTask(seat=seat, order=index, until=until)

    def _step(
        self,
        orders: Sequence[Order],
        waiting: deque[int],
        losses: Counter[int],
        avoid: dict[int, set[str]],
    ) -> Iterator[tuple[int, bytes | None]]:
        """Wait for the next answers, and take them."""
        for handle in self._ended():
            task = self._running.pop(handle)
            if task.order < 0:
                self._met(handle, task.seat)
                continue
            try:
                answer = self.cluster.result(handle)
            except SeatLost:
                self.facts.pop(task.seat, None)  # it is asked again who it is, if it is there
                losses[task.order] += 1
                if losses[task.order] < MOST_LOSSES:
                    avoid.setdefault(task.order, set()).add(task.seat.node)
                    waiting.appendleft(task.order)
                    continue
                yield task.order, None
            else:
                yield task.order, answer

    def _ended(self) -> list[object]:
        """Return the handles that are answered, and those that are overdue, which are cancelled."""
        done = list(self.cluster.wait(list(self._running), LOOK_S))
        now = self.clock()
        late = [one for one, task in self._running.items() if now > task.until and one not in done]
        for handle in late:
            self.cluster.cancel(handle)
        return done + late

    def _met(self, handle: object, seat: Seat) -> None:
        """Take a seat's description."""
        try:
            facts = msgspec.msgpack.decode(self.cluster.result(handle), type=SeatFacts)
        except SeatLost:
            return  # asked again, if it is still there
        except (JudgeError, msgspec.DecodeError) as error:
            self.left_out[seat] = f"{seat.host} cannot judge: {error}"
            return
        why = self.fits(facts)
        if why:
            self.left_out[seat] = why
        else:
            self.facts[seat] = facts
