"""The sandboxed process that compiles for GPUs that are not here, and its validated answers.

A candidate may write the answers.
"""

from __future__ import annotations

import os
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ratchet.base.errors import JudgeError, KernelError
from ratchet.base.json_value import Json
from ratchet.base.process.channel import Message
from ratchet.base.process.child import Child, ChildFailure, program
from ratchet.base.process.time_limits import Clock
from ratchet.judge.sandbox.isolation import Sandbox, make_sandbox
from ratchet.judge.sandbox.worker_modules import PROFILE_WORKER

MAX_KERNELS, MAX_LAUNCHES = 64, 4000


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class CompiledKernel(_Answer):
    """One kernel, compiled for one target."""

    name: str = Field(max_length=1000)
    num_warps: int | None = Field(default=None, ge=1, le=64)
    num_stages: int | None = None
    num_ctas: int | None = None
    shared_bytes: int = Field(default=0, ge=0, le=1 << 30)
    signature: dict[str, str] = Field(default_factory=dict)
    constants: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    texts: dict[str, str] = Field(default_factory=dict)
    mca: dict[str, Json] = Field(default_factory=dict)


class TensorArgument(_Answer):
    """A tensor argument of a launch."""

    bytes: int = Field(ge=0, le=1 << 50)
    place: tuple[int, list[int]] = Field(strict=False)


class Launch(_Answer):
    """One recorded launch."""

    kernel: str
    grid: list[int] = Field(min_length=3, max_length=3)
    arguments: list[TensorArgument | bool | int | float | None]
    tuning: bool = False

    @property
    def programs(self) -> int:
        """Workgroups of the launch."""
        x, y, z = (max(1, size) for size in self.grid)
        return x * y * z

    @property
    def tensor_bytes(self) -> int:
        """Bytes of its tensor arguments, each counted once."""
        tensors = [one for one in self.arguments if isinstance(one, TensorArgument)]
        return sum({(one.place[0], *one.place[1]): one.bytes for one in tensors}.values())


class Profile(_Answer):
    """The answer about one target."""

    kernels: dict[str, CompiledKernel] = Field(max_length=MAX_KERNELS)
    launches: list[Launch] = Field(max_length=MAX_LAUNCHES)
    skipped_configs: int = 0
    error: dict[str, Json] | None = None


def read_profile(reply: dict[str, Json]) -> Profile:
    """Return the worker's answer; raises JudgeError if it is invalid."""
    try:
        profile = Profile.model_validate(reply)
    except ValidationError as error:
        first = error.errors()[0]
        raise JudgeError(f"the profile's process answered nonsense: {first['msg']}") from error
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
