"""Compile a HIP source for the emulator: its kernels' assembly, and a library of its host code."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import msgspec

from ratchet.base.errors import KernelError
from ratchet.base.process.time_limits import Clock
from ratchet.judge.static_profile.process import ProfileProcess, hip_interface
from ratchet.kernels.kernel import Kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class HipBuild:
    """A compiled HIP source."""

    assembly: str
    """The assembly of all kernels, for one target."""
    host: str
    """The shared library of the host code, in base64."""


def build_hip(kernel: Kernel, target: str, clock: Clock) -> HipBuild:
    """Compile in a sandbox: a source may be made to fool or break its compiler.

    Raises:
        KernelError: the source does not compile, or there is no compiler.
        ChildFailure: the compiler's process died or took too long.
    """
    message = {
        "do": "build_hip",
        "kernel": kernel.as_json(),
        "target": target,
        "interface": hip_interface(),
    }
    with contextlib.closing(ProfileProcess(clock)) as process:
        reply = process.ask(message)
    try:
        return msgspec.convert(reply, HipBuild)
    except msgspec.ValidationError as error:
        raise KernelError("the compiler's process answered nonsense") from error
