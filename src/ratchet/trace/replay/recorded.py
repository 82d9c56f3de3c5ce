"""A recorded call, as it goes to the process that replays it."""

from __future__ import annotations

from msgspec import Struct

from ratchet.base.json_value import Json


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
