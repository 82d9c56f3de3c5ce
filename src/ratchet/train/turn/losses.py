"""Compare loss curves: after a change of arithmetic, small copies must learn as well as before."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.base.errors import DeadlinePassed, JudgeError
from ratchet.judge.steps.arms import ArmProcess
from ratchet.judge.steps.numerics import judge_losses
from ratchet.train.recipe.candidate import Candidate
from ratchet.train.turn import schedule
from ratchet.train.turn.arm import SHRUNK_FACTORY
from ratchet.train.turn.optimize_result import LossResult
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.config import REPLAYING

KIND = "loss-curve"


Arithmetic = tuple[str, str, str]
"""A step's precision, its fp32 products and its linear layers' products."""


def arithmetic_of(candidate: Candidate) -> Arithmetic:
    """Return the arithmetic of a candidate."""
    config = candidate.config
    return config.precision, config.matmul_precision, config.products


def keeps_arithmetic(candidate: Candidate, written: Candidate) -> bool:
    """Return True if a candidate computes in the arithmetic of the step as written."""
    return arithmetic_of(candidate) == arithmetic_of(written)


@dataclass(kw_only=True)
class Losses:
    """The comparisons of one turn, which say what may be kept.

    They are due where the arithmetic changes, and where graphs of launches are replayed on a GPU: a
    replay that reads old memory shows in no first step.
    """

    turn: Turn
    written: Candidate
    found: dict[tuple[Arithmetic, bool], LossResult | None] = field(default_factory=dict)
    """By arithmetic and whether graphs are replayed; None if the budget ended before."""

    def of(self, candidate: Candidate) -> LossResult | None:
        """Return the comparison that speaks for a candidate, if there is one.

        Bf16 weights are rounded wherever autocast rounds them, so their losses speak for both.
        Losses of replayed graphs speak for those without replays.
        """
        precision, products, layers = arithmetic_of(candidate)
        replayed = self.replays(candidate)
        stricter = (
            ("bf16_autocast", "bf16_master") if precision == "bf16_autocast" else (precision,)
        )
        for one in reversed(stricter):
            for how in sorted({True, replayed}, reverse=True):
                losses = self.found.get(((one, products, layers), how))
                if losses is not None and losses.passed:
                    return losses
        return self.found.get((arithmetic_of(candidate), replayed))

    def replays(self, candidate: Candidate) -> bool:
        """Return True if a candidate's step replays graphs of launches here."""
        on_gpu = self.turn.device.kind == "cuda"
        return on_gpu and candidate.config.compile_mode in REPLAYING

    def may_keep(self, candidate: Candidate) -> bool:
        """Return True if a candidate computes as the written step does, or is known to learn."""
        losses = self.of(candidate)
        if losses is not None and losses.passed:
            return True
        return keeps_arithmetic(candidate, self.written) and not self.replays(candidate)

    def why_not(self, candidate: Candidate) -> str:
        """Return why a candidate may not be kept."""
        losses = self.of(candidate)
        return losses.detail if losses else "the budget ended before its losses were compared"

    def needed_s(self, candidate: Candidate) -> float | None:
        """Estimate the comparison, if the candidate needs one that was not made."""
        if self.may_keep(candidate) or self._key(candidate) in self.found:
            return None
        return comparison_s(self.turn, self.written, candidate)

    def accept(self, candidate: Candidate) -> bool:
        """Compare the losses if need be; return True if the candidate may be kept."""
        if self.needed_s(candidate) is not None:
            self.found[self._key(candidate)] = self._compared(candidate)
        return self.may_keep(candidate)

    def _key(self, candidate: Candidate) -> tuple[Arithmetic, bool]:
        return arithmetic_of(candidate), self.replays(candidate)

    def _compared(self, candidate: Candidate) -> LossResult | None:
        turn, what = self.turn, schedule.LATE_LOSSES.what
        needed_s = comparison_s(turn, self.written, candidate)
        if not turn.schedule.may_start(schedule.LOSSES, needed_s):
            turn.leave_out(what, schedule.NO_ROOM)
            return None
        try:
            return compare_losses(turn, self.written, candidate)
        except DeadlinePassed:
            turn.leave_out(what, "the budget ended during it")
            return None


def comparison_s(turn: Turn, written: Candidate, candidate: Candidate) -> float:
    """Estimate the seconds that the comparison takes from the starts and steps so far."""
    steps = turn.settings.loss_seeds * turn.settings.loss_steps
    return turn.costs.losses_s(written, candidate, steps)


def compare_losses(turn: Turn, baseline: Candidate, candidate: Candidate) -> LossResult:
    """Train shrunk copies on the same seeds and data both ways; the judge compares final losses.

    Both ways train at the same time, each on one thread. Each curve is remembered separately.
    """
    settings = turn.settings
    both = (baseline, candidate)
    curves: dict[str, list[list[float]]] = {one.key(): [] for one in both}
    with contextlib.ExitStack() as stack:
        arms = _start(turn, both, stack)
        for seed in range(settings.loss_seeds):
            for key, curve in _curves(turn, both, arms, seed).items():
                curves[key].append(curve)
    before, after = curves[baseline.key()], curves[candidate.key()]
    try:
        check = judge_losses(baseline=before, candidate=after)
    except JudgeError as error:  # the step as written diverges
        return LossResult(passed=False, baseline=before, candidate=after, detail=str(error))
    detail = f"{settings.loss_seeds} seeds, {settings.loss_steps} steps: {check.detail}"
    return LossResult(passed=check.passed, baseline=before, candidate=after, detail=detail)


def _start(
    turn: Turn, both: Sequence[Candidate], stack: contextlib.ExitStack
) -> dict[str, ArmProcess]:
    """Start, at the same time, the arms that have a curve to train."""
    arms = {}
    for candidate in both:
        keys = (_key(turn, candidate, seed) for seed in range(turn.settings.loss_seeds))
        if not all(turn.holds(KIND, key) for key in keys):
            arm = ArmProcess(turn.arms.spec(candidate, factory=SHRUNK_FACTORY))
            stack.callback(arm.close)
            arm.begin_start()
            arms[candidate.key()] = arm
    for arm in arms.values():
        arm.finish_start()
    return arms


def _curves(
    turn: Turn, both: Sequence[Candidate], arms: dict[str, ArmProcess], seed: int
) -> dict[str, list[float]]:
    steps = turn.settings.loss_steps
    for candidate in both:
        if not turn.holds(KIND, _key(turn, candidate, seed)):
            turn.tell("losses", title=candidate.title, seed=seed)
            arms[candidate.key()].begin_call("curve", seed=seed, steps=steps)
    return {
        candidate.key(): turn.memo(
            KIND,
            _key(turn, candidate, seed),
            list[float],
            lambda: arms[candidate.key()].finish_call(),  # noqa: B023
        )
        for candidate in both
    }


def _key(turn: Turn, candidate: Candidate, seed: int) -> str:
    return f"{candidate.key()}:{seed}:{turn.settings.loss_steps}"
