"""The levers, by name and as a list: `table.LEVERS` has them in trial order."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import get_args

import msgspec

from ratchet.base.errors import RatchetError
from ratchet.judge.kernels.library import LIBRARY, why_no_kernel
from ratchet.judge.kernels.library.sources import LibraryKernel
from ratchet.train.levers.base import Lever, Situation
from ratchet.train.levers.table import CHECKPOINTING, LEVERS, MICRO_BATCHES, MICRO_BATCHES_NAME
from ratchet.train.workloads.config import OwnPrecision, StepConfig

PREFIX = "kernel:"


def kernel_lever_names() -> tuple[str, ...]:
    """Return the names of `kernel_levers`, in order, without importing a kernel or torch."""
    return tuple(PREFIX + name for name in LIBRARY)


def kernel_levers() -> tuple[Lever, ...]:
    return tuple(_lever(kernel) for kernel in LIBRARY.values())


def _lever(kernel: LibraryKernel) -> Lever:
    of_adamw = kernel.name == "adamw"
    expected = (
        "clip, decay, moments, zeroing and the bf16 copy in one pass over memory"
        if of_adamw
        else f"the step's {kernel.name} call sites in one pass each"
    )
    own = {"adamw": _adamw_applies, "linear": _linear_applies}
    return (_KernelAdamW if of_adamw else _InGraph)(
        name=PREFIX + kernel.name,
        summary=kernel.summary,
        expected=expected,
        source=kernel.source_of_idea,
        field="optimizer" if of_adamw else "kernels",
        value="kernel" if of_adamw else kernel.name,
        applies=own.get(kernel.name) or partial(_applies, kernel.name),
        default=True,
        acts_on=kernel.acts_on,
    )


def region_lever(title: str, value: str) -> Lever:
    """Return the lever that installs the kernel of one of the step's own regions.

    `title` is the name of the region's problem, `value` its name among a config's kernels.
    """
    return _InGraph(
        name=PREFIX + title,
        summary="a kernel written for a region of the step's own graphs",
        expected="the region's sites in one pass each",
        source="written by Ratchet's authors, proven by the judge",
        field="kernels",
        value=value,
        default=True,
    )


class _KernelAdamW(Lever):
    """The AdamW kernel; without it, torch's fused AdamW runs."""

    __slots__ = ()

    def unset(self, config: StepConfig, situation: Situation) -> StepConfig:
        return msgspec.structs.replace(config, optimizer="fused")


class _InGraph(Lever):
    """A kernel at call sites of the step's graphs, among others."""

    __slots__ = ()

    def set(self, config: StepConfig, situation: Situation) -> StepConfig:
        return msgspec.structs.replace(config, kernels=tuple(sorted({*config.kernels, self.value})))

    def unset(self, config: StepConfig, situation: Situation) -> StepConfig:
        kept = tuple(kernel for kernel in config.kernels if kernel != self.value)
        return msgspec.structs.replace(config, kernels=kept)


def _applies(name: str, situation: Situation) -> str | None:
    return why_no_kernel(name, situation.target)


def _linear_applies(situation: Situation) -> str | None:
    """Decline CPUs where oneDNN's bf16 products are near the peak: AVX-512's.

    docs/reference/kernels.md has the figures.
    """
    if situation.device_kind == "cpu" and situation.target not in ("amx", "avx2"):
        return (
            "oneDNN is near this CPU's peak (docs/reference/kernels.md); the kernel is for AMX and "
            "AVX2"
        )
    return _applies("linear", situation)


def _adamw_applies(situation: Situation) -> str | None:
    if not situation.optimizer_is_adamw:
        return "the optimizer is not torch's AdamW"
    if situation.written.precision in get_args(OwnPrecision):
        return f"the model's weights are {situation.written.precision}"
    return situation.why_not_fused or _applies("adamw", situation)


__all__ = [
    "LEVERS",
    "Lever",
    "Situation",
    "all_levers",
    "check_lever",
    "find_lever",
    "kernel_levers",
]

PLANNED = "checkpointing="
"""Prefix of the lever that sets a plan of `ratchet memory`: `checkpointing=plan:ffnn`, with others
behind it as in `checkpointing=plan:ffnn+chunked-logits+micro-batches=4`."""


def check_lever(name: str) -> None:
    """Raise a RatchetError that lists the levers if `name` is unknown; imports no torch."""
    known = (*(lever.name for lever in LEVERS), *kernel_lever_names())
    if name not in known and _with_value(name) is None:
        raise RatchetError(
            f"unknown lever {name!r}: the levers are {', '.join(known)}, {PLANNED}PLAN"
        )


def find_lever(name: str) -> Lever:
    """Return the lever that `check_lever` accepts."""
    return _with_value(name) or all_levers()[name]


def _with_value(name: str) -> Lever | None:
    """Return the lever of a name that holds its value; None for every other name."""
    if name.startswith(PLANNED):
        return planned_lever(name)
    return micro_batches(name) if name.startswith(MICRO_BATCHES_NAME) else None


def micro_batches(name: str) -> Lever:
    """Return the lever that cuts each batch into as many parts as its name says."""
    parts = name.removeprefix(MICRO_BATCHES_NAME)
    if not parts.isdecimal() or int(parts) < 2:
        raise RatchetError(f"lever {name!r} cuts no batch: write micro-batches=2 or more")
    summary = MICRO_BATCHES.summary.replace("2", parts)
    return replace(MICRO_BATCHES, name=name, value=int(parts), summary=summary)


def planned_lever(name: str) -> Lever:
    """Return the lever that makes each block recompute as its name says, with those behind it."""
    plan, *others = name.removeprefix(PLANNED).split("+")
    for one in others:
        check_lever(one)
    also = [find_lever(one) for one in others]
    try:
        msgspec.convert({"checkpointing": plan}, StepConfig)
    except msgspec.ValidationError:
        raise RatchetError(
            f"lever {name!r} is no plan: write none, selective, blocks:2, or the plan that "
            "`ratchet memory` printed, such as plan:ffnn"
        ) from None
    return replace(
        CHECKPOINTING,
        name=name,
        value=plan,
        summary="; ".join([f"blocks recompute as planned: {plan}", *(one.summary for one in also)]),
        also=tuple((one.field, one.value) for one in also),
        applies=lambda situation: None,
    )


def all_levers() -> dict[str, Lever]:
    """Return every lever by name, including the library's kernels."""
    return {lever.name: lever for lever in (*LEVERS, *kernel_levers())}
