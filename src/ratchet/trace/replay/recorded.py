"""A recorded call, as it goes to the process that replays it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ratchet.base.json_value import Json

Outcome = Literal["timed", "not rebuilt", "failed"]


class ReplayAbout(Struct, frozen=True, kw_only=True):
    """The process that replays, in its own words: its first line."""

    device: str
    torch: str
    threads: int


class ReplayAnswer(Struct, frozen=True, kw_only=True):
    """The answer to one call; times only if it was timed."""

    outcome: Outcome
    why: str = ""
    time_ns: int | None = None
    shortest_ns: int | None = None


class Recorded(Struct, frozen=True, kw_only=True):
    """One call as recorded; inputs are listed by position."""

    op: str
    dims: tuple[Json, ...]
    """Sizes; for a list of tensors, a list of sizes; empty for other inputs."""
    types: tuple[str, ...]
    """As the profiler writes them: `float`, `c10::BFloat16`, `Scalar`, `ScalarList`, ..."""
    strides: tuple[Json, ...] | None
    """None if the recording has none: PyTorch writes them since 2.1."""
    values: tuple[str, ...] | None
    """Values of inputs that are not tensors, as text; None if the recording has none."""
