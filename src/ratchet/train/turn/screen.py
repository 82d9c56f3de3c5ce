"""Screen a challenger: its gradients, its time beside the incumbent's, and its losses."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from ratchet.base.errors import DeviceLost, JudgeError, OutOfTime, RatchetError
from ratchet.base.measure import Sample
from ratchet.base.measure.estimate import compare
from ratchet.base.measure.rounds import FEWEST_ROUNDS, run_rounds
from ratchet.base.measure.sitting import TimedTogether
from ratchet.judge.revision import revision
from ratchet.judge.steps.arms import ArmProcess
from ratchet.judge.steps.numerics import judge_gradients, judge_losses
from ratchet.train.recipe import Candidate
from ratchet.train.recipe.facts import ArmFacts
from ratchet.train.recipe.installed import RegionKernel
from ratchet.train.turn import schedule
from ratchet.train.turn.arm import SHRUNK_FACTORY
from ratchet.train.turn.optimize_result import GradientResult, LossResult
from ratchet.train.turn.schedule import (
    FEWEST_SETTLING,
    MARGIN,
    MOST_SCREENED_ROUNDS,
    SETTLING,
    SETTLING_STEPS,
    WARMUP_STEPS,
    together_s,
)
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.config import REPLAYING

METHOD = "pooled, steps of one's own compared"
"""Method of screening; another method does not recall the screenings of this one."""
FEWEST_COMPARED, MOST_COMPARED, RUNS_COMPARED = 2, 20, 4
"""Steps of a user's own that are compared with what they do as written, and runs of each."""
HOPELESS, HOPELESS_ROUNDS = 4.0, 2
"""Ratio of step times above which a challenger is timed for only this many rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverScreening:
    """The result of one launch of a challenger against the incumbent."""

    passed: bool  # True if it started and its gradients are right; says nothing about speed
    reason: str = ""
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    answer: str = "undecided"
    step_time_s: float = 0.0
    setup_s: float = 0.0
    worst_parameter: str = ""
    worst_ratio: float = 0.0
    incumbent_step_s: float = 0.0
    unused: Sequence[str] = ()
    """The challenger's region kernels, by name in its config, that served no call of its step."""
    samples: tuple[Sample, ...] = ()
    processes: Mapping[str, str] = field(default_factory=dict)
    """The name of the process behind each arm that was timed."""
    ways: Mapping[str, str] = field(default_factory=dict)
    """The key of what each arm runs; older screenings have its name say it."""

    @property
    def looks_faster(self) -> bool:
        return self.passed and self.ratio > 1.0 and self.answer != "slower"

    def as_timed(self) -> TimedTogether:
        ways = {arm: self.ways.get(arm, arm) for arm in self.processes}
        return TimedTogether(samples=self.samples, processes=self.processes, ways=ways)


@dataclass(frozen=True, kw_only=True, slots=True)
class Oracle:
    """The gradients that decide: the fp32 reference, and the precision whose error is allowed."""

    reference: Candidate
    allowed: Candidate


def check_gradients(turn: Turn, candidate: Candidate, oracle: Oracle) -> GradientResult:
    """Check a candidate's first-step gradients against the oracle's; remembered in the ledger."""
    key = gradients_key(candidate, oracle)
    return turn.memo(
        "gradients", key, GradientResult, lambda: judge_candidate(turn, candidate, oracle)
    )


def judge_candidate(turn: Turn, candidate: Candidate, oracle: Oracle) -> GradientResult:
    """Compare the gradients that a candidate's latest process wrote with the oracle's."""
    check = judge_gradients(
        reference=_gradients(turn, oracle.reference),
        baseline=_gradients(turn, oracle.allowed),
        candidate=_gradients(turn, candidate),
    )
    return GradientResult(
        **{name: getattr(check, name) for name in GradientResult.__struct_fields__}
    )


def gradients_key(candidate: Candidate, oracle: Oracle) -> str:
    """Return the key of the answer in the ledger, which is of this revision of the judge."""
    asked = (candidate.key(), oracle.reference.key(), oracle.allowed.key(), revision())
    return ":".join(asked)


def screen(
    turn: Turn, incumbent: Candidate, challenger: Candidate, oracle: Oracle | None
) -> LeverScreening:
    """Check a challenger's gradients, then time it beside the incumbent; remembered in the ledger.

    Raises OutOfTime if the current stage ends first.
    """
    key = _key(incumbent, challenger, oracle)
    screening = turn.memo(
        "screening", key, LeverScreening, lambda: _screen(turn, incumbent, challenger, oracle)
    )
    turn.costs.note_step(challenger, screening.step_time_s)
    turn.costs.note_step(incumbent, screening.incumbent_step_s)
    turn.tell("screened", title=challenger.title, ratio=screening.ratio, answer=screening.answer)
    return screening


def expect(
    turn: Turn,
    incumbent: Candidate,
    challenger: Candidate,
    oracle: Oracle | None,
    *beside: Candidate,
) -> None:
    """Let the arms of the next screening start, and those `beside` it, without waiting for them."""
    if not turn.holds("screening", _key(incumbent, challenger, oracle)):
        turn.arms.begin([incumbent, challenger, *beside])


def screening_s(
    turn: Turn, incumbent: Candidate, challenger: Candidate, oracle: Oracle | None
) -> float:
    """Estimate the seconds of a screening from starts and steps so far; 0 if already known."""
    if turn.holds("screening", _key(incumbent, challenger, oracle)):
        return 0.0
    both = (incumbent, challenger)
    costs, arms = turn.costs, [one for one in both if not turn.arms.is_live(one)]
    started_s = together_s(map(costs.restart_s, arms), costs.at_a_time)
    if oracle is not None:
        again = [one for one in both if turn.arms.will_restart(one)]
        started_s += together_s(map(costs.warm_s, again), costs.at_a_time)
    return MARGIN * started_s + _timing_s(turn, incumbent, challenger)


def new_screening_s(turn: Turn, incumbent: Candidate) -> float:
    """Estimate the seconds to screen a challenger that torch.compile has not compiled yet."""
    costs = turn.costs
    starts_s = [costs.compiled_s(incumbent)]
    if not turn.arms.is_live(incumbent):
        starts_s.append(costs.restart_s(incumbent))
    started_s = together_s(starts_s, costs.at_a_time)
    started_s += together_s([costs.warm_s(incumbent)] * 2, costs.at_a_time)
    return MARGIN * started_s + _timing_s(turn, incumbent, incumbent)


def _timing_s(turn: Turn, incumbent: Candidate, challenger: Candidate) -> float:
    pair_s = turn.costs.step_s(incumbent) + turn.costs.step_s(challenger)
    fewest_s = (FEWEST_ROUNDS + FEWEST_SETTLING + WARMUP_STEPS) * pair_s
    return max(turn.schedule.screening_s, fewest_s)


def _key(incumbent: Candidate, challenger: Candidate, oracle: Oracle | None) -> str:
    judged_by = oracle.allowed.key() if oracle else "none"
    return f"{incumbent.key()}:{challenger.key()}:{judged_by}:{METHOD}"


def _screen(
    turn: Turn, incumbent: Candidate, challenger: Candidate, oracle: Oracle | None
) -> LeverScreening:
    turn.arms.live(incumbent)
    try:
        check = _checked(turn, incumbent, challenger, oracle) if oracle is not None else None
        if check is not None and not check.passed:
            turn.arms.drop(challenger)
            setup_s = turn.costs.setup_s(challenger)
            reason = f"gradients: {check.detail}"
            return LeverScreening(passed=False, reason=reason, setup_s=setup_s)
        if differs := _difference(turn, challenger):
            turn.arms.drop(challenger)
            return LeverScreening(passed=False, reason=differs)
    except (OutOfTime, DeviceLost):
        raise
    except RatchetError as error:
        turn.arms.drop(challenger)
        return LeverScreening(passed=False, reason=str(error))
    base, arm = turn.arms.live(incumbent), turn.arms.live(challenger)
    with turn.arms.quiet(), turn.schedule.doing(schedule.TIMING):
        samples = _timed(turn, base, arm)
    found = compare(samples, baseline=base.name, new=arm.name, floor=None)

    def median_s(name: str) -> float:
        return float(np.median([one.wall_time_s for one in samples if one.arm == name]))

    return LeverScreening(
        passed=True,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        answer=found.answer or "undecided",
        step_time_s=median_s(arm.name),
        incumbent_step_s=median_s(base.name),
        setup_s=turn.costs.setup_s(challenger),
        worst_parameter=check.worst_parameter if check is not None else "",
        worst_ratio=check.worst_ratio if check is not None else 0.0,
        unused=unused_regions(challenger, msgspec.convert(arm.describe(), ArmFacts)),
        samples=tuple(samples),
        processes={one.name: one.identity for one in (base, arm)},
        ways={base.name: incumbent.key(), arm.name: challenger.key()},
    )


def _timed(turn: Turn, base: ArmProcess, arm: ArmProcess) -> list[Sample]:
    """Time two warm arms in pairs, for as long as a screening may."""
    screening_s = turn.schedule.screening_s
    enough = turn.schedule.alarm(MARGIN * screening_s)
    base_s, arm_s = _settled_s([base, arm], SETTLING.of(screening_s))
    return run_rounds(
        [base, arm],
        rounds=rounds_for(base_s, arm_s, (1 - SETTLING.share) * screening_s),
        launch=0,
        rng=np.random.default_rng(turn.settings.seed),
        enough=enough,
    )


def _checked(
    turn: Turn, incumbent: Candidate, challenger: Candidate, oracle: Oracle
) -> GradientResult:
    """Check the gradients; those of code that compiled itself are checked from the cache too."""
    turn.arms.live(challenger)
    check = check_gradients(turn, challenger, oracle)
    if check.passed and challenger in turn.arms.restart_compiled((incumbent, challenger)):
        turn.arms.live(challenger)
        check = judge_candidate(turn, challenger, oracle)
    return check


def _difference(turn: Turn, challenger: Candidate) -> str:
    """Return the first difference of a user's own step from the step as written; empty if none.

    As many steps are compared as take the time of a screening; each runs up to four times.
    """
    step_s = turn.costs.step_s(challenger)
    fitting = int(turn.schedule.screening_s / (RUNS_COMPARED * max(step_s, 1e-6)))
    calls = max(FEWEST_COMPARED, min(MOST_COMPARED, fitting))
    return str(turn.arms.live(challenger).call("difference", calls=calls))


def _settled_s(arms: Sequence[ArmProcess], limit_s: float) -> list[float]:
    """Run new arms until their steps are as fast as they get; return each arm's fastest step."""
    first_s = [[arm.run(1).wall_time_s for arm in arms] for _ in range(FEWEST_SETTLING)]
    fastest_s = [min(times_s) for times_s in zip(*first_s, strict=True)]
    spent_s = sum(map(sum, first_s))
    while spent_s < limit_s and any(arm.steps < SETTLING_STEPS for arm in arms):
        for place, arm in enumerate(arms):
            if arm.steps < SETTLING_STEPS:
                step_s = arm.run(1).wall_time_s
                fastest_s[place] = min(step_s, fastest_s[place])
                spent_s += step_s
    return fastest_s


def unused_regions(candidate: Candidate, told: ArmFacts) -> list[str]:
    """Return a candidate's region kernels that served no call, by their name in its config.

    `told` describes its arm after a step. Another change may have taken the region out of the
    step's graphs.
    """
    regions = (one for one in candidate.kernels if isinstance(one, RegionKernel))
    return [one.library for one in regions if not told.region_calls.get(one.library)]


def rounds_for(incumbent_s: float, challenger_s: float, budget_s: float) -> int:
    """Return the number of rounds that fit in a budget, between the fewest and the most.

    A hopelessly slow challenger gets two rounds, because it cannot look faster.
    """
    if challenger_s > HOPELESS * incumbent_s:
        return HOPELESS_ROUNDS
    round_s = max(incumbent_s + challenger_s, 1e-6)
    return min(MOST_SCREENED_ROUNDS, max(FEWEST_ROUNDS, math.floor(budget_s / round_s)))


def _gradients(turn: Turn, candidate: Candidate) -> Path:
    path = turn.arms.gradients_path(candidate)
    if not path.exists():
        turn.arms.live(candidate)
        turn.arms.drop(candidate)
    return path


# Compare loss curves: after a change of arithmetic, small copies must learn as well as before.

KIND = "loss-curve"


Arithmetic = tuple[str, str, str]
"""A step's precision, its fp32 products and its linear layers' products."""


def arithmetic_of(candidate: Candidate) -> Arithmetic:
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
        losses = self.of(candidate)
        return losses.detail if losses else "the budget ended before its losses were compared"

    def needed_s(self, candidate: Candidate) -> float | None:
        """Estimate the comparison, if the candidate needs one that was not made."""
        if self.may_keep(candidate) or self._key(candidate) in self.found:
            return None
        return self.takes_s(candidate)

    def accept(self, candidate: Candidate) -> bool:
        """Compare the losses if need be; return True if the candidate may be kept."""
        if self.needed_s(candidate) is not None:
            self.found[self._key(candidate)] = self._compared(candidate)
        return self.may_keep(candidate)

    def _key(self, candidate: Candidate) -> tuple[Arithmetic, bool]:
        return arithmetic_of(candidate), self.replays(candidate)

    def takes_s(self, candidate: Candidate) -> float:
        """Estimate the seconds of its comparison from the starts and steps so far."""
        steps = self.turn.settings.loss_seeds * self.turn.settings.loss_steps
        return self.turn.costs.losses_s(self.written, candidate, steps)

    def _compared(self, candidate: Candidate) -> LossResult | None:
        turn, what = self.turn, schedule.LATE_LOSSES.what
        if not turn.schedule.may_start(schedule.LOSSES, self.takes_s(candidate)):
            turn.leave_out(what, schedule.NO_ROOM)
            return None
        try:
            return self._compare(candidate)
        except OutOfTime:
            turn.leave_out(what, "the budget ended during it")
            return None

    def _compare(self, candidate: Candidate) -> LossResult:
        """Train shrunk copies on the same seeds and data both ways; the judge compares the losses.

        Both ways train at the same time, each on one thread. Each curve is remembered separately.
        """
        settings, both = self.turn.settings, (self.written, candidate)
        curves: dict[str, list[list[float]]] = {one.key(): [] for one in both}
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.turn.schedule.doing(schedule.LEARNING))
            arms = self._start(both, stack)
            for seed in range(settings.loss_seeds):
                for key, curve in self._curves(both, arms, seed).items():
                    curves[key].append(curve)
        before, after = curves[self.written.key()], curves[candidate.key()]
        try:
            check = judge_losses(baseline=before, candidate=after)
        except JudgeError as error:  # the step as written diverges
            return LossResult(passed=False, baseline=before, candidate=after, detail=str(error))
        detail = f"{settings.loss_seeds} seeds, {settings.loss_steps} steps: {check.detail}"
        return LossResult(passed=check.passed, baseline=before, candidate=after, detail=detail)

    def _start(
        self, both: Sequence[Candidate], stack: contextlib.ExitStack
    ) -> dict[str, ArmProcess]:
        """Start, at the same time, the arms that have a curve to train."""
        turn, arms = self.turn, {}
        for candidate in both:
            keys = (self._curve(candidate, seed) for seed in range(turn.settings.loss_seeds))
            if not all(turn.holds(KIND, key) for key in keys):
                arm = ArmProcess(turn.arms.spec(candidate, factory=SHRUNK_FACTORY))
                stack.callback(arm.close)
                arm.begin_start()
                arms[candidate.key()] = arm
        for arm in arms.values():
            arm.finish_start()
        return arms

    def _curves(
        self, both: Sequence[Candidate], arms: dict[str, ArmProcess], seed: int
    ) -> dict[str, list[float]]:
        turn, steps = self.turn, self.turn.settings.loss_steps
        for candidate in both:
            if not turn.holds(KIND, self._curve(candidate, seed)):
                turn.tell("losses", title=candidate.title, seed=seed)
                arms[candidate.key()].begin_call("curve", seed=seed, steps=steps)
        return {
            candidate.key(): turn.memo(
                KIND,
                self._curve(candidate, seed),
                list[float],
                lambda: arms[candidate.key()].finish_call(),  # noqa: B023
            )
            for candidate in both
        }

    def _curve(self, candidate: Candidate, seed: int) -> str:
        """Return the key of a curve in the ledger."""
        return f"{candidate.key()}:{seed}:{self.turn.settings.loss_steps}"
