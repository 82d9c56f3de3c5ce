"""The answers of the profile's worker, validated because a candidate may write them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ratchet.base.errors import JudgeError

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
    mca: dict[str, Any] = Field(default_factory=dict)


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
    error: dict[str, Any] | None = None


def read_profile(reply: dict[str, Any]) -> Profile:
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
