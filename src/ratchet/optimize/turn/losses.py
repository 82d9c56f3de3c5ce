"""Compare loss curves: after a change of arithmetic, small copies must learn as well as before."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ratchet.base.errors import JudgeError
from ratchet.judge.steps.arms import ArmProcess
from ratchet.judge.steps.numerics import judge_losses
from ratchet.optimize.arm import SHRUNK_FACTORY
from ratchet.optimize.step.candidate import Candidate
from ratchet.optimize.turn.costs import together_s
from ratchet.optimize.turn.result import LossResult
from ratchet.optimize.turn.state import Turn

KIND = "loss-curve"
SHRUNK_STEP_S = 0.02
"""Upper limit of the assumed step time of a shrunk copy, which may also be the step's own time."""
SHRUNK_COMPILE = 0.8
"""Ratio of the compile times of a shrunk copy and the step: 21 s to 32 for llama-8m."""


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


def comparison_s(turn: Turn, baseline: Candidate, candidate: Candidate) -> float:
    """Estimate the seconds that the comparison takes from the starts and steps so far.

    The copies compile from scratch, because their shapes differ.
    """
    settings, costs = turn.settings, turn.costs
    step_s = min(SHRUNK_STEP_S, costs.step_s(candidate))
    curves_s = settings.loss_seeds * settings.loss_steps * step_s
    at_a_time = costs.at_a_time
    plain_s = costs.plain_s
    compiled_s = plain_s + SHRUNK_COMPILE * (costs.compiled_s(candidate) - plain_s)
    started_s = together_s([costs.restart_s(baseline), compiled_s], at_a_time)
    return started_s + curves_s * 2 / at_a_time


def _start(
    turn: Turn, both: Sequence[Candidate], stack: contextlib.ExitStack
) -> dict[str, ArmProcess]:
    """Start, at the same time, the arms that have a curve to train."""
    arms = {}
    for candidate in both:
        keys = (_key(turn, candidate, seed) for seed in range(turn.settings.loss_seeds))
        if not all(turn.holds(KIND, key) for key in keys):
            arm = ArmProcess(turn.spec(candidate, factory=SHRUNK_FACTORY))
            stack.callback(arm.close)
            arm.begin_start()
            arms[candidate.key()] = arm
    for arm in arms.values():
        arm.finish_start()
    return arms


def _curves(
    turn: Turn, both: Sequence[Candidate], arms: dict[str, ArmProcess], seed: int
) -> dict[str, list[float]]:
    """Return each candidate's losses for a seed, by its key."""
    steps = turn.settings.loss_steps
    for candidate in both:
        if not turn.holds(KIND, _key(turn, candidate, seed)):
            turn.tell("losses", title=candidate.title, seed=seed)
            arms[candidate.key()].begin_call("curve", seed=seed, steps=steps)
    return {
        candidate.key(): turn.memo(
            KIND,
            _key(turn, candidate, seed),
            lambda: {"losses": arms[candidate.key()].finish_call()},  # noqa: B023
        )["losses"]
        for candidate in both
    }


def _key(turn: Turn, candidate: Candidate, seed: int) -> str:
    return f"{candidate.key()}:{seed}:{turn.settings.loss_steps}"
