"""The reference worker, as the judge drives it: trusted, and kept between verdicts."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Mapping

from ratchet.base.errors import DeviceLost, JudgeError
from ratchet.base.process import until_the_end_s
from ratchet.base.process.channel import Message, close_descriptors, inherited
from ratchet.base.process.child import Child, error_words, program
from ratchet.judge.problems.problem_file import KEEPER_GRACE_S, longest_wait_s, read_answer
from ratchet.judge.sandbox.isolation import TORCH_FIRST, arm_environment
from ratchet.judge.sandbox.view import fixed_layout
from ratchet.judge.sandbox.zygote import IMPORT_S, Forks
from ratchet.judge.steps.arms import import_path
from ratchet.judge.workers.memory.driver_memory import MORE_MEMORY, DriverRefusal

REFERENCE_WORKER = "ratchet.judge.workers.reference.worker"


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

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        """True if it can still be asked."""
        return not self._child.closed

    def ask(self, *, timeout_s: float, **message: object) -> Message:
        """Ask for something; raises ReferenceFault if it reports an error."""
        return self.ask_for_memory(timeout_s=timeout_s, **message)[0]

    def ask_for_memory(self, *, timeout_s: float, **message: object) -> tuple[Message, list[int]]:
        """Ask; return also the answer's descriptors, which belong to the caller."""
        self._child.send(message)
        reply, handed = self._child.receive(str(message["do"]), timeout_s=timeout_s)
        if "error" in reply:
            close_descriptors(handed)
        raise_fault(reply)
        return reply, handed

    def zygote(self) -> Forks:
        """Return the zygote from which rivals and the keepers of problem files are forked."""
        _, handed = self.ask_for_memory(timeout_s=IMPORT_S, do="zygote")
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
                in_time = _ends_within(watch, min(longest_wait_s(limit_s), until_the_end_s()))
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
        self._child.close()


def _ends_within(watch: int, limit_s: float) -> bool:
    """Wait for a process, by its descriptor; return True if it has ended."""
    poller = select.poll()
    poller.register(watch, select.POLLIN)
    return bool(poller.poll(1e3 * max(0.0, limit_s)))


def _end_keeper(watch: int) -> None:
    """Make a keeper end its processes, then end the keeper itself, if they still run."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watch, sent)
        if _ends_within(watch, KEEPER_GRACE_S):
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
