"""Say how fast a step can run on this machine, and how much each lever could still win.

A step's bound is the sum of its operators' rooflines at the measured ceilings (matrix products,
convolutions, attention) and of the optimizer's compulsory traffic. Every other operator has a bound
of 0, because fusion could remove all of its time. The bound is therefore never too high.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.errors import OutOfTime, RatchetError
from ratchet.base.files import copy_whole
from ratchet.judge.steps.arms import ArmProcess
from ratchet.train.levers import Lever, Situation, all_levers, kernel_levers
from ratchet.train.levers.table import COMPILE_MAX_AUTOTUNE
from ratchet.train.recipe import Candidate
from ratchet.train.recipe.facts import ArmFacts, StepFacts
from ratchet.train.turn import schedule
from ratchet.train.turn.explain import OVERHEAD, explain
from ratchet.train.turn.optimize_result import (
    ArmKey,
    CategoryLimit,
    IdentityResult,
    LargerBatch,
    StepLimit,
    StepProfile,
)
from ratchet.train.turn.rivals import Baseline
from ratchet.train.turn.schedule import MARGIN, WARMUP_STEPS
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.names import fixes_batch_size

PROFILED_STEPS = 2
SMALL_SHARE = 0.01  # Share of a step; a lever that can win no more than this is not tried
SMALL_REGION_SHARE = 0.002
"""The same for the kernel of one region: all of a step's regions are tried together first."""
ADAMW_PASSES, SGD_PASSES = 7, 3
"""Passes over the optimizer's data, each as long as the parameters.

AdamW reads parameter, gradient and two moments, and writes all but the gradient. SGD has no state:
it reads parameter and gradient, and writes the parameter.
"""
FUSED_UPDATES = ("aten::_fused_adamw_", "aten::_fused_adam_", "aten::_fused_sgd_")
BF16_BYTES = 0.5  # Ratio of bf16 traffic to fp32 traffic


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """The most that each lever can win of a step."""

    by_lever: Mapping[str, float | None] = field(default_factory=dict)
    """Seconds by lever name; None if the profile cannot tell."""
    shared: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name of a kernel's lever, if the kernels that act on the same operators share what
    can be won of them evenly."""
    step_time_s: float = 0.0

    def joined(self, more: Mapping[str, float | None]) -> Worth:
        """Return it with what further levers can win."""
        return replace(self, by_lever={**self.by_lever, **more})

    def ranked(self, levers: Sequence[Lever]) -> list[Lever]:
        """Sort the levers by the time they can win, most first; unknown ones come last."""
        likely = {**self.by_lever, **self.shared}
        return sorted(levers, key=lambda lever: -(likely.get(lever.name) or 0.0))

    def too_small(self, name: str, least_share: float = SMALL_SHARE) -> str | None:
        """Return the reason why a lever is not worth a trial; None if it may be."""
        found = self.by_lever.get(name)
        if found is None or found >= least_share * self.step_time_s:
            return None
        return f"at most {found / self.step_time_s:.1%} of the step could be won by it"


class StepProfiles:
    """The profiles that the budget had room for, and what they say can be won."""

    def __init__(self, turn: Turn, situation: Situation) -> None:
        self.turn, self.situation = turn, situation
        self._found: dict[str, StepProfile | None] = {}

    def of(self, candidate: Candidate) -> StepProfile | None:
        """Return a candidate's profile, if one was taken."""
        return self._found.get(candidate.key())

    def take(self, candidate: Candidate, when: str) -> StepProfile | None:
        """Return a candidate's profile, taken now if need be; None if the budget has no room."""
        key = candidate.key()
        if key not in self._found:
            self._found[key] = self._take(candidate, when)
        return self._found[key]

    def take_live(self, candidate: Candidate) -> None:
        """Take the profile of a bundle whose process runs, if there is room before its proof."""
        live = self.turn.arms.is_live(candidate)
        if live and self.turn.schedule.may_start(schedule.PROFILE, self._needed_s(candidate)):
            self.take(candidate, "bundle")

    def last(self, recipe: Candidate) -> StepProfile | None:
        """Return the recipe's profile, its trace under the name of the last one."""
        found, path = self.take(recipe, "after"), self._path("after")
        if found is None or not found.trace or not _has_trace(found, path):
            return found
        return msgspec.structs.replace(found, trace=str(path))

    def _path(self, when: str) -> Path:
        return self.turn.settings.out.resolve() / f"trace_{when}.json.gz"

    def _take(self, candidate: Candidate, when: str) -> StepProfile | None:
        turn, path = self.turn, self._path(when)

        def compute() -> StepProfile:
            turn.tell("profile", title=candidate.title)
            arm, began_s = turn.arms.live(candidate), turn.schedule.elapsed_s
            with turn.arms.quiet(), turn.schedule.doing(schedule.PROFILING):
                told = arm.call("profile", path=str(path), steps=PROFILED_STEPS)
            system_s = float(told.get("system_s", 0.0))
            found = explain(path, PROFILED_STEPS, turn.device, turn.ceilings, system_s)
            took_s = turn.schedule.elapsed_s - began_s
            turn.costs.profile_s = max(turn.costs.profile_s, took_s)
            return found

        step = schedule.LAST_PROFILE if when == "after" else schedule.PROFILE
        known = turn.holds("explain", candidate.key())
        if not known and not turn.schedule.may_start(step, self._needed_s(candidate)):
            turn.leave_out(f"a profile of {candidate.title}", schedule.NO_ROOM)
            return None
        try:
            found = turn.memo("explain", candidate.key(), StepProfile, compute)
            if _has_trace(found, path):
                return msgspec.structs.replace(found, trace=str(path))
            return turn.renew("explain", candidate.key(), StepProfile, compute)
        except OutOfTime:
            turn.leave_out(f"a profile of {candidate.title}", "the budget ended during it")
            return None

    def _needed_s(self, candidate: Candidate) -> float:
        costs = self.turn.costs
        start_s = 0.0 if self.turn.arms.is_live(candidate) else costs.setup_s(candidate)
        steps_s = 2 * PROFILED_STEPS * costs.step_s(candidate)
        return schedule.MARGIN * start_s + max(costs.profile_s, steps_s + schedule.READ_S)

    def rule_out(self, best: Candidate, rival: Candidate) -> str | None:
        """Return the reason to skip max-autotune: by the profile it has too little to win."""
        config = rival.config
        if config.compile_mode != "max-autotune" or best.config.precision != config.precision:
            return None
        return self._worth_of(best).too_small(COMPILE_MAX_AUTOTUNE.name)

    def first_worth(self, written: Candidate) -> Worth:
        """Return what each kernel can win of the step as written, before a rival has run.

        It orders kernels; what a rival wins too is no reason to try none.
        """
        return replace(self._worth_of(written, "before"), by_lever={})

    def worth(self, baseline: Baseline) -> Worth:
        """Return what each lever can win of the step that the selection begins with."""
        return self._worth_of(baseline.best)

    def _worth_of(self, candidate: Candidate, when: str = "rival") -> Worth:
        profile = self.take(candidate, when)
        limit = self.limit(candidate, "best_compile")
        if profile is None or limit is None or self.turn.ceilings is None:
            return Worth()
        found = {
            name: winnable_s(lever, limit, profile, self.turn.ceilings)
            for name, lever in all_levers().items()
        }
        kernels = [one for one in kernel_levers() if one.applies(self.situation) is None]
        shared = shared_s(kernels, limit)
        return Worth(by_lever=found, shared=shared, step_time_s=limit.step_time_s)

    def limit_after(
        self, rival: Candidate, recipe: Candidate, step_time_s: float | None
    ) -> StepLimit | None:
        """Return the recipe's limit, or the rival's if the recipe was not profiled.

        Work is equal in equal arithmetic, so the bound of one holds for the other. `step_time_s` is
        the recipe's in the final run, if it was in it.
        """
        of_rival = self.limit(rival, "best_compile")
        if self.of(recipe) is None:
            return of_rival
        alike = rival.config.precision == recipe.config.precision
        least_s = of_rival.least_s if of_rival is not None and alike else 0.0
        return self.limit(recipe, "ratchet", least_s, step_time_s)

    def limit(
        self,
        candidate: Candidate,
        arm: ArmKey,
        least_s: float = 0.0,
        step_time_s: float | None = None,
    ) -> StepLimit | None:
        """Return the limit of a profiled step; see `limit_of`."""
        profile = self.of(candidate)
        step_time_s = step_time_s or self.turn.costs.step_s(candidate)
        if profile is None or not step_time_s:
            return None
        return limit_of(
            profile,
            arm=arm,
            title=candidate.title,
            step_time_s=step_time_s,
            situation=self.situation,
            ceilings=self.turn.ceilings,
            least_s=least_s,
        )


def _has_trace(found: StepProfile, path: Path) -> bool:
    """Copy the trace of a recalled profile to this turn's folder; return False if it is gone."""
    kept = Path(found.trace)
    if kept == path:
        return path.is_file()
    try:
        copy_whole(kept, path)
    except OSError:
        return False
    return True


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
    if times.get("optimizer"):
        updates_s = scale * sum(
            op.time_s for op in profile.ops if op.name.startswith(FUSED_UPDATES)
        )
        bound_s = min(_traffic_s(situation, ceilings), updates_s or float("inf"))
        least["optimizer"] = max(least["optimizer"], min(times["optimizer"], bound_s))
        unknown["optimizer"] = 0.0
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


def _traffic_s(situation: Situation, ceilings: Ceilings) -> float:
    """Return the seconds of the optimizer's traffic at the ceiling of a copy.

    A fused update writes where it has read, so it may be above that ceiling.
    """
    passes = ADAMW_PASSES if situation.optimizer_is_adamw else SGD_PASSES
    size_bytes = situation.trainable_bytes
    rate = ceilings.bandwidth_bytes_per_s((4 if passes == ADAMW_PASSES else 2) * size_bytes)
    return passes * size_bytes / rate


def winnable_s(
    lever: Lever, limit: StepLimit, profile: StepProfile, ceilings: Ceilings
) -> float | None:
    """Return the most seconds of a step that the lever can win; None if the profile cannot tell."""
    if lever.changes_arithmetic:
        return _by_precision(lever, limit, ceilings)
    if not lever.acts_on:
        return None
    if "step" in lever.acts_on:
        return limit.step_time_s - limit.least_s
    if "system" in lever.acts_on:
        scale = limit.step_time_s / profile.identity.window_s
        return min(limit.step_time_s, profile.system_s * scale) if profile.system_s else None
    found = [one.winnable_s for one in limit.categories if one.category in lever.acts_on]
    return sum(found) if found else None


def shared_s(kernels: Sequence[Lever], limit: StepLimit) -> dict[str, float]:
    """Return the seconds that each kernel wins if all that act on a category share it evenly.

    Half of the library acts on the operators that torch.compile fuses; no kernel wins them all.
    """
    claims = Counter(name for kernel in kernels for name in kernel.acts_on)
    part = {one.category: one.winnable_s / max(1, claims[one.category]) for one in limit.categories}
    return {kernel.name: sum(part.get(name, 0.0) for name in kernel.acts_on) for kernel in kernels}


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


# Measure larger batches of a step that leaves its GPU idle: offered in the report, never applied.
#
# A larger batch changes what a model learns from a step, so only the user can decide on it.

IDLE: Final = 0.25
"""Share of a profiled step that leaves the GPU idle, from which a larger batch is tried."""
FACTOR: Final = 4  # Each batch over the one before
GAIN: Final = 1.1  # Rate over the one before from which a still larger batch is tried
MOST_SIZES: Final = 4
STEPS: Final = 5  # Timed steps of one size; their median counts


@dataclass(frozen=True, kw_only=True, slots=True)
class LargerBatches:
    turn: Turn
    facts: StepFacts

    def why_not(self, identity: IdentityResult | None) -> str:
        """Return why no larger batch is tried beside a profiled step; empty if one is."""
        if self.turn.device.kind == "cpu":
            return "a CPU's cores are not idle"
        if self.facts.batch_size is None or fixes_batch_size(self.turn.settings.workload):
            return "the workload sets its batch size itself"
        if identity is None:
            return "the step was not profiled"
        return "" if idle_share(identity) >= IDLE else "the GPU is busy"

    def needed_s(self, candidate: Candidate) -> float:
        """Estimate the seconds of the first larger batch: it compiles from scratch."""
        costs = self.turn.costs
        steps_s = FACTOR * (WARMUP_STEPS + STEPS) * costs.step_s(candidate)
        return MARGIN * costs.compiled_s(candidate) + steps_s

    def measured(self, candidate: Candidate, identity: IdentityResult) -> LargerBatch | None:
        """Return the batch with the highest rate that was found; None if none is faster.

        Batches grow until one gains little, does not fit into memory, or the stage ends.
        """
        step_s, now = self.turn.costs.step_s(candidate), self.facts.batch_size
        if not step_s or now is None:
            return None
        rate = self.facts.tokens_per_batch / step_s
        best = LargerBatch(
            batch_size=now, batch_size_now=now, unit=self.facts.unit, rate=rate, rate_now=rate,
            idle_share=idle_share(identity),
        )  # fmt: skip
        for found in self._sizes(candidate, best):
            if found.rate > best.rate:
                best, before = found, best
                if found.rate >= GAIN * before.rate:
                    continue
            break
        return best if best.batch_size > now else None

    def _sizes(self, candidate: Candidate, now: LargerBatch) -> Iterator[LargerBatch]:
        """Yield one larger batch after another."""
        with contextlib.suppress(RatchetError):  # memory or time ended
            for power in range(1, MOST_SIZES + 1):
                size = now.batch_size * FACTOR**power
                yield self.turn.memo(
                    "batch",
                    f"{candidate.key()}:{size}",
                    LargerBatch,
                    partial(self._timed, candidate, now, size),
                )

    def _timed(self, candidate: Candidate, now: LargerBatch, size: int) -> LargerBatch:
        turn = self.turn
        turn.schedule.check("time a larger batch")
        turn.tell("start", title=f"{candidate.title}, a batch of {size}")
        with ArmProcess(turn.arms.spec(candidate, batch_size=size)) as arm:
            arm.run(WARMUP_STEPS)
            step_s = median(arm.run(1).wall_time_s for _ in range(STEPS))
            told = msgspec.convert(arm.describe(), ArmFacts)
        rate = self.facts.tokens_per_batch * (size / now.batch_size) / step_s
        figures = {"batch_size": size, "rate": rate, "peak_memory_bytes": told.peak_memory_bytes}
        return msgspec.structs.replace(now, **figures)


def idle_share(identity: IdentityResult) -> float:
    """Return the share of a step in which the device computes nothing."""
    return identity.idle_s / identity.window_s if identity.window_s > 0 else 0.0
