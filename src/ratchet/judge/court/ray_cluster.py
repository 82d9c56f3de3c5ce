"""Orders spread over the machines of a Ray cluster; Ray is imported here alone."""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ratchet.base import Json
from ratchet.base.errors import DeviceError, JudgeError
from ratchet.judge.court import machines as on_the_seat
from ratchet.judge.court.machines import FleetOrder, SeatFacts, pack

# A seat has one order at a time, and a lost one goes to another seat.

GRACE_S: Final = 180.0
"""A seat may take this long beyond an order's time limit: to open the problem, to import torch."""
MOST_LOSSES: Final = 3
"""Seats that one order may lose: an order that ends its machines must not end all of them."""
LOOK_S: Final = 2.0  # Time between two looks at the cluster's machines
PATIENCE_S: Final = 60.0  # Wait for a machine to come when none is left
DESCRIBED_S: Final = 120.0  # Time limit of a machine's first answer: Ratchet is imported there

CONTINUED: Final = (
    "run the command again, `ratchet write` with --resume; the ledger kept the answers"
)


class SeatLost(Exception):
    """The process or the machine of an order is gone; says nothing about the order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """One device of one machine of the cluster."""

    node: str  # Ray's identity of the machine, new with each start
    index: int  # Among the seats of the machine
    host: str
    threads: int
    gpus: int  # 1 for a GPU's seat, 0 for that of a machine's cores


@dataclass(slots=True)
class _SeatTask:
    seat: Seat
    order: int  # Its place among the orders; -1 for a description
    until: float


@dataclass(slots=True)
class Spread:
    """The seats of a cluster that `fits` lets in, and the orders that run on them."""

    cluster: RayCluster
    fits: Callable[[SeatFacts], str] = lambda facts: ""
    """Returns why a seat is left out; empty if it takes part."""
    clock: Callable[[], float] = time.monotonic
    facts: dict[Seat, SeatFacts] = field(default_factory=dict)  # The seats that take part
    left_out: dict[Seat, str] = field(default_factory=dict)
    _running: dict[object, _SeatTask] = field(default_factory=dict)
    _looked: float | None = None

    def meet(self) -> None:
        """Ask every seat who it is, and wait for the answers."""
        self._look()
        while self._running:
            for _ in self._step([], deque(), Counter(), {}):
                pass

    def run(self, orders: Sequence[FleetOrder]) -> Iterator[tuple[int, bytes | None]]:
        """Give the answer to each order, with its place; None if too many seats were lost with it.

        Raises JudgeError: no machine is left, or one cannot do what it is asked.
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
        self, orders: Sequence[FleetOrder], waiting: deque[int], avoid: dict[int, set[str]]
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
            until = self.clock() + orders[index].terms.time_limit_s + GRACE_S
            self._running[handle] = _SeatTask(seat=seat, order=index, until=until)

    def _step(
        self,
        orders: Sequence[FleetOrder],
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


CONNECTED_S: Final = 10.0  # Time limit of the first connection to a `ray://` address
RAYLET, MARKED = "(raylet", 40  # A raylet's mark, and the characters that it stands in
READ_S: Final = 30.0  # Time limit of fetching an answer that is there
PART: Final = 0.01
"""Part of a GPU that describing it takes; Ray hides a GPU from work that asks for none."""


class _Aside(io.TextIOBase):
    """Stderr, which shows of a raylet's message its first line: a dead one tells all its state."""

    def write(self, text: str) -> int:
        if RAYLET in text[:MARKED]:
            first, _, rest = text.partition("\n")
            text = f"{first.partition(' Last ')[0]}\n" if rest else text
        sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        sys.stderr.flush()


class RayCluster:
    """The machines of a Ray cluster that have the wanted devices; a handle is a Ray reference.

    Until it is closed, what this process prints goes to stderr: Ray tells of a dead machine on
    stdout, whatever it is asked to log, and stdout is for the result.
    """

    def __init__(self, address: str, *, device: str) -> None:
        self._ray = _connected(address)
        self._exceptions = self._ray.exceptions
        self._aside = ExitStack()
        self._aside.enter_context(redirect_stdout(_Aside()))
        try:
            self._on_gpus = self._choose(device)
        except BaseException:
            self.close()
            raise
        self._describe = self._ray.remote(on_the_seat.describe)
        self._obey = self._ray.remote(on_the_seat.obey)

    def _choose(self, device: str) -> bool:
        """Return whether GPUs are judged on: where there are some, unless cores are asked for."""
        if device.startswith("cuda:"):
            raise DeviceError(f"a fleet picks the GPU itself: use --device cuda, not {device!r}")
        has_gpus = any(node["Resources"].get("GPU", 0) >= 1 for node in self._nodes())
        if device == "cuda" and not has_gpus:
            raise DeviceError("no machine of the cluster offers a GPU to Ray: use --device cpu")
        return device != "cpu" and has_gpus

    def _nodes(self) -> list[dict[str, Json]]:
        try:
            return [node for node in self._ray.nodes() if node["Alive"]]
        except (ConnectionError, self._exceptions.RayError) as error:
            raise _gone(error) from error

    def seats(self) -> Sequence[Seat]:
        """Return a seat for each GPU, or one for all of a machine's cores."""
        found = []
        for node in self._nodes():
            cores = int(node["Resources"].get("CPU", 0))
            count = int(node["Resources"].get("GPU", 0)) if self._on_gpus else 1
            for index in range(count if cores >= count else 0):
                found.append(
                    Seat(
                        node=node["NodeID"],
                        index=index,
                        host=node["NodeManagerHostname"],
                        threads=cores // count,
                        gpus=int(self._on_gpus),
                    )
                )
        return found

    def describe(self, seat: Seat) -> object:
        """Ask a seat for its `SeatFacts`; it needs no core, so a busy machine answers too."""
        part = PART if seat.gpus else 0
        task = self._describe.options(**self._there(seat), num_cpus=0, num_gpus=part)
        return task.remote(seat.threads, bool(seat.gpus))

    def start(self, seat: Seat, order: bytes) -> object:
        """Give a seat an order: it claims the device, so no other run judges there meanwhile."""
        task = self._obey.options(**self._there(seat), num_cpus=seat.threads, num_gpus=seat.gpus)
        return task.remote(order, seat.threads, bool(seat.gpus))

    def _there(self, seat: Seat) -> dict[str, object]:
        """Return the options that bind a task to a machine; `Spread` tries again elsewhere."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node_id=seat.node, soft=False)
        return {"scheduling_strategy": where, "max_retries": 0}

    def wait(self, handles: Sequence[object], limit_s: float) -> Sequence[object]:
        """Return the handles that are answered, at the latest after a time."""
        if not handles:
            time.sleep(limit_s)
            return []
        done, _ = self._ray.wait(list(handles), num_returns=1, timeout=limit_s)
        return list(done)

    def result(self, handle: object) -> bytes:
        """Return an answer.

        Raises SeatLost (the process or the machine died); JudgeError (the machine cannot do it).
        """
        try:
            found: bytes = self._ray.get(handle, timeout=READ_S)
            return found
        except self._exceptions.RayTaskError as error:
            said = str(error.cause or error).strip().splitlines()
            raise JudgeError(said[-1] if said else repr(error)) from error
        except self._exceptions.RayError as error:
            raise SeatLost(_words(error)) from error
        except ConnectionError as error:
            raise _gone(error) from error

    def cancel(self, handle: object) -> None:
        """End the process that works on an answer."""
        self._ray.cancel(handle, force=True)

    def close(self) -> None:
        """Leave the cluster; Ray ends this run's processes on all machines."""
        self._ray.shutdown()
        self._aside.close()


def _connected(address: str) -> ModuleType:
    """Return ray, connected to the cluster at an address; `ray` is the cluster at hand."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise JudgeError(
            "--fleet ray needs Ray: pip install 'torch-ratchet[fleet]' on every machine"
        ) from error
    at_hand = _at_hand() if address == "ray" else address
    if at_hand:
        _check_reachable(at_hand)
    try:
        ray.init(
            address="auto" if address == "ray" else address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            namespace="ratchet",
        )
    except (ConnectionError, TimeoutError, ValueError) as error:
        where = "at hand" if address == "ray" else f"at {address}"
        raise JudgeError(
            f"no Ray cluster {where} ({_words(error)}): start one with ray start --head, or "
            "give its address, --fleet ray://HOST:10001"
        ) from error
    except (RuntimeError, ImportError, ray.exceptions.RayError) as error:
        words = _words(error)
        if "ersion mismatch" in words:
            raise JudgeError(
                f"the cluster runs another version of Ray or Python: {words}; install the same "
                "ones on every machine"
            ) from error
        raise JudgeError(f"the Ray cluster at {address} cannot be used: {words}") from error
    found: ModuleType = ray
    return found


def _at_hand() -> str:
    """Return the address of the cluster at hand, if RAY_ADDRESS or the last `ray start` tells it.

    Otherwise Ray looks for it among this machine's processes.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named != "auto":
        return named
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    return noted.read_text().strip() if noted.is_file() else ""


def _check_reachable(address: str) -> None:
    """Refuse an address that nobody listens at; Ray would try for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        where = (parts.hostname or "", parts.port or 10001)
        socket.create_connection(where, CONNECTED_S).close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise JudgeError(
            f"no Ray cluster at {address} ({why}): start its head with "
            "ray start --head --ray-client-server-port=10001"
        ) from error


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


def _gone(error: BaseException) -> JudgeError:
    return JudgeError(f"the connection to the Ray cluster is lost ({_words(error)}): {CONTINUED}")
