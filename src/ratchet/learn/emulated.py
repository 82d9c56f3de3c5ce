"""Rewards for a GPU that is not here: its machine code is emulated, and nothing is timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from ratchet.authors.court import Estimate, RecordedCourt
from ratchet.judge.revision import revision
from ratchet.kernels.kernel import Kernel
from ratchet.learn.bench import EACH_S, START_S, JudgeOutcome, PolicyKernel, ScreeningBench
from ratchet.learn.config import LearnConfig
from ratchet.learn.tasks import LearnTask
from ratchet.ledger.verdicts import RecordedJudge, Terms

EMULATED: Final = "learn_emulated"
"""Kind of the evidence that holds what the emulator said of a kernel."""
FULL_S: Final = 120.0


class EmulatorsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The emulator's answer on one kernel, as the ledger keeps it."""

    status: str
    reason: str
    bound_s: float | None = None
    """Lower bound on the visible cases' time on the target; None if there is none."""


class EmulatedBench(ScreeningBench):
    """A bench that asks the emulator instead of a clock.

    The outputs say whether a kernel is right. Its ratio is an estimate: the bound on the time of
    the generator's first schedule over the kernel's own bound. The ledger keeps such ratios apart
    from measured ones.
    """

    def __init__(self, judge: RecordedJudge, *, target: str) -> None:
        super().__init__(judge, device="cpu")
        self._target = target
        self._court = RecordedCourt(judge, target=target)

    def _recall(self) -> None:
        """Read nothing: emulated answers are read when they are asked for."""

    def _screen(self, task: LearnTask, new: Sequence[PolicyKernel]) -> None:
        plain = task.space.kernel(task.space.first()[0])
        kernels = {plain.hash: plain} | {one.kernel.hash: one.kernel for one in new}
        found = self._emulated(task, list(kernels.values()))
        yardstick_s = found[plain.hash].bound_s
        for key, one in found.items():
            self._known[task.key, key] = JudgeOutcome(
                kernel_hash=key,
                status=one.status,
                ratio=yardstick_s / one.bound_s if yardstick_s and one.bound_s else None,
                why=one.reason,
            )

    def _in_full(self, task: LearnTask, kernel: Kernel) -> str:
        terms = Terms(time_limit_s=FULL_S, device="cpu", target=self._target, compared=False)
        (found,) = self._court.judge([kernel], task.problem, terms)
        return str(found.verdict["status"])

    def _emulated(self, task: LearnTask, kernels: Sequence[Kernel]) -> dict[str, EmulatorsAnswer]:
        """Return an answer for each kernel, by hash: the ledger's, or the emulator's."""
        ledger, here = self._judge.ledger, self._judge.fingerprint
        found: dict[str, EmulatorsAnswer] = {}
        for kernel in kernels:
            known = ledger.recall(EMULATED, self._place(task, kernel), fingerprint=here)
            if known is not None:
                found[kernel.hash] = msgspec.convert(known, EmulatorsAnswer)
        new = [one for one in kernels if one.hash not in found]
        if not new:
            return found
        self.judged += len(new)
        limit_s = START_S + EACH_S * len(new)
        said = self._court.estimate(
            task.problem, new, best=None, time_limit_s=limit_s, device="cpu"
        )
        for kernel, one in zip(new, said, strict=True):
            answer = _answer(one)
            found[kernel.hash] = answer
            if answer.status == "unmeasured":
                continue
            ledger.record_kernel(kernel.hash, kernel.name, kernel.as_json(), fingerprint=here)
            payload = {**msgspec.to_builtins(answer), "kernel": kernel.hash, "problem": task.name}
            ledger.remember(EMULATED, self._place(task, kernel), payload, fingerprint=here)
        return found

    def _place(self, task: LearnTask, kernel: Kernel) -> str:
        return f"{self._target}:{revision()}:{task.key}:{kernel.hash}"


def _answer(said: Estimate) -> EmulatorsAnswer:
    bound_s = said.static_rank[0] if said.static_rank else math.inf
    return EmulatorsAnswer(
        status=said.status,
        reason=said.reason,
        bound_s=bound_s if math.isfinite(bound_s) and bound_s > 0 else None,
    )


def open_bench(judge: RecordedJudge, config: LearnConfig) -> ScreeningBench:
    """Return the bench that a config names: with a clock, or with the emulator."""
    if config.target:
        return EmulatedBench(judge, target=config.target)
    return ScreeningBench(judge, rival=config.rival)
