"""Steer a turn by its profile: compute what each lever could win, and the distance to the limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.base.errors import DeadlinePassed
from ratchet.base.files import copy_whole
from ratchet.optimize.levers import Situation, all_levers
from ratchet.optimize.step.candidate import Candidate
from ratchet.optimize.turn.costs import MARGIN
from ratchet.optimize.turn.explain import explain
from ratchet.optimize.turn.keep import Kept
from ratchet.optimize.turn.limit import limit_of, too_small, winnable_s
from ratchet.optimize.turn.result import ArmKey, StepLimit, StepProfile
from ratchet.optimize.turn.rivals import Baseline
from ratchet.optimize.turn.schedule import NO_ROOM, PROFILE_SHARE, READ_S
from ratchet.optimize.turn.state import Turn
from ratchet.workloads.config import StepConfig

PROFILED_STEPS = 2
AUTOTUNE = "compile-max-autotune"


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """The most that each lever can win of a step."""

    by_lever: dict[str, float | None] = field(default_factory=dict)
    """Seconds by lever name; None if the profile cannot tell."""
    step_time_s: float = 0.0


class Steering:
    """Takes profiles where the budget has room, and derives limits and gains from them."""

    def __init__(self, turn: Turn, situation: Situation) -> None:
        self.turn, self.situation = turn, situation
        self._profiles: dict[str, StepProfile | None] = {}

    def profile(self, candidate: Candidate, when: str) -> StepProfile | None:
        """Return a candidate's profile; None if the budget has no room for it."""
        key = candidate.key()
        if key not in self._profiles:
            self._profiles[key] = self._profile(candidate, when)
        return self._profiles[key]

    def before(self, written: Candidate) -> StepProfile | None:
        """Return the profile of the step as written, if one was taken."""
        return self._profiles.get(written.key())

    def _profile(self, candidate: Candidate, when: str) -> StepProfile | None:
        turn, path = self.turn, self.turn.settings.out.resolve() / f"trace_{when}.json.gz"

        def compute() -> dict[str, Any]:
            turn.tell("profile", title=candidate.title)
            arm, began_s = turn.live(candidate), turn.elapsed_s
            told = arm.call("profile", path=str(path), steps=PROFILED_STEPS)
            system_s = float(told.get("system_s", 0.0))
            found = explain(path, PROFILED_STEPS, turn.device, turn.ceilings, system_s)
            turn.costs.profile_s = max(turn.costs.profile_s, turn.elapsed_s - began_s)
            return found.model_dump(mode="json")

        if not (turn.holds("explain", candidate.key()) or self._affordable(candidate, when)):
            turn.leave_out(f"a profile of {candidate.title}", NO_ROOM)
            return None
        try:
            found = StepProfile.model_validate(turn.memo("explain", candidate.key(), compute))
            if _has_trace(found, path):
                return found.model_copy(update={"trace": str(path)})
            return StepProfile.model_validate(turn.renew("explain", candidate.key(), compute))
        except DeadlinePassed:
            turn.leave_out(f"a profile of {candidate.title}", "the budget ended during it")
            return None

    def _affordable(self, candidate: Candidate, when: str) -> bool:
        """Return True if a profile fits: the last may take all the time left, others a share."""
        turn = self.turn
        start_s = 0.0 if turn.is_live(candidate) else turn.costs.setup_s(candidate)
        steps_s = 2 * PROFILED_STEPS * turn.costs.step_s(candidate)
        needed_s = MARGIN * start_s + max(turn.costs.profile_s, steps_s + READ_S)
        return needed_s <= turn.left_s() * (1.0 if when == "after" else PROFILE_SHARE)

    def rule_out(self, best: Candidate, config: StepConfig) -> str | None:
        """Return the reason to skip max-autotune: by the profile it has too little to win."""
        if config.compile_mode != "max-autotune" or best.config.precision != config.precision:
            return None
        worth = self._worth_of(best)
        return too_small(AUTOTUNE, worth.by_lever, worth.step_time_s)

    def worth(self, baseline: Baseline) -> Worth:
        """Return what each lever can win of the step that the climb begins with."""
        self.profile(baseline.written, "before")
        return self._worth_of(baseline.best)

    def _worth_of(self, candidate: Candidate) -> Worth:
        profile = self.profile(candidate, "rival")
        limit = self._limit(candidate, profile, "best_compile")
        if profile is None or limit is None or self.turn.ceilings is None:
            return Worth()
        found = {
            name: winnable_s(lever, limit, profile, self.turn.ceilings)
            for name, lever in all_levers().items()
        }
        return Worth(by_lever=found, step_time_s=limit.step_time_s)

    def limit_after(
        self, baseline: Baseline, kept: Kept, after: StepProfile | None
    ) -> StepLimit | None:
        """Return the recipe's limit, or the rival's if the recipe was not profiled.

        Work is equal in equal arithmetic, so the bound of one holds for the other.
        """
        rival = self._limit(baseline.best, self._profiles.get(baseline.best.key()), "best_compile")
        if after is None:
            return rival
        alike = baseline.best.config.precision == kept.recipe.config.precision
        least_s = rival.least_s if rival is not None and alike else 0.0
        step_time_s = None
        if kept.proof.timed("ratchet"):
            step_time_s = float(kept.proof.summary("ratchet").median_s)
        return self._limit(kept.recipe, after, "ratchet", least_s, step_time_s)

    def _limit(
        self,
        candidate: Candidate,
        profile: StepProfile | None,
        arm: ArmKey,
        least_s: float = 0.0,
        step_time_s: float | None = None,
    ) -> StepLimit | None:
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
    """Put the trace of a recalled profile where this turn's own would be, if there is one."""
    kept = Path(found.trace)
    if kept == path:
        return path.is_file()
    try:
        copy_whole(kept, path)
    except OSError:
        return False
    return True
