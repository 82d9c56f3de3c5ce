"""The sandboxed process that compiles for GPUs that are not here, and its validated answers.

A candidate may write the answers.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated

import msgspec

from ratchet.base.errors import JudgeError, KernelError
from ratchet.base.process import Clock
from ratchet.base.process.channel import Message
from ratchet.base.process.child import Child, ChildFailure, error_words, program
from ratchet.base.serialise import Count
from ratchet.judge.kernels.kernel import with_remedy
from ratchet.judge.kernels.languages.cpp import HEADERS
from ratchet.judge.sandbox.isolation import Sandbox, make_sandbox

PROFILE_WORKER = "ratchet.amd.compile.worker"
MAX_KERNELS, MAX_LAUNCHES = 64, 4000


class CompiledKernel(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(max_length=1000)]
    num_warps: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    num_stages: int | None = None
    shared_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
    signature: dict[str, str] = {}
    constants: dict[str, bool | int | float | str | None] = {}
    texts: dict[str, str] = {}
    mca: dict[str, str | Count] = {}  # the answer of `run_mca`


class TensorArgument(msgspec.Struct, frozen=True, kw_only=True):
    bytes: Count
    place: tuple[int, list[int]]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    kernel: str
    grid: Annotated[list[int], msgspec.Meta(min_length=3, max_length=3)]
    arguments: list[TensorArgument | bool | int | float | None]
    tuning: bool = False

    @property
    def programs(self) -> int:
        x, y, z = (max(1, size) for size in self.grid)
        return x * y * z

    @property
    def tensor_bytes(self) -> int:
        """Bytes of its tensor arguments, each counted once."""
        tensors = [one for one in self.arguments if isinstance(one, TensorArgument)]
        return sum({(one.place[0], *one.place[1]): one.bytes for one in tensors}.values())


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about one target."""

    kernels: Annotated[dict[str, CompiledKernel], msgspec.Meta(max_length=MAX_KERNELS)]
    launches: Annotated[list[Launch], msgspec.Meta(max_length=MAX_LAUNCHES)]
    skipped_configs: int = 0
    error: dict[str, object] | None = None


def read_profile(reply: Message) -> Profile:
    """Return the worker's answer; raises JudgeError if it is invalid."""
    try:
        profile = msgspec.convert(reply, Profile)
    except msgspec.ValidationError as error:
        raise JudgeError(f"the profile's process answered nonsense: {error}") from error
    unknown = [one.kernel for one in profile.launches if one.kernel not in profile.kernels]
    if unknown:
        raise JudgeError(f"the profile's process launched an unknown kernel {unknown[0]!r:.80}")
    return profile


MEMORY_BYTES = 64 << 30
"""Address space, mostly untouched: LLVM and torch reserve much more than they use."""
MAX_ANSWER_BYTES = 64 << 20
LEAST_TIME_S = 0.5


class ProfileProcess:
    """The process of one kernel, started anew after it died: a compiler may abort on one target."""

    def __init__(
        self, clock: Clock, headers: Path | None = None, *, worker: str = PROFILE_WORKER
    ) -> None:
        """`headers` is a folder of precompiled headers that its compiler may read."""
        self._worker = worker
        self._clock = clock
        self._headers = headers
        self._child: Child | None = None
        self._sandbox: Sandbox | None = None

    def ask(self, message: Message, limit_s: float = math.inf) -> Message:
        """Return the worker's answer; raises ChildFailure, JudgeError or KernelError."""
        if self._clock.left_s < LEAST_TIME_S:
            raise JudgeError("no time was left to compile for this target")
        try:
            reply = self._started().ask(message, limit_s=min(limit_s, self._clock.left_s))
        except ChildFailure:
            self.close()
            raise
        if "error" in reply and "kernels" not in reply:
            raise KernelError(entry_error(reply["error"]))
        return reply

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
        if self._sandbox is not None:
            self._sandbox.clean()
        self._child = self._sandbox = None

    def _started(self) -> Child:
        if self._child is None:
            self._sandbox = make_sandbox(
                self._worker,
                threads=len(os.sched_getaffinity(0)),
                memory_bytes=MEMORY_BYTES,
                limit_s=self._clock.left_s,
                headers=self._headers,
                cross_compiles=True,
            )
            self._child = Child(
                program(self._sandbox.command, self._sandbox.environment, kept=self._sandbox.kept),
                max_bytes=MAX_ANSWER_BYTES,
            )
        return self._child


def entry_error(told: object) -> str:
    """Return the error that a worker reports, in one line; it blames the entry for any but ours."""
    is_ours = isinstance(told, dict) and told.get("known") is True
    return error_words(told) if is_ours else with_remedy(f"the entry raised {error_words(told)}")


def hip_interface() -> str:
    """Return the header that a HIP source may include: `ratchet_abi.h`."""
    return (HEADERS / "ratchet_abi.h").read_text(encoding="utf-8")
