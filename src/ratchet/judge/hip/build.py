"""Compile a HIP source for the emulator: its kernels' assembly, and a library of its host code."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from ratchet.base.errors import KernelError
from ratchet.base.process.child import Child, program
from ratchet.base.process.time_limits import Clock
from ratchet.judge.sandbox.isolation import make_sandbox
from ratchet.judge.sandbox.worker_modules import PROFILE_WORKER
from ratchet.judge.static_profile.inspection import (
    MAX_ANSWER_BYTES,
    MEMORY_BYTES,
    error_words,
    hip_interface,
)
from ratchet.kernels.kernel import Kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class HipBuild:
    """A compiled HIP source."""

    assembly: str
    """Of all kernels, for one target."""
    host: str
    """The shared library of the host code, in base64."""


def build_hip(kernel: Kernel, target: str, clock: Clock) -> HipBuild:
    """Compile in a sandbox, since a source may be made to fool or break its compiler.

    Raises:
        KernelError: the source does not compile, or there is no compiler.
        ChildFailure: the compiler's process died or took too long.
    """
    sandbox = make_sandbox(
        PROFILE_WORKER,
        threads=len(os.sched_getaffinity(0)),
        memory_bytes=MEMORY_BYTES,
        time_limit_s=clock.left_s,
        with_torch=True,
    )
    message = {
        "do": "build_hip",
        "kernel": kernel.as_json(),
        "target": target,
        "interface": hip_interface(),
    }
    with contextlib.ExitStack() as stack:
        stack.callback(sandbox.clean)
        child = Child(
            program(sandbox.command, sandbox.environment, kept=sandbox.kept),
            max_bytes=MAX_ANSWER_BYTES,
        )
        stack.callback(child.close)
        reply = child.ask(message, timeout_s=clock.left_s)
    if "error" in reply:
        raise KernelError(error_words(reply["error"]))
    assembly, host = reply.get("assembly"), reply.get("host")
    if not isinstance(assembly, str) or not isinstance(host, str):
        raise KernelError("the compiler's process answered nonsense")
    return HipBuild(assembly=assembly, host=host)
