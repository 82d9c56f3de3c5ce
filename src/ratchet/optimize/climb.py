"""The climb: from the best rival to the best proven config, one kept change after another.

The bundle of everything expected to help is tried first, so that a small budget still ends with
a good recipe; then each change is taken out of it in turn. What the step is no slower without is
dropped, and the difference it made is what the report says it gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.optimize.baseline import oracle_for
from ratchet.optimize.candidate import Candidate, with_config
from ratchet.optimize.installed import InstalledKernel
from ratchet.optimize.levers import Lever, Situation
from ratchet.optimize.levers.kernels import PREFIX
from ratchet.optimize.result import Change, Decision
from ratchet.optimize.screen import Screening, expect, screen
from ratchet.optimize.turn import Turn
from ratchet.workloads.config import StepConfig

KEPT_WITHOUT_PROOF = "kept with the bundle; the budget ended before it was tried alone"


@dataclass(frozen=True, kw_only=True, slots=True)
class Climb:
    """Where the climb ended, and what became of every lever."""

    best: Candidate
    changes: tuple[Change, ...]


@dataclass(kw_only=True)
class Climber:
    """One climb in one arithmetic."""

    turn: Turn
    situation: Situation
    proven: dict[str, tuple[InstalledKernel, ...]]
    until_share: float
    """Share of the turn's budget that may be spent when the climb ends."""

    def climb(self, start: Candidate, levers: Sequence[Lever]) -> Climb:
        """Try the bundle, then each lever out of it, then each other lever on top."""
        changes: list[Change] = []
        levers = self._decided_by_start(start, levers, changes)
        bundle: Sequence[Lever] = [lever for lever in levers if lever.default]
        best = self._climb_bundle(start, bundle, changes)
        best = self._add(best, [lever for lever in levers if not lever.default], changes)
        return Climb(best=best, changes=tuple(changes))

    def _climb_bundle(
        self, start: Candidate, bundle: Sequence[Lever], changes: list[Change]
    ) -> Candidate:
        """The bundle whole; where that fails, without what changes the arithmetic; else singly."""
        careful = [lever for lever in bundle if not lever.changes_arithmetic]
        whole = self._all_of(start, bundle)
        if whole.key() == start.key():
            return start
        screening = self._screen(start, whole)
        if screening.looks_faster:
            return self._leave_out(start, whole, bundle, changes)
        self.turn.drop(whole)
        if 0 < len(careful) < len(bundle):
            same = self._all_of(start, careful)
            if same.key() != start.key() and self._screen(start, same).looks_faster:
                reason = screening.reason or "not faster with everything else"
                decision: Decision = "dropped" if screening.passed else "refused"
                for lever in bundle:
                    if lever.changes_arithmetic:
                        changes.append(_change(lever, decision, reason, screening))
                return self._leave_out(start, same, careful, changes)
            self.turn.drop(same)
        return self._add(start, bundle, changes)

    def _all_of(self, start: Candidate, levers: Sequence[Lever]) -> Candidate:
        config = start.config
        for lever in levers:
            config = lever.set(config, self.situation)
        return self._candidate(config)

    def _candidate(self, config: StepConfig) -> Candidate:
        return with_config(config, self.proven)

    def _screen(self, incumbent: Candidate, challenger: Candidate) -> Screening:
        oracle = oracle_for(self._written(), challenger.config)
        return screen(self.turn, incumbent, challenger, oracle)

    def _written(self) -> Candidate:
        return with_config(self.situation.written, {})

    def _leave_out(
        self, start: Candidate, best: Candidate, bundle: Sequence[Lever], changes: list[Change]
    ) -> Candidate:
        """Take each lever out of the bundle; drop those that the step is no slower without."""
        waiting = [lever for lever in bundle if not self._same(lever, start, best)]
        for place, lever in enumerate(waiting):
            without = self._candidate(self._without(lever, best.config, start.config))
            if without.key() == best.key():
                continue
            if not self.turn.left_s(self.until_share):
                changes.append(_change(lever, "kept", KEPT_WITHOUT_PROOF))
                continue
            self._expect(best, [without, *self._next_without(waiting[place + 1 :], best, start)])
            screening = self._screen(best, without)
            if screening.passed and screening.low > 1.0:
                changes.append(
                    _change(lever, "dropped", "the step is faster without it", screening)
                )
                self.turn.drop(best)
                best = without
            else:
                reason = screening.reason or "the step is not faster without it"
                changes.append(_change(lever, "kept", reason, screening, inverted=True))
                self.turn.drop(without)
        return best

    def _next_without(
        self, levers: Sequence[Lever], best: Candidate, start: Candidate
    ) -> list[Candidate]:
        """The candidate that is tried after this one, if this one changes nothing."""
        for lever in levers:
            candidate = self._candidate(self._without(lever, best.config, start.config))
            if candidate.key() != best.key():
                return [candidate]
        return []

    def _expect(self, incumbent: Candidate, challengers: Sequence[Candidate]) -> None:
        oracle = oracle_for(self._written(), incumbent.config)
        expect(self.turn, [(incumbent, one) for one in challengers], oracle)

    def _without(self, lever: Lever, config: StepConfig, start: StepConfig) -> StepConfig:
        """The config with what this lever changed put back to what the climb started from."""
        if lever.name.startswith(PREFIX):
            return lever.unset(config, self.situation)
        pulled = lever.set(start, self.situation)
        names = type(start).model_fields
        changed = {n: getattr(start, n) for n in names if getattr(pulled, n) != getattr(start, n)}
        return config.model_copy(update=changed)

    def _decided_by_start(
        self, start: Candidate, levers: Sequence[Lever], changes: list[Change]
    ) -> list[Lever]:
        """Leave out the compile modes when the start is compiled: the rivals decided them."""
        mode = start.config.compile_mode
        if mode is None:
            return list(levers)
        chosen = []
        for lever in levers:
            if lever.set(StepConfig(), self.situation).compile_mode is None:
                chosen.append(lever)
                continue
            kept = lever.set(start.config, self.situation) == start.config
            reason = "the fastest of torch.compile's modes" if kept else "another mode was faster"
            changes.append(_change(lever, "kept" if kept else "dropped", reason))
        return chosen

    def _held(self, lever: Lever, config: StepConfig) -> bool:
        """Whether the setting this lever would change was already changed from what was written."""
        written = self.situation.written
        pulled = lever.set(config, self.situation)
        return any(
            getattr(pulled, name) != getattr(config, name)
            and getattr(config, name) != getattr(written, name)
            and name != "kernels"
            for name in type(config).model_fields
        )

    def _same(self, lever: Lever, start: Candidate, best: Candidate) -> bool:
        """A lever that the start already had pulled: it is part of the rival, not of the gain."""
        return lever.set(start.config, self.situation) == start.config

    def _add(self, best: Candidate, levers: Sequence[Lever], changes: list[Change]) -> Candidate:
        """Pull each lever on top of the best; keep those that look faster."""
        for lever in levers:
            candidate = self._candidate(lever.set(best.config, self.situation))
            if candidate.key() == best.key():
                continue
            if self._held(lever, best.config):
                changes.append(_change(lever, "not_tried", "another lever holds this setting"))
                continue
            if not self.turn.left_s(self.until_share):
                changes.append(_change(lever, "not_tried", "the budget ended before it"))
                continue
            screening = self._screen(best, candidate)
            if not screening.passed:
                changes.append(_change(lever, "refused", screening.reason))
            elif screening.ratio > 1.0 and screening.low > 1.0:
                changes.append(_change(lever, "kept", "faster on top of the rest", screening))
                self.turn.drop(best)
                best = candidate
            else:
                changes.append(
                    _change(lever, "dropped", "not faster on top of the rest", screening)
                )
                self.turn.drop(candidate)
        return best


def applicable(
    levers: Sequence[Lever],
    situation: Situation,
    *,
    refused_kernels: dict[str, str],
    keep_arithmetic: bool,
) -> tuple[list[Lever], list[Change]]:
    """The levers that apply, and a `not_applicable` or `refused` change for each other one."""
    chosen: list[Lever] = []
    changes: list[Change] = []
    for lever in levers:
        kernel = lever.name.removeprefix(PREFIX) if lever.name.startswith(PREFIX) else ""
        reason = lever.applies(situation)
        if reason is not None:
            changes.append(_change(lever, "not_applicable", reason))
        elif kernel and kernel in refused_kernels:
            reason = refused_kernels[kernel]
            late = reason.startswith("the budget ended")
            changes.append(_change(lever, "not_tried" if late else "refused", reason))
        elif keep_arithmetic and lever.changes_arithmetic:
            changes.append(_change(lever, "not_applicable", "it changes the arithmetic"))
        else:
            chosen.append(lever)
    return chosen, changes


def _change(
    lever: Lever,
    decision: Decision,
    reason: str,
    screening: Screening | None = None,
    *,
    inverted: bool = False,
) -> Change:
    """A report line; `inverted` when the screening timed the step without the lever."""
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
    )
