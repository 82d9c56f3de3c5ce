"""The reference as a candidate's rival: a process of its own, driven as the candidate's is.

Chance at the start (where memory lies, how threads meet) can make one process of the same code much
slower than the next. So on cores the reference and its twin are started anew in each launch, as the
candidate is, and an interval over launches covers starts of both. On a GPU a start takes a second
and the calls run elsewhere, so they stay.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ratchet.base.errors import JudgeError
from ratchet.base.measure import Timing
from ratchet.base.process import (
    Clock,
    OutOfTime,
    WorkLimit,
    families,
    until_the_end_s,
    within_the_end,
)
from ratchet.base.process.channel import (
    Channel,
    ChannelTimeout,
    Message,
    close_descriptors,
    open_pair,
)
from ratchet.base.process.child import SEND_TIMEOUT_S
from ratchet.judge.integrity.outputs import OutputSpots
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.zygote import START_S, Fork, Forks
from ratchet.judge.trial.processes.reference import ReferenceProcess, raise_fault
from ratchet.judge.workers.memory.layout import BatchLayout

OutputMode = Literal["mapped", "kept", "copied"]
"""The fate of the outputs of the reference's calls. kept: they stay until the next batch.
mapped: they stay, and shared memory is mapped too, as a compiled candidate writes there. copied:
they are copied to that memory, inside the clock."""

COMPILED = "torch.compile of the reference"
"""The name of its arm."""


class RivalProcess:
    """One process of the reference. A failure in it is a fault of the judge."""

    def __init__(self, connection: socket.socket, fork: Fork, clock: Clock) -> None:
        self.pid = fork.pid
        self._fork = fork
        self._watch = os.pidfd_open(self.pid)
        self._channel = Channel(connection, watch=self._watch)
        self._clock = clock
        self._stopped: Sequence[int] = ()
        self.device_s: float | None = None
        """The last batch's seconds by the GPU's own clock."""

    def begin_load(self, message: Mapping[str, object]) -> None:
        """Let it load the reference while others start."""
        self._send(message)

    def await_load(self) -> None:
        """Wait until it has loaded the reference, and stop it; raises ReferenceFault."""
        self._await("load")
        self.pause()

    def prepare(self, layout: BatchLayout, outputs: OutputMode) -> None:
        """Announce the places of a batch's tensors; their memory comes with `go`."""
        self._send({"do": "prepare", "layout": layout.as_json(), "outputs": outputs})
        self._await("prepare")

    def _send(self, message: Mapping[str, object]) -> None:
        with self._named(message["do"]):
            self._channel.send(message, timeout_s=SEND_TIMEOUT_S)

    def _await(self, what: str) -> None:
        """Wait for an answer; raises ReferenceFault if it is an error."""
        with self._named(what):
            reply, extra = self._receive()
        close_descriptors(extra)
        _raise_fault(reply)

    def go(self, memories: Sequence[int], spots: OutputSpots | None = None) -> Timing:
        """Reveal a batch and wait for its calls; the process is stopped when this returns.

        On a GPU the clock stops after the `spots` are read, as for a candidate.
        """
        with self._named("go"):
            began = time.perf_counter()
            self._channel.send({"do": "go"}, memories, timeout_s=SEND_TIMEOUT_S)
            reply, extra = self._receive()
            if spots is not None:
                spots.read()
            wall_time_s = time.perf_counter() - began
        self.pause()
        close_descriptors(extra)
        _raise_fault(reply)
        self.device_s = reply["device_s"]
        return Timing(wall_time_s=wall_time_s, cpu_time_s=float(reply["cpu_time_s"]))

    def pause(self) -> None:
        """Stop it and what it started."""
        stopped = families.stop(self.pid, enclosed=True)
        if stopped is None:
            raise JudgeError("the reference's process cannot be stopped")
        self._stopped = stopped

    def resume(self) -> None:
        families.resume(self._stopped)
        self._stopped = ()

    def begin_close(self) -> None:
        """Let it free its memory while others do; `close` comes next."""
        families.kill(self._stopped)

    def close(self) -> None:
        """End it and what it started."""
        families.end(self.pid, enclosed=True)
        self._fork.reap()
        close_descriptors([self._watch])
        self._channel.close()

    def _receive(self) -> tuple[Message, list[int]]:
        limit = WorkLimit(self._clock.reference_limit_s, self._members)
        try:
            return self._channel.receive(left_s=within_the_end(limit.left_s))
        except ChannelTimeout as error:
            if until_the_end_s() > 0:
                raise
            raise OutOfTime("the time ran out while the reference was at work") from error

    def _members(self) -> list[int]:
        return list(families.family(self.pid, enclosed=True))

    @contextlib.contextmanager
    def _named(self, what: object) -> Iterator[None]:
        try:
            yield
        except JudgeError as error:
            raise JudgeError(f"the reference's process failed at '{what}': {error}") from error


def _raise_fault(reply: Mapping[str, object]) -> None:
    if "no_device" in reply:
        raise JudgeError(f"the reference cannot use the GPU: {reply['no_device']}")
    raise_fault(reply)


def _forked(zygote: Forks, **message: object) -> tuple[socket.socket, Fork]:
    """Fork a process; return our end of the channel to it, and the fork."""
    ours, theirs = open_pair()
    try:
        return ours, zygote.fork([theirs.fileno()], **message)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()


class ProblemZygote:
    """A fork of the reference's zygote that has imported what a problem's reference needs."""

    def __init__(self, zygote: Forks, problem: Message) -> None:
        """Start it; `able` is True if rivals can be forked from it."""
        ours, self._fork = _forked(zygote, problem=problem)
        self._watch = os.pidfd_open(self._fork.pid)
        channel = Channel(ours, watch=self._watch)
        self.forks = Forks(channel)
        self.able = False
        with contextlib.suppress(JudgeError):
            self.able = channel.receive(timeout_s=START_S)[0]["able"] is True

    def close(self) -> None:
        """End it; its forks have ended."""
        families.end(self._fork.pid, enclosed=True)
        self._fork.reap()
        close_descriptors([self._watch])
        self.forks.close()


class Rivals:
    """Starts the reference's processes for one verdict, and ends them."""

    def __init__(
        self,
        problem: Problem,
        reference: ReferenceProcess,
        clock: Clock,
        accelerator: Accelerator | None = None,
    ) -> None:
        self._device = accelerator.as_json() if accelerator is not None else None
        self._problem = problem.as_json()
        self._reference = reference
        self._clock = clock
        self._zygote: Forks | None = None
        self._own: ProblemZygote | None = None
        self._running: list[RivalProcess] = []

    def start(self, *, threads: int, compiled: bool = False, limit_s: float = 0.0) -> RivalProcess:
        """Start one that has loaded the reference and is stopped. Raises ReferenceFault.

        With `compiled` it has loaded torch.compile of the reference, and has compiled it for every
        timed case within `limit_s`.
        """
        process = self.begin(threads=threads, compiled=compiled, limit_s=limit_s)
        process.await_load()
        return process

    def begin(self, *, threads: int, compiled: bool = False, limit_s: float = 0.0) -> RivalProcess:
        """Start one that loads the reference while others do; `await_load` comes next."""
        process = RivalProcess(*_forked(self._forks()), self._clock)
        self._running.append(process)
        process.begin_load(
            {
                "do": "load",
                "problem": self._problem,
                "threads": threads,
                "device": self._device,
                "compiled": compiled,
                "limit_s": limit_s,
            }
        )
        return process

    def end(self, process: RivalProcess) -> None:
        self._running.remove(process)
        process.close()

    def close(self) -> None:
        while self._running:
            self.end(self._running[-1])
        if self._own is not None:
            self._own.close()
            self._own = None
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _forks(self) -> Forks:
        if self._zygote is None:
            self._zygote = self._reference.zygote()
            self._own = ProblemZygote(self._zygote, self._problem)
        assert self._own is not None
        return self._own.forks if self._own.able else self._zygote
