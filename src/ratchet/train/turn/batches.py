"""Measure larger batches of a step that leaves its GPU idle: offered in the report, never applied.

A larger batch changes what a model learns from a step, so only the user can decide on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

import msgspec

from ratchet.base.errors import RatchetError
from ratchet.judge.steps.arms import ArmProcess
from ratchet.train.recipe.candidate import Candidate
from ratchet.train.recipe.describe import ArmFacts, StepFacts
from ratchet.train.turn.optimize_result import IdentityResult, LargerBatch
from ratchet.train.turn.schedule import MARGIN, WARMUP_STEPS
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.names import fixes_batch_size

IDLE: Final = 0.25
"""Share of a profiled step that leaves the GPU idle, from which a larger batch is tried."""
FACTOR: Final = 4
"""Each batch over the one before."""
GAIN: Final = 1.1
"""Rate over the one before from which a still larger batch is tried."""
MOST_SIZES: Final = 4
STEPS: Final = 5
"""Timed steps of one size; their median counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LargerBatches:
    """The larger batches of one turn's workload."""

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
