"""The reference worker, as the judge drives it: trusted, and kept between verdicts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ratchet.base.errors import DeviceLost, JudgeError, OutOfTime
from ratchet.base.measure import Timing
from ratchet.base.process import (
    Clock,
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
    inherited,
    open_pair,
)
from ratchet.base.process.child import SEND_TIMEOUT_S, Child, error_words, program
from ratchet.judge.integrity.outputs import OutputSpots
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import KEEPER_GRACE_S, longest_wait_s, read_answer
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.isolation import TORCH_FIRST, arm_environment
from ratchet.judge.sandbox.shared_memory import BatchLayout
from ratchet.judge.sandbox.view import fixed_layout
from ratchet.judge.sandbox.zygote import IMPORT_S, START_S, Forks
from ratchet.judge.steps.arms import import_path
from ratchet.judge.workers.driver_memory import MORE_MEMORY, DriverRefusal

REFERENCE_WORKER = "ratchet.judge.workers.reference"


class ReferenceProcess:
    """The trusted worker. A failure in it is a fault of the judge: a JudgeError."""

    def __init__(self, *, threads: int) -> None:
        self.threads = threads
        path = import_path()
        own = {"RATCHET_IMPORT_PATH": path, **arm_environment(threads)}
        self._child = Child(
            program(_reference_command, {**os.environ, **own}),
            enclosed=True,
            counts_work=True,
        )
        self._ahead: str | None = None  # What was asked for ahead, until its answer is fetched
        self._fetched: tuple[Message, list[int]] | None = None

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        """True if it can still be asked."""
        return not self._child.closed

    def ask(self, *, limit_s: float, **message: object) -> Message:
        """Ask for something; raises ReferenceFault if it reports an error."""
        return self.ask_for_memory(limit_s=limit_s, **message)[0]

    def ask_for_memory(self, *, limit_s: float, **message: object) -> tuple[Message, list[int]]:
        """Ask; return also the answer's descriptors, which belong to the caller."""
        self._fetch(limit_s)
        self._child.send(message)
        return _without_fault(*self._child.receive(str(message["do"]), limit_s=limit_s))

    def ask_ahead(self, **message: object) -> None:
        """Ask for what is needed next; `take_ahead` returns the answer, which is forgotten else."""
        self.forget_ahead()
        self._child.send(message)
        self._ahead = str(message["do"])

    def take_ahead(self, *, limit_s: float) -> tuple[Message, list[int]]:
        """Return the answer to what was asked ahead, as `ask_for_memory` does."""
        self._fetch(limit_s)
        assert self._fetched is not None
        found, self._fetched = self._fetched, None
        return _without_fault(*found)

    def forget_ahead(self) -> None:
        self._fetch(START_S)
        if self._fetched is not None:
            close_descriptors(self._fetched[1])
            self._fetched = None

    def _fetch(self, limit_s: float) -> None:
        """Wait for the answer to what was asked ahead, so that the next one is another's."""
        what, self._ahead = self._ahead, None
        if what is not None:
            self._fetched = self._child.receive(what, limit_s=limit_s)

    def zygote(self) -> Forks:
        """Return the zygote from which rivals and the keepers of problem files are forked."""
        _, handed = self.ask_for_memory(limit_s=IMPORT_S, do="zygote")
        return Forks(inherited(handed[0]))

    def describe(self, request: Message, limit_s: float) -> Message:
        """Run a problem's file in a fork, which need not import torch; see `problem_file.Describe`.

        Call it before or after a verdict. Raises JudgeError if no fork can be made.
        """
        answer = os.memfd_create("ratchet-problem", os.MFD_CLOEXEC)
        with (
            os.fdopen(answer, "r", encoding="utf-8") as file,
            contextlib.closing(self.zygote()) as zygote,
        ):
            fork = zygote.fork([answer], file=request, limit_s=limit_s)
            watch = os.pidfd_open(fork.pid)
            try:
                in_time = families.is_readable(
                    watch, min(longest_wait_s(limit_s), until_the_end_s())
                )
            finally:
                _end_keeper(watch)
                os.close(watch)
                fork.reap()
            if not in_time:
                return {"fault": f"its file did not end within {limit_s:.3g} s"}
            return read_answer(file, None)

    def pause(self) -> None:
        self._child.hold()

    def resume(self) -> None:
        self._child.resume()

    def close(self) -> None:
        if self._fetched is not None:
            close_descriptors(self._fetched[1])
            self._fetched = None
        self._child.close()


def _without_fault(reply: Message, handed: list[int]) -> tuple[Message, list[int]]:
    """Return a trusted worker's answer; raises what `raise_fault` does."""
    if "error" in reply:
        close_descriptors(handed)
    raise_fault(reply)
    return reply, handed


def _end_keeper(watch: int) -> None:
    """Make a keeper end its processes, then end the keeper itself, if they still run."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watch, sent)
        if families.is_readable(watch, KEEPER_GRACE_S):
            return


class ReferenceFault(JudgeError):
    """The reference raised, or the problem is invalid."""


class DeviceMemoryRefused(JudgeError):
    """The GPU has too little free memory for what a trusted worker was asked for."""


def raise_fault(reply: Mapping[str, object]) -> None:
    """Raise ReferenceFault if a trusted worker's answer is an error.

    If a GPU is the fault, raise DeviceLost, or DeviceMemoryRefused if others hold its memory, or
    the driver's refusal.
    """
    if "no_device" in reply:
        raise JudgeError(f"the reference cannot use the GPU: {reply['no_device']}")
    if "error" not in reply:
        return
    error = reply["error"]
    kind, words = error.get("kind") if isinstance(error, dict) else None, error_words(error)
    if kind == "NoDeviceMemory":
        raise DeviceMemoryRefused(words)
    if kind == "OutOfMemoryError":  # torch's, with a paragraph on its allocator
        first = re.split(r"(?<=iB)\. ", words, maxsplit=1)[0].rstrip(".")
        raise DeviceMemoryRefused(f"{first}; {MORE_MEMORY}")
    if kind == DriverRefusal.__name__:
        raise DriverRefusal(words)
    lost = DeviceLost.told_by(words, "the reference's process")
    if lost is not None:
        raise lost
    raise ReferenceFault(words)


def _reference_command(channel: int) -> list[str]:
    boot = (
        "from ratchet.base.process import families; families.hide_memory(); "
        f"{TORCH_FIRST}from {REFERENCE_WORKER} import main; main()"
    )
    return [*fixed_layout(), sys.executable, "-P", "-c", boot, str(channel), str(os.getpid())]


# The reference as a candidate's rival: a process of its own, driven as the candidate's is.
#
# Chance at the start (where memory lies, how threads meet) can make one process of the same code
# much slower than the next. So on cores the reference and its twin are started anew in each
# launch, as the candidate is, and an interval over launches covers starts of both. On a GPU a
# start takes a second and the calls run elsewhere, so they stay.

OutputMode = Literal["mapped", "kept", "copied"]
"""The fate of the outputs of the reference's calls. kept: they stay until the next batch.
mapped: they stay, and shared memory is mapped too, as a compiled candidate writes there. copied:
they are copied to that memory, inside the clock."""

COMPILED = "torch.compile of the reference"  # The name of its arm


class _Forked:
    """A fork of one of the reference's zygotes, and the channel to it."""

    def __init__(self, zygote: Forks, **message: object) -> None:
        ours, theirs = open_pair()
        try:
            self._fork = zygote.fork([theirs.fileno()], **message)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._fork.pid
        self._watch = os.pidfd_open(self.pid)
        self._channel = Channel(ours, watch=self._watch)

    def close(self) -> None:
        families.end(self.pid, enclosed=True)
        self._fork.reap()
        close_descriptors([self._watch])
        self._channel.close()


OWN_THREADS = 2
"""Threads of a rival that has loaded the reference: its first, and one that sleeps (`settle`)."""


class RivalProcess(_Forked):
    """One process of the reference. A failure in it is a fault of the judge."""

    def __init__(self, zygote: Forks, clock: Clock) -> None:
        super().__init__(zygote)
        self._clock = clock
        self._stopped: Sequence[int] = ()
        self._last: Sequence[int] = ()  # The processes of the last full stop
        self._members: Sequence[int] = ()
        """Its processes, once they were the same at two stops: only these are stopped then."""
        self.device_s: float | None = None  # The last batch's seconds by the GPU's own clock

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
            self._channel.send(message, limit_s=SEND_TIMEOUT_S)

    def _await(self, what: str) -> None:
        """Wait for an answer; raises ReferenceFault if it is an error."""
        with self._named(what):
            reply, extra = self._receive()
        close_descriptors(extra)
        raise_fault(reply)

    def go(self, memories: Sequence[int], spots: OutputSpots | None = None) -> Timing:
        """Reveal a batch and wait for its calls; the process is stopped when this returns.

        On a GPU the clock stops after the `spots` are read, as for a candidate.
        """
        with self._named("go"):
            began = time.perf_counter()
            self._channel.send({"do": "go"}, memories, limit_s=SEND_TIMEOUT_S)
            reply, extra = self._receive()
            if spots is not None:
                spots.read()
            wall_time_s = time.perf_counter() - began
        self.pause()
        close_descriptors(extra)
        raise_fault(reply)
        self.device_s = reply["device_s"]
        return Timing(wall_time_s=wall_time_s, cpu_time_s=float(reply["cpu_time_s"]))

    def pause(self) -> None:
        if self._members and families.halt(self._members):
            self._stopped = self._members
            return
        stopped = families.stop(self.pid, enclosed=True)
        if stopped is None:
            raise JudgeError("the reference's process cannot be stopped")
        self._members = stopped if stopped == self._last else ()
        self._stopped = self._last = stopped

    def resume(self) -> None:
        families.resume(self._stopped)
        self._stopped = ()

    @property
    def works_alone(self) -> bool:
        """True if it has no thread but those that it had before its first call."""
        return len(list(families.thread_ids(self.pid))) <= OWN_THREADS

    def begin_close(self) -> None:
        """Let it free its memory while others start or end; `close` comes next."""
        families.kill(self._stopped)

    def _receive(self) -> tuple[Message, list[int]]:
        limit = WorkLimit(
            self._clock.reference_limit_s, lambda: families.family(self.pid, enclosed=True)
        )
        try:
            return self._channel.receive(left_s=within_the_end(limit.left_s))
        except ChannelTimeout as error:
            if until_the_end_s() > 0:
                raise
            raise OutOfTime("the time ran out while the reference was at work") from error

    @contextlib.contextmanager
    def _named(self, what: object) -> Iterator[None]:
        try:
            yield
        except JudgeError as error:
            raise JudgeError(f"the reference's process failed at '{what}': {error}") from error


class ProblemZygote(_Forked):
    """A fork of the reference's zygote that has imported what a problem's reference needs."""

    def __init__(self, zygote: Forks, problem: Message) -> None:
        """Start it; `able` is True if rivals can be forked from it."""
        super().__init__(zygote, problem=problem)
        self.forks = Forks(self._channel)
        self.able = False
        with contextlib.suppress(JudgeError):
            self.able = self._channel.receive(limit_s=START_S)[0]["able"] is True


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
        self._ending: list[RivalProcess] = []
        self.lasting: dict[str, RivalProcess] = {}
        """Those that last for the whole verdict, by the name of their arm."""

    def start(self, *, threads: int, compiled: bool = False, limit_s: float = 0.0) -> RivalProcess:
        """Start one that has loaded the reference and is stopped. Raises ReferenceFault.

        With `compiled` it has loaded torch.compile of the reference, and has compiled it for every
        timed case within `limit_s`.
        """
        process = self.begin(threads=threads, compiled=compiled, limit_s=limit_s)
        process.await_load()
        return process

    def compile(self, *, limit_s: float) -> str:
        """Have the reference compiled for all launches; return why it was not, or ""."""
        try:
            self.lasting[COMPILED] = self.start(
                threads=self._reference.threads, compiled=True, limit_s=limit_s
            )
        except (ReferenceFault, DeviceMemoryRefused) as error:
            return str(error)
        return ""

    def begin(self, *, threads: int, compiled: bool = False, limit_s: float = 0.0) -> RivalProcess:
        """Start one that loads the reference while others do; `await_load` comes next."""
        process = RivalProcess(self.get_ready(), self._clock)
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

    def end_later(self, process: RivalProcess) -> None:
        """End a stopped process; `end_all_that_end` waits for it, before anything is timed."""
        process.begin_close()
        self._ending.append(process)

    def end_all_that_end(self) -> None:
        while self._ending:
            self.end(self._ending.pop())

    def close(self) -> None:
        self.end_all_that_end()
        while self._running:
            self.end(self._running[-1])
        if self._own is not None:
            self._own.close()
            self._own = None
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def get_ready(self) -> Forks:
        """Return what its processes are forked from, once that has imported what they need."""
        if self._zygote is None:
            self._zygote = self._reference.zygote()
            self._own = ProblemZygote(self._zygote, self._problem)
        assert self._own is not None
        return self._own.forks if self._own.able else self._zygote
