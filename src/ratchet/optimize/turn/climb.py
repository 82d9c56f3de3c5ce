"""Climb from the best rival to the best proven config, one kept change after another.

The bundle of all changes expected to help comes first, so that even a small budget ends with a good
recipe. Then each change is taken out in turn. A change without which the step is no slower is
dropped; for the others, the report gives the measured difference. Changes with the most time to win
come first, and those with almost none are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.errors import DeadlinePassed
from ratchet.graph.regions.region import REGION
from ratchet.optimize.levers import Lever, Situation
from ratchet.optimize.levers.kernels import PREFIX
from ratchet.optimize.step.candidate import Candidate, with_config
from ratchet.optimize.step.installed import AnyKernel
from ratchet.optimize.turn.baseline import oracle_for
from ratchet.optimize.turn.limit import SMALL_REGION_SHARE, SMALL_SHARE, ranked, too_small
from ratchet.optimize.turn.result import Basis, Change, Decision
from ratchet.optimize.turn.screen import LeverScreening, expect, fits, screen
from ratchet.optimize.turn.state import Turn
from ratchet.workloads.config import StepConfig

IN_BUNDLE = "part of the bundle that was proven whole; the budget ended before it was tried alone"
UNUSED = "its kernel served no call: other changes took the region out of the step's graphs"
NO_TIME = "the budget has no room for it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Climb:
    """The result of a climb: its best candidate and the decision on every lever."""

    best: Candidate
    changes: tuple[Change, ...]


@dataclass(kw_only=True)
class Climber:
    """One climb in one arithmetic."""

    turn: Turn
    situation: Situation
    proven: dict[str, tuple[AnyKernel, ...]]
    modes: frozenset[str] = frozenset()
    """The compile modes that were timed as rivals."""
    worth: dict[str, float | None] = field(default_factory=dict)
    """Upper bound of the seconds of a step that each lever can win, by name; None if unknown."""
    step_time_s: float = 0.0
    """Time of the step that `worth` describes."""

    def climb(self, start: Candidate, levers: Sequence[Lever]) -> Climb:
        """Try the bundle, then the bundle without each lever, then each other lever on top.

        If the turn's stage ends early, so does the climb, and it lists the levers not tried.
        """
        changes: list[Change] = []
        levers = self._decided_by_start(start, levers, changes)
        levers = self._worth_trying(start, levers, changes)
        bundle: Sequence[Lever] = [lever for lever in levers if lever.default]
        best = self._climb_bundle(start, bundle, changes)
        best = self._add(best, [lever for lever in levers if not lever.default], changes)
        found = (one.model_copy(update={"winnable_s": self.worth.get(one.name)}) for one in changes)
        return Climb(best=best, changes=tuple(found))

    def _worth_trying(
        self, start: Candidate, levers: Sequence[Lever], changes: list[Change]
    ) -> list[Lever]:
        """Return the levers that have something to win, most first."""
        chosen = []
        for lever in ranked(levers, self.worth):
            share = SMALL_REGION_SHARE if _is_of_a_region(lever) else SMALL_SHARE
            reason = too_small(lever.name, self.worth, self.step_time_s, least_share=share)
            if reason is not None and not self._same(lever, start):
                changes.append(_change(lever, "not_tried", reason))
            else:
                chosen.append(lever)
        return chosen

    def _climb_bundle(
        self, start: Candidate, bundle: Sequence[Lever], changes: list[Change]
    ) -> Candidate:
        """Try the whole bundle; if that fails, the same-arithmetic part; then single levers."""
        careful = [lever for lever in bundle if not lever.changes_arithmetic]
        whole = self._all_of(start, bundle)
        if whole.key() == start.key():
            return start
        screening = self._screen(start, whole)
        if screening is None:
            changes += [
                _change(lever, "not_tried", NO_TIME)
                for lever in bundle
                if not self._same(lever, start)
            ]
            return start
        if screening.looks_faster:
            return self._leave_out(start, whole, bundle, changes, screening)
        self.turn.drop(whole)
        if 0 < len(careful) < len(bundle):
            same = self._all_of(start, careful)
            found = self._screen(start, same) if same.key() != start.key() else None
            if found is not None and found.looks_faster:
                reason = screening.reason or "not faster with everything else"
                decision: Decision = "dropped" if screening.passed else "refused"
                for lever in bundle:
                    if lever.changes_arithmetic:
                        changes.append(_change(lever, decision, reason, screening))
                return self._leave_out(start, same, careful, changes, found)
            self.turn.drop(same)
        return self._add(start, bundle, changes)

    def _all_of(self, start: Candidate, levers: Sequence[Lever]) -> Candidate:
        config = start.config
        for lever in levers:
            config = lever.set(config, self.situation)
        return self._candidate(config)

    def _candidate(self, config: StepConfig) -> Candidate:
        return with_config(config, self.proven)

    def _screen(self, incumbent: Candidate, challenger: Candidate) -> LeverScreening | None:
        """Return the screening, or None if the stage has no time for it."""
        oracle = oracle_for(self._written(), challenger.config)
        if not fits(self.turn, incumbent, challenger, oracle):
            return None
        try:
            return screen(self.turn, incumbent, challenger, oracle)
        except DeadlinePassed:
            return None

    def _written(self) -> Candidate:
        return with_config(self.situation.written, {})

    def _leave_out(
        self,
        start: Candidate,
        best: Candidate,
        bundle: Sequence[Lever],
        changes: list[Change],
        whole: LeverScreening,
    ) -> Candidate:
        """Take each lever out of the bundle; drop those without which the step is no slower.

        `whole` is the bundle's screening. A kernel that served no call in it is kept only if the
        step is clearly slower without it.
        """
        waiting = [lever for lever in bundle if not self._same(lever, start)]
        for place, lever in enumerate(waiting):
            without = self._candidate(self._without(lever, best.config, start.config))
            if without.key() == best.key():
                continue
            self._expect(best, [without, *self._next_without(waiting[place + 1 :], best, start)])
            screening = self._screen(best, without)
            if screening is None:
                changes.append(_change(lever, "kept", IN_BUNDLE, basis="bundle"))
            elif screening.passed and (
                screening.ratio >= 1.0 or (_is_unused(lever, whole) and screening.high >= 1.0)
            ):
                reason = UNUSED if _is_unused(lever, whole) else "the step is no slower without it"
                changes.append(_change(lever, "dropped", reason, screening, inverted=True))
                self.turn.drop(best)
                best = without
            else:
                changes.append(_kept(lever, screening))
                self.turn.drop(without)
        return best

    def _next_without(
        self, levers: Sequence[Lever], best: Candidate, start: Candidate
    ) -> list[Candidate]:
        """Return the next candidate to try if this one changes nothing."""
        for lever in levers:
            candidate = self._candidate(self._without(lever, best.config, start.config))
            if candidate.key() != best.key():
                return [candidate]
        return []

    def _expect(self, incumbent: Candidate, challengers: Sequence[Candidate]) -> None:
        oracle = oracle_for(self._written(), incumbent.config)
        affordable = [one for one in challengers if fits(self.turn, incumbent, one, oracle)]
        expect(self.turn, [(incumbent, one) for one in affordable], oracle)

    def _without(self, lever: Lever, config: StepConfig, start: StepConfig) -> StepConfig:
        """Return the config with this lever's changes set back to the climb's start."""
        if lever.name.startswith(PREFIX):
            return lever.unset(config, self.situation)
        pulled = lever.set(start, self.situation)
        names = type(start).model_fields
        changed = {n: getattr(start, n) for n in names if getattr(pulled, n) != getattr(start, n)}
        return config.model_copy(update=changed)

    def _decided_by_start(
        self, start: Candidate, levers: Sequence[Lever], changes: list[Change]
    ) -> list[Lever]:
        """Skip the compile modes if the start is compiled, because the rivals decided them."""
        mode = start.config.compile_mode
        if mode is None:
            return list(levers)
        chosen = []
        for lever in levers:
            own = lever.set(StepConfig(), self.situation).compile_mode
            if own is None:
                chosen.append(lever)
                continue
            if own not in self.modes and own != mode:
                changes.append(_change(lever, "not_tried", "it was not timed among the rivals"))
                continue
            kept = lever.set(start.config, self.situation) == start.config
            reason = "the fastest of torch.compile's modes" if kept else "another mode was faster"
            decision: Decision = "kept" if kept else "dropped"
            changes.append(_change(lever, decision, reason, basis="rival" if kept else None))
        return chosen

    def _held(self, lever: Lever, config: StepConfig, start: StepConfig) -> bool:
        """Return True if the setting this lever changes already differs from the written one.

        A kernel may take the place of what the climb's start, a rival, has: its fused optimizer.
        """
        written = start if lever.name.startswith(PREFIX) else self.situation.written
        pulled = lever.set(config, self.situation)
        return any(
            getattr(pulled, name) != getattr(config, name)
            and getattr(config, name) != getattr(written, name)
            and name != "kernels"
            for name in type(config).model_fields
        )

    def _same(self, lever: Lever, start: Candidate) -> bool:
        """Return True if the start already includes the lever: it belongs to the rival."""
        return lever.set(start.config, self.situation) == start.config

    def _add(self, best: Candidate, levers: Sequence[Lever], changes: list[Change]) -> Candidate:
        """Pull each lever on top of the best; keep those that look faster."""
        start = best.config
        for lever in levers:
            candidate = self._candidate(lever.set(best.config, self.situation))
            if candidate.key() == best.key():
                continue
            if self._held(lever, best.config, start):
                changes.append(_change(lever, "not_tried", "another lever holds this setting"))
                continue
            screening = self._screen(best, candidate)
            if screening is None:
                changes.append(_change(lever, "not_tried", NO_TIME))
            elif not screening.passed:
                changes.append(_change(lever, "refused", screening.reason))
            elif screening.ratio > 1.0 and screening.low > 1.0 and not _is_unused(lever, screening):
                reason = "faster on top of the rest"
                changes.append(_change(lever, "kept", reason, screening, basis="alone"))
                self.turn.drop(best)
                best = candidate
            else:
                unused = _is_unused(lever, screening)
                reason = UNUSED if unused else "not faster on top of the rest"
                changes.append(_change(lever, "dropped", reason, screening))
                self.turn.drop(candidate)
        return best


def applicable(
    levers: Sequence[Lever],
    situation: Situation,
    *,
    refused_kernels: dict[str, str],
    keep_arithmetic: bool,
) -> tuple[list[Lever], list[Change]]:
    """Return the levers that apply, and a change with a reason for each of the others."""
    chosen: list[Lever] = []
    changes: list[Change] = []
    for lever in levers:
        kernel = lever.name.removeprefix(PREFIX) if lever.name.startswith(PREFIX) else ""
        reason = lever.applies(situation)
        if reason is not None:
            changes.append(_change(lever, "not_applicable", reason))
        elif kernel and kernel in refused_kernels:
            reason = refused_kernels[kernel]
            late = reason.startswith(("the budget", "at most"))
            changes.append(_change(lever, "not_tried" if late else "refused", reason))
        elif keep_arithmetic and lever.changes_arithmetic:
            changes.append(_change(lever, "not_applicable", "it changes the arithmetic"))
        else:
            chosen.append(lever)
    return chosen, changes


def _is_of_a_region(lever: Lever) -> bool:
    return lever.field == "kernels" and str(lever.value).startswith(REGION)


def _is_unused(lever: Lever, screening: LeverScreening) -> bool:
    """Return True if the lever installs a region's kernel that served no call."""
    return lever.field == "kernels" and lever.value in screening.unused


def _kept(lever: Lever, screening: LeverScreening) -> Change:
    """Keep a lever in the bundle; the step's time without it determines the reason."""
    if not screening.passed:
        return _change(lever, "kept", f"without it: {screening.reason}", basis="bundle")
    if screening.high < 1.0:
        reason = "the step is slower without it"
        return _change(lever, "kept", reason, screening, inverted=True, basis="alone")
    reason = "part of the bundle that was proven whole; no clear difference without it alone"
    return _change(lever, "kept", reason, screening, inverted=True, basis="bundle")


def _change(
    lever: Lever,
    decision: Decision,
    reason: str,
    screening: LeverScreening | None = None,
    *,
    inverted: bool = False,
    basis: Basis | None = None,
) -> Change:
    """Make a report line; `inverted` if the screening timed the step without the lever."""
    figures: tuple[float | None, float | None, float | None] = (None, None, None)
    if screening is not None and screening.passed:
        figures = (screening.ratio, screening.low, screening.high)
        if inverted:
            figures = (1 / screening.ratio, 1 / screening.high, 1 / screening.low)
    return Change(
        name=lever.name,
        kind="kernel" if lever.name.startswith(PREFIX) else "lever",
        decision=decision,
        ratio=figures[0],
        low=figures[1],
        high=figures[2],
        reason=reason,
        expected=lever.expected,
        source=lever.source,
        changes_arithmetic=lever.changes_arithmetic,
        basis=basis,
    )
