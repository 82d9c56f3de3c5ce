"""The sandboxed process that compiles for GPUs that are not here."""

from __future__ import annotations

import os
from importlib import resources

from ratchet.base.errors import JudgeError, KernelError
from ratchet.base.process.child import Child, ChildFailure, program
from ratchet.base.process.time_limits import Clock
from ratchet.judge.sandbox.isolation import Sandbox, make_sandbox
from ratchet.judge.sandbox.worker_modules import PROFILE_WORKER
from ratchet.judge.workers.serving import Message

MEMORY_BYTES = 64 << 30
"""Address space, mostly untouched: LLVM and torch reserve much more than they use."""
MAX_ANSWER_BYTES = 64 << 20
LEAST_TIME_S = 0.5


class ProfileProcess:
    """The process of one kernel, started anew after it died: a compiler may abort on one target."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._child: Child | None = None
        self._sandbox: Sandbox | None = None

    def ask(self, message: Message) -> Message:
        """Return the worker's answer; raises ChildFailure, JudgeError or KernelError."""
        if self._clock.left_s < LEAST_TIME_S:
            raise JudgeError("no time was left to compile for this target")
        try:
            reply = self._started().ask(message, timeout_s=self._clock.left_s)
        except ChildFailure:
            self.close()
            raise
        if "error" in reply and "kernels" not in reply:
            raise KernelError(error_words(reply["error"]))
        return reply

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
        if self._sandbox is not None:
            self._sandbox.clean()
        self._child = self._sandbox = None

    def _started(self) -> Child:
        if self._child is None:
            self._sandbox = make_sandbox(
                PROFILE_WORKER,
                threads=len(os.sched_getaffinity(0)),
                memory_bytes=MEMORY_BYTES,
                limit_s=self._clock.left_s,
                with_torch=True,
            )
            self._child = Child(
                program(self._sandbox.command, self._sandbox.environment, kept=self._sandbox.kept),
                max_bytes=MAX_ANSWER_BYTES,
            )
        return self._child


def error_words(told: object) -> str:
    """Return the error that a worker reports, in one line."""
    error = told if isinstance(told, dict) else {}
    message = " ".join(str(error.get("message", "")).split())[:500]
    if error.get("known") is True:
        return message
    return f"the entry raised {error.get('kind', '')!s:.60}: {message}"


def hip_interface() -> str:
    """Return the header that a HIP source may include: `ratchet_abi.h`."""
    header = resources.files("ratchet.kernels.languages").joinpath("ratchet_abi.h")
    return header.read_text(encoding="utf-8")
