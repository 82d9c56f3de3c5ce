"""What a lever is: one change in how the step runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ratchet.workloads.config import StepConfig

BF16_LEAST = 0.5
"""Half the bytes do not make up for products at less than this part of the fp32 rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What a lever may look at to decide whether it applies."""

    device_kind: str
    """"cpu" or "cuda"."""
    vendor: str
    isa: str
    cores: int
    written: StepConfig
    """How the user wrote the step."""
    optimizer_is_adamw: bool
    has_attention: bool
    trainable_bytes: int
    peak_memory_bytes: int
    memory_bytes: int
    bf16_is_slow: str | None = None
    """Why no step gains time by bf16 here (`why_bf16_is_slow`); None where it may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lever:
    """One change, with when it applies, what it is expected to give and where that is from."""

    name: str
    summary: str
    expected: str
    source: str
    changes_arithmetic: bool
    applies: Callable[[Situation], str | None]
    """None where it applies, otherwise the reason why not, in one line."""
    set: Callable[[StepConfig, Situation], StepConfig]
    """The config with this lever pulled."""
    unset: Callable[[StepConfig, Situation], StepConfig]
    """The config with this lever as the user wrote it."""
    default: bool = True
    """Part of the first bundle; False for one that is tried only alone (it may cost time)."""
    acts_on: tuple[str, ...] = ()
    """The categories of a step's time that it can shorten, as the profile names them; `step` for
    all of it. Empty where no profile says so: such a lever is tried last."""


def field_lever(
    field: str,
    value: object,
    *,
    name: str,
    summary: str,
    expected: str,
    source: str,
    changes_arithmetic: bool = False,
    applies: Callable[[Situation], str | None] = lambda situation: None,
    default: bool = True,
    acts_on: tuple[str, ...] = (),
) -> Lever:
    """A lever that sets one field of the config, and unsets it to what the user wrote."""

    def pull(config: StepConfig, situation: Situation) -> StepConfig:
        return config.model_copy(update={field: value})

    def release(config: StepConfig, situation: Situation) -> StepConfig:
        return config.model_copy(update={field: getattr(situation.written, field)})

    return Lever(
        name=name,
        summary=summary,
        expected=expected,
        source=source,
        changes_arithmetic=changes_arithmetic,
        applies=applies,
        set=pull,
        unset=release,
        default=default,
        acts_on=acts_on,
    )


def why_bf16_is_slow(gemm_flops_per_s: Mapping[str, float]) -> str | None:
    """Why bf16 products can win no time, from measured GEMM rates in FLOP/s; None where they may.

    A CPU without bf16 instructions multiplies bf16 at a small part of its fp32 rate.
    """
    fp32, bf16 = gemm_flops_per_s.get("fp32"), gemm_flops_per_s.get("bf16")
    if fp32 is None or bf16 is None or bf16 >= BF16_LEAST * fp32:
        return None
    return (
        f"matrix products reach {bf16 / 1e9:.3g} GFLOP/s in bf16 here, and {fp32 / 1e9:.3g} in fp32"
    )


def only_cpu(situation: Situation) -> str | None:
    return None if situation.device_kind == "cpu" else "it concerns the CPU only"


def only_rocm(situation: Situation) -> str | None:
    """Where torch runs an AMD GPU, and is the build for it."""
    if situation.device_kind != "cuda" or situation.vendor != "AMD":
        return "it concerns an AMD GPU under ROCm only"
    import torch

    return None if torch.version.hip else "this torch is not built for ROCm"


def only_gpu(situation: Situation) -> str | None:
    return None if situation.device_kind == "cuda" else "it concerns a GPU only"
