"""Rewards for a GPU that is not here: its machine code is emulated, and nothing is timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from ratchet.base.serialise import document_of
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Screening
from ratchet.write.author import Proposal
from ratchet.write.learn.bench import EACH_S, START_S, ScreeningBench
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.tasks import LearnTask

EMULATED: Final = "learn_emulated"
"""Kind of the evidence that holds what the emulator said of a kernel."""
FULL_S: Final = 120.0


class EmulatedBench(ScreeningBench):
    """A bench that asks the emulator instead of a clock.

    The outputs say whether a kernel is right. Its ratio is an estimate: the bound on the time of
    the generator's first schedule over the kernel's own bound. The ledger keeps such ratios apart
    from measured ones.
    """

    def __init__(self, court: Court, *, target: str) -> None:
        super().__init__(court, device="cpu")
        self._target = target

    def _recall(self) -> None:
        """Read nothing: emulated answers are read when they are asked for."""

    def _screen(self, task: LearnTask, new: Sequence[Proposal]) -> None:
        plain = task.space.kernel(task.space.first()[0])
        kernels = {plain.hash: plain} | {one.kernel.hash: one.kernel for one in new}
        found = self._emulated(task, list(kernels.values()))
        yardstick_s = _bound_s(found[plain.hash])
        for key, one in found.items():
            bound_s = _bound_s(one)
            ratio = yardstick_s / bound_s if yardstick_s and bound_s else None
            self._known[task.key, key] = replace(one, ratio=ratio)

    def _in_full(self, task: LearnTask, kernel: Kernel) -> str:
        terms = Terms(time_limit_s=FULL_S, device="cpu", target=self._target)
        return self._court.judge(kernel, task.problem, terms).verdict.status

    def _emulated(self, task: LearnTask, kernels: Sequence[Kernel]) -> dict[str, Screening]:
        """Return an answer for each kernel, by hash: the ledger's, or the emulator's."""
        ledger, here = self._court.ledger, self._court.fingerprint
        found: dict[str, Screening] = {}
        for kernel in kernels:
            known = ledger.recall(EMULATED, self._place(task, kernel), fingerprint=here)
            if known is not None:
                found[kernel.hash] = msgspec.convert(known, Screening)
        new = [one for one in kernels if one.hash not in found]
        if not new:
            return found
        self.judged += len(new)
        limit_s = START_S + EACH_S * len(new)
        terms = Terms(time_limit_s=limit_s, device="cpu", target=self._target)
        for kernel, said in zip(new, self._court.screen(new, task.problem, terms), strict=True):
            found[kernel.hash] = said
            if said.status == "unmeasured":
                continue
            ledger.record_kernel(kernel.hash, kernel.name, kernel.as_json(), fingerprint=here)
            payload = {**document_of(said), "problem": task.name}
            ledger.remember(EMULATED, self._place(task, kernel), payload, fingerprint=here)
        return found

    def _place(self, task: LearnTask, kernel: Kernel) -> str:
        return f"{self._target}:{revision(self._target)}:{task.key}:{kernel.hash}"


def _bound_s(said: Screening) -> float | None:
    """Return the least seconds that the visible cases take on the target; None if not known."""
    bound_s = said.static_rank[0] if said.static_rank else math.inf
    return bound_s if math.isfinite(bound_s) and bound_s > 0 else None


def open_bench(court: Court, config: LearnConfig) -> ScreeningBench:
    """Return the bench that a config names: with a clock, or with the emulator."""
    if config.target:
        return EmulatedBench(court, target=config.target)
    return ScreeningBench(court, rival=config.rival)
