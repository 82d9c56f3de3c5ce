"""The loss-curve gate: where the arithmetic changes, small copies must learn as well as before."""

from __future__ import annotations

from typing import Any

from ratchet.judge.arms import ArmProcess
from ratchet.judge.numerics import judge_losses
from ratchet.optimize.arm import SHRUNK_FACTORY
from ratchet.optimize.candidate import Candidate
from ratchet.optimize.result import LossResult
from ratchet.optimize.turn import Turn


def compare_losses(turn: Turn, baseline: Candidate, candidate: Candidate) -> LossResult:
    """Train shrunk copies on the same seeds and data both ways; the judge compares the ends."""
    settings = turn.settings
    before = _curves(turn, baseline)
    after = _curves(turn, candidate)
    check = judge_losses(baseline=before, candidate=after)
    detail = f"{settings.loss_seeds} seeds, {settings.loss_steps} steps: {check.detail}"
    return LossResult(passed=check.passed, baseline=before, candidate=after, detail=detail)


def _curves(turn: Turn, candidate: Candidate) -> list[list[float]]:
    """One loss curve a seed, each remembered by itself."""
    settings = turn.settings
    curves: list[list[float]] = []
    arm: ArmProcess | None = None
    try:
        for seed in range(settings.loss_seeds):
            key = f"{candidate.key()}:{seed}:{settings.loss_steps}"
            known = turn.known("loss-curve", key)
            if known is None:
                if arm is None:
                    arm = ArmProcess(turn.spec(candidate, factory=SHRUNK_FACTORY))
                    arm.__enter__()
                turn.tell("losses", title=candidate.title, seed=seed)
                known = turn.memo("loss-curve", key, lambda: _curve(turn, arm, seed))  # noqa: B023
            curves.append([float(value) for value in known["losses"]])
    finally:
        if arm is not None:
            arm.close()
    return curves


def _curve(turn: Turn, arm: ArmProcess, seed: int) -> dict[str, Any]:
    return {"losses": arm.call("curve", seed=seed, steps=turn.settings.loss_steps)}
