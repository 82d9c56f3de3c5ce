"""Bound how fast a step can run on this machine, and how much could still be won.

A step's bound is the sum of its operators' rooflines at the measured ceilings (matrix products,
convolutions, attention) and of the optimizer's compulsory traffic. Every other operator has a bound
of 0, because fusion could remove all of its time. The bound is therefore never too high.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ratchet.devices.ceilings import Ceilings
from ratchet.optimize.levers import Lever, Situation
from ratchet.optimize.turn.result import ArmKey, CategoryLimit, StepLimit, StepProfile

OVERHEAD = "overhead"
"""The part of a step outside every operator: Python, and a device that waits for it."""
SMALL_SHARE = 0.01
"""Share of a step; a lever that can win no more than this is not tried."""
SMALL_REGION_SHARE = 0.002
"""The same for the kernel of one region: all of a step's regions are tried together first."""
ADAMW_PASSES, SGD_PASSES = 7, 3
"""Passes over the optimizer's data, each as long as the parameters.

AdamW reads parameter, gradient and two moments, and writes all but the gradient. SGD has no state:
it reads parameter and gradient, and writes the parameter.
"""
FUSED_UPDATES = ("aten::_fused_adamw_", "aten::_fused_adam_", "aten::_fused_sgd_")
BF16_BYTES = 0.5
"""Ratio of bf16 traffic to fp32 traffic."""


def limit_of(
    profile: StepProfile,
    *,
    arm: ArmKey,
    title: str,
    step_time_s: float,
    situation: Situation,
    ceilings: Ceilings | None,
    least_s: float = 0.0,
) -> StepLimit | None:
    """Return the limit of a profiled step; None without a measured ceiling or a profile.

    The profile's times are scaled to `step_time_s`, because profiling itself takes time. `least_s`
    is a bound known from another way to run the same work.
    """
    window_s = profile.identity.window_s
    if ceilings is None or window_s <= 0:
        return None
    scale = step_time_s / window_s
    times: dict[str, float] = defaultdict(float)
    least: dict[str, float] = defaultdict(float)
    unknown: dict[str, float] = defaultdict(float)
    for op in profile.ops:
        times[op.category] += op.time_s * scale
        least[op.category] += min(op.least_s or 0.0, op.time_s * scale)
        unknown[op.category] += op.time_s * scale if op.least_s is None else 0.0
    times[OVERHEAD] += max(0.0, window_s - profile.total_s) * scale
    updates_s = scale * sum(op.time_s for op in profile.ops if op.name.startswith(FUSED_UPDATES))
    _hold_optimizer(times, least, unknown, situation, ceilings, updates_s)
    whole_s = max(sum(least.values()), least_s)
    found = [
        CategoryLimit(
            category=name,
            time_s=time_s,
            least_s=least[name],
            unknown_s=unknown[name],
            winnable_s=max(0.0, time_s - least[name]),
        )
        for name, time_s in times.items()
        if time_s > 0
    ]
    return StepLimit(
        arm=arm,
        title=title,
        step_time_s=step_time_s,
        least_s=whole_s,
        share=min(1.0, whole_s / step_time_s),
        most=max(1.0, step_time_s / whole_s) if whole_s > 0 else None,
        categories=sorted(found, key=lambda one: -one.winnable_s),
    )


def _hold_optimizer(
    times: dict[str, float],
    least: dict[str, float],
    unknown: dict[str, float],
    situation: Situation,
    ceilings: Ceilings,
    updates_s: float,
) -> None:
    """Bound the optimizer's time by the traffic of its state.

    `updates_s` is the time of a fused update in the profile, if there is one. It writes where it
    has read, so it may be above the ceiling of a copy, and the bound cannot be above it.
    """
    if not times.get("optimizer"):
        return
    passes = ADAMW_PASSES if situation.optimizer_is_adamw else SGD_PASSES
    size_bytes = situation.trainable_bytes
    rate = ceilings.bandwidth_bytes_per_s((4 if passes == ADAMW_PASSES else 2) * size_bytes)
    bound_s = min(times["optimizer"], passes * size_bytes / rate, updates_s or float("inf"))
    least["optimizer"] = max(least["optimizer"], bound_s)
    unknown["optimizer"] = 0.0


def winnable_s(
    lever: Lever, limit: StepLimit, profile: StepProfile, ceilings: Ceilings
) -> float | None:
    """Return the most seconds of a step that the lever can win; None if the profile cannot tell."""
    times = {one.category: one for one in limit.categories}
    if lever.changes_arithmetic:
        return _by_precision(lever, limit, ceilings)
    if not lever.acts_on:
        return None
    if "step" in lever.acts_on:
        return limit.step_time_s - limit.least_s
    if "system" in lever.acts_on:
        scale = limit.step_time_s / profile.identity.window_s
        return min(limit.step_time_s, profile.system_s * scale) if profile.system_s else None
    found = [times[name].winnable_s for name in lever.acts_on if name in times]
    return sum(found) if found else None


def _by_precision(lever: Lever, limit: StepLimit, ceilings: Ceilings) -> float:
    """Return what bf16 can win: the products' rate difference and half of the other traffic."""
    rates = ceilings.gemm_flops_per_s
    share = max(0.0, 1.0 - rates["fp32"] / rates["bf16"]) if {"fp32", "bf16"} <= {*rates} else 0.0
    of_products = ("matmul", "convolution", "attention")
    won = 0.0
    for one in limit.categories:
        if one.category in of_products:
            won += one.winnable_s + share * one.least_s
        elif "step" in lever.acts_on and one.category != OVERHEAD:
            won += one.winnable_s + (1 - BF16_BYTES) * one.least_s
    return won


def ranked(levers: Sequence[Lever], worth: Mapping[str, float | None]) -> list[Lever]:
    """Sort the levers by the time they can win, most first; unknown ones come last."""
    return sorted(levers, key=lambda lever: -(worth.get(lever.name) or 0.0))


def too_small(
    name: str,
    worth: Mapping[str, float | None],
    step_time_s: float,
    *,
    least_share: float = SMALL_SHARE,
) -> str | None:
    """Return the reason why a lever is not worth a trial; None if it may be."""
    found = worth.get(name)
    if found is None or found >= least_share * step_time_s:
        return None
    share = found / step_time_s
    return f"at most {share:.1%} of the step could be won by it"
