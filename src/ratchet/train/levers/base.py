"""A lever: one change in how the step runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import msgspec

from ratchet.train.workloads.config import OwnPrecision, StepConfig
from ratchet.train.workloads.parallel import ParallelLayout, ParallelTuning

BF16_LEAST = 0.5
"""Lowest ratio of bf16 to fp32 product rates at which bf16's halved traffic may still pay off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """The facts that a lever may use to decide if it applies."""

    device_kind: str  # `cpu` or `cuda`
    vendor: str
    target: str  # The code that the device runs, such as `avx2`, `amx`, `gfx942` or `sm_90`
    written: StepConfig
    layout: ParallelLayout | None = None
    """The ranks that the step runs on, of which nothing below is known; None for one process."""
    cores: int = 1
    optimizer_is_adamw: bool = False
    has_attention: bool = False
    trainable_bytes: int = 0
    peak_memory_bytes: int = 0
    memory_bytes: int = 0
    rocm: bool = False  # torch is built for ROCm
    why_not_fused: str = ""  # Why no optimizer of the step has a fused update; empty if one has
    own_step: bool = False  # The workload's own `train_step` runs the backward pass and the update
    why_not_in_backward: str = ""
    """Why the update must wait for all gradients; empty if it need not."""
    bf16_is_slow: str | None = None
    """Why bf16 saves no time here (`why_bf16_is_slow`); None if it may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lever:
    """One change of a setting, with its conditions, its expected effect and its source."""

    name: str
    summary: str
    expected: str
    source: str
    field: str  # The field of `StepConfig` that it sets, or of `ParallelTuning` with `ranks`
    value: object
    """The field's value with this lever pulled, or a function of the situation that returns it."""
    changes_arithmetic: bool = False
    applies: Callable[[Situation], str | None] = lambda situation: None
    """Return None if the lever applies, otherwise the reason why not, in one line."""
    default: bool = False
    """It is part of the first bundle. Others are tried only alone, because they may cost time."""
    ranks: bool = False  # It sets how ranks communicate, so a step of one process has no use for it
    also: tuple[tuple[str, object], ...] = ()  # Further fields that it sets, with their values
    acts_on: tuple[str, ...] = ()
    """The categories of step time that it can shorten, as the profile names them; `step` means all.

    Empty if no profile can tell; such levers are tried last.
    """

    def tune(self, tuning: ParallelTuning) -> ParallelTuning:
        """Return how ranks communicate with this lever pulled, which is one of `ranks`."""
        return msgspec.structs.replace(tuning, **{self.field: self.value})

    def set(self, config: StepConfig, situation: Situation) -> StepConfig:
        value = self.value(situation) if callable(self.value) else self.value
        return msgspec.structs.replace(config, **{self.field: value}, **dict(self.also))

    def unset(self, config: StepConfig, situation: Situation) -> StepConfig:
        """Return the config with this lever as the user wrote it."""
        names = (self.field, *dict(self.also))
        return msgspec.structs.replace(
            config, **{name: getattr(situation.written, name) for name in names}
        )


def why_no_bf16(situation: Situation) -> str | None:
    """Return why a step in bf16 is not tried; None if it may pay."""
    precision = situation.written.precision
    if precision in get_args(OwnPrecision):
        return f"the model's weights are {precision}"
    return situation.bf16_is_slow


def why_bf16_is_slow(gemm_flops_per_s: Mapping[str, float]) -> str | None:
    """Explain from measured GEMM rates (FLOP/s) why bf16 cannot save time; None if it may.

    A CPU without bf16 instructions multiplies bf16 at a small fraction of its fp32 rate.
    """
    fp32, bf16 = gemm_flops_per_s.get("fp32"), gemm_flops_per_s.get("bf16")
    if fp32 is None or bf16 is None or bf16 >= BF16_LEAST * fp32:
        return None
    return (
        f"matrix products reach {bf16 / 1e9:.3g} GFLOP/s in bf16 here, "
        f"against {fp32 / 1e9:.3g} in fp32"
    )


def only_cpu(situation: Situation) -> str | None:
    """Return None for a CPU, otherwise the reason why not."""
    return None if situation.device_kind == "cpu" else "it applies only to CPUs"


def only_gpu(situation: Situation) -> str | None:
    """Return None for a GPU, otherwise the reason why not."""
    return None if situation.device_kind == "cuda" else "it applies only to GPUs"


def only_rocm(situation: Situation) -> str | None:
    """Return None for an AMD GPU with a ROCm build of torch, otherwise the reason why not."""
    if situation.device_kind != "cuda" or situation.vendor != "AMD":
        return "it applies only to AMD GPUs under ROCm"
    return None if situation.rocm else "this torch is not built for ROCm"
