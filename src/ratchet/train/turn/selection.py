"""Select levers stepwise: all as one bundle, then each out of it, then others on top.

The bundle of all changes that may help comes first, so that even a small budget ends with a good
recipe. Then each change is taken out in turn. A change without which the step is no slower is
dropped; for the others, the report gives the measured difference. Changes with the most time to win
come first, and those with almost none are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ratchet.base.errors import OutOfTime
from ratchet.train.graph.regions import REGION
from ratchet.train.levers import PREFIX, Lever, Situation
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.recipe.installed import AnyKernel
from ratchet.train.turn.headroom import SMALL_REGION_SHARE, SMALL_SHARE, Worth
from ratchet.train.turn.optimize_result import Basis, Change, Decision
from ratchet.train.turn.rivals import oracle_for
from ratchet.train.turn.schedule import NO_ROOM
from ratchet.train.turn.screen import LeverScreening, Oracle, expect, screen, screening_s
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.config import StepConfig

IN_BUNDLE = "part of the bundle that was proven whole; not tried alone"
UNUSED = "its kernel served no call: other changes took the region out of the step's graphs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected:
    """The best candidate of a selection, and the decision on every lever."""

    best: Candidate
    changes: tuple[Change, ...]

    def with_changes(self, newer: Mapping[str, Change]) -> Selected:
        """Return it with newer decisions on some levers, by name."""
        return replace(self, changes=tuple(newer.get(one.name, one) for one in self.changes))


@dataclass(kw_only=True)
class Selection:
    """One selection in one arithmetic, from a rival upward, one screening after another."""

    turn: Turn
    situation: Situation
    start: Candidate
    proven: Mapping[str, tuple[AnyKernel, ...]]
    modes: frozenset[str] = frozenset()  # The compile modes that were timed as rivals
    worth: Worth = field(default_factory=Worth)
    """The share of the rival's step that each lever can win."""
    inside: list[Lever] = field(default_factory=list)
    """Levers of the bundle that were not tried alone yet."""
    outside: list[Lever] = field(default_factory=list)  # Levers that are still to be tried on top
    skipped: Sequence[Change] = ()
    objection: Callable[[Candidate], str] = lambda candidate: ""
    """Returns why a faster candidate may not take the place of the best; empty if it may."""
    _changes: dict[str, Change] = field(default_factory=dict)
    _by_mode: list[Lever] = field(default_factory=list)
    """Levers that the choice of the rival decides: torch.compile's modes."""
    _whole: LeverScreening | None = None

    def __post_init__(self) -> None:
        self.best = self.start

    def prepare(self, levers: Sequence[Lever]) -> None:
        """Take in the levers: those of the bundle, and those to be tried on top of it."""
        if self.start.config.compile_mode is not None:
            self._by_mode = [one for one in levers if one.field == "compile_mode"]
            levers = [one for one in levers if one.field != "compile_mode"]
        # The bundle compiles before the rival was profiled: what its levers can win is not asked.
        bundled = [one for one in levers if one.default and not _of_region(one)]
        trying = self._worth_trying([one for one in levers if one not in bundled])
        chosen = [one for one in (*self.worth.ranked(bundled), *trying) if not self._same(one)]
        self.inside = [one for one in chosen if one.default]
        self.outside = [one for one in chosen if not one.default]

    def snapshot(self) -> Selected:
        """Return the selection by now, with a reason for each lever that was not tried."""
        changes = {one.name: self._mode_change(one) for one in self._by_mode} | self._changes
        for lever in self.inside:
            changes[lever.name] = change_of(lever, "kept", IN_BUNDLE, basis="bundle")
        for lever in self.outside:
            why = self.turn.schedule.why_ended
            changes.setdefault(lever.name, change_of(lever, "not_tried", why))
        found = (
            msgspec.structs.replace(one, winnable_s=self.worth.by_lever.get(one.name))
            for one in changes.values()
        )
        skipped = (one for one in self.skipped if one.name not in changes)
        return Selected(best=self.best, changes=(*found, *skipped))

    def _note(self, change: Change) -> None:
        self._changes[change.name] = change

    def _worth_trying(self, levers: Sequence[Lever]) -> list[Lever]:
        """Return the levers that have something to win, most first."""
        chosen = []
        for lever in self.worth.ranked(levers):
            share = SMALL_REGION_SHARE if _of_region(lever) else SMALL_SHARE
            reason = self.worth.too_small(lever.name, share)
            if reason is not None and not self._same(lever):
                self._note(change_of(lever, "not_tried", reason))
            else:
                chosen.append(lever)
        return chosen

    # The bundle.

    @property
    def bundle(self) -> Candidate:
        return self._with(self.inside)

    def begin_bundle(self) -> Candidate | None:
        """Let the bundle's arm start, if there is one; `try_bundle` waits for it."""
        bundle = self.bundle
        if bundle.key() == self.start.key():
            return None
        expect(self.turn, self.start, bundle, self._oracle(bundle))
        return bundle

    def try_bundle(self) -> LeverScreening | None:
        """Time the bundle against the start, then its part that keeps the arithmetic if it failed.

        Return the screening of the one that looks faster, which is the best from now on. Otherwise
        its levers are to be tried alone.
        """
        careful = [one for one in self.inside if not one.changes_arithmetic]
        bundles = {one.key(): one for one in map(self._with, (self.inside, careful))}
        bundles.pop(self.start.key(), None)
        failed: LeverScreening | None = None
        for candidate in bundles.values():
            screening = self._screen(self.start, candidate)
            if screening is not None and screening.looks_faster:
                self._adopt(candidate, screening, failed)
                return screening
            if screening is not None and not screening.passed:
                self.turn.warn(f"{candidate.title} could not be timed: {screening.reason}")
            self.turn.arms.drop(candidate)
            failed = failed or screening
            if screening is None:
                break
        self.outside, self.inside = [*self.inside, *self.outside], []
        return None

    def _adopt(
        self, candidate: Candidate, screening: LeverScreening, failed: LeverScreening | None
    ) -> None:
        """Go on from a bundle; `failed` is the screening of the whole one, if this is a part."""
        self.best, self._whole = candidate, screening
        if failed is None:
            return
        reason = failed.reason or "not faster with everything else"
        decision: Decision = "dropped" if failed.passed else "refused"
        for lever in [one for one in self.inside if one.changes_arithmetic]:
            self._note(change_of(lever, decision, reason, failed))
        self.inside = [one for one in self.inside if not one.changes_arithmetic]

    def _with(self, levers: Sequence[Lever]) -> Candidate:
        config = self.best.config
        for lever in levers:
            config = lever.set(config, self.situation)
        return self._candidate(config)

    def _candidate(self, config: StepConfig) -> Candidate:
        return with_config(config, dict(self.proven))

    def _screen(self, incumbent: Candidate, challenger: Candidate) -> LeverScreening | None:
        """Return the screening, or None if the stage ended first."""
        try:
            self.turn.schedule.check("screen a change")
            return screen(self.turn, incumbent, challenger, self._oracle(challenger))
        except OutOfTime:
            return None

    def _oracle(self, candidate: Candidate) -> Oracle:
        return oracle_for(with_config(self.situation.written, {}), candidate.config)

    # One lever at a time.

    def needed_s(self) -> float | None:
        """Estimate the seconds of trying the next lever alone; None if none is left."""
        found = self._next()
        if found is None:
            return None
        _, candidate = found
        return screening_s(self.turn, self.best, candidate, self._oracle(candidate))

    def try_next(self) -> None:
        """Take the next lever of the bundle out, or put the next other one on top."""
        found = self._next()
        if found is None:
            return
        lever, candidate = found
        expect(self.turn, self.best, candidate, self._oracle(candidate))
        screening = self._screen(self.best, candidate)
        if lever in self.inside:
            self.inside.remove(lever)
            self._take_out(lever, candidate, screening)
        else:
            self.outside.remove(lever)
            self._put_on(lever, candidate, screening)

    def _next(self) -> tuple[Lever, Candidate] | None:
        for lever in self.inside:
            share = SMALL_REGION_SHARE if _of_region(lever) else SMALL_SHARE
            if self.worth.too_small(lever.name, share) is not None:
                continue  # it stays in the bundle: leaving it out would show nothing
            without = self._candidate(self._without(lever))
            if without.key() != self.best.key():
                return lever, without
        while self.outside:
            lever = self.outside[0]
            candidate = self._with([lever])
            if candidate.key() == self.best.key():
                self.outside.pop(0)
            elif self._held(lever):
                self.outside.pop(0)
                self._note(change_of(lever, "not_tried", "another lever holds this setting"))
            else:
                return lever, candidate
        return None

    def _take_out(self, lever: Lever, without: Candidate, screening: LeverScreening | None) -> None:
        """Drop a lever without which the step is no slower.

        A kernel that served no call in the bundle is kept only if the step is clearly slower
        without it.
        """
        unused = self._whole is not None and _is_unused(lever, self._whole)
        if screening is None:
            self._note(change_of(lever, "kept", IN_BUNDLE, basis="bundle"))
        elif screening.passed and (screening.ratio >= 1.0 or (unused and screening.high >= 1.0)):
            reason = UNUSED if unused else "the step is no slower without it"
            self._note(change_of(lever, "dropped", reason, screening, inverted=True))
            self.turn.arms.drop(self.best)
            self.best = without
        else:
            self._note(_kept(lever, screening))
            self.turn.arms.drop(without)

    def _put_on(self, lever: Lever, candidate: Candidate, screening: LeverScreening | None) -> None:
        """Keep a lever on top of the best if the step looks faster with it."""
        if screening is None:
            self._note(change_of(lever, "not_tried", NO_ROOM))
        elif not screening.passed:
            self._note(change_of(lever, "refused", screening.reason))
        elif screening.low > 1.0 and not _is_unused(lever, screening):
            if objection := self.objection(candidate):
                self._note(change_of(lever, "refused", objection, screening))
                self.turn.arms.drop(candidate)
                return
            reason = "faster on top of the rest"
            self._note(change_of(lever, "kept", reason, screening, basis="alone"))
            self.turn.arms.drop(self.best)
            self.best = candidate
        else:
            unused = _is_unused(lever, screening)
            reason = UNUSED if unused else "not faster on top of the rest"
            self._note(change_of(lever, "dropped", reason, screening))
            self.turn.arms.drop(candidate)

    def add(
        self,
        levers: Sequence[Lever],
        proven: Mapping[str, tuple[AnyKernel, ...]],
        worth: Mapping[str, float | None],
        refused: Sequence[Change] = (),
    ) -> None:
        """Put further levers on top of the best, such as kernels that were proven since.

        All are tried at once, and each is tried alone later if they help.
        """
        for change in refused:
            self._note(change)
        self.proven, self.worth = {**self.proven, **proven}, self.worth.joined(worth)
        known = {one.name for one in (*self.inside, *self.outside)}
        fresh = [one for one in levers if one.name not in known and not self._same(one)]
        self.outside = [*self._worth_trying(fresh), *self.outside]
        names = {one.name for one in levers}
        chosen = [one for one in self.outside if one.name in names]
        candidate = self._with(chosen)
        if candidate.key() == self.best.key():
            return
        screening = self._screen(self.best, candidate)
        if screening is not None and screening.looks_faster:
            self.turn.arms.drop(self.best)
            self.best, self._whole = candidate, screening
            self.outside = [one for one in self.outside if one not in chosen]
            self.inside = [*chosen, *self.inside]
        else:
            self.turn.arms.drop(candidate)

    def follow(self, rival: Candidate) -> None:
        """Take over the compile mode of a new rival, if the best is faster with it."""
        if self.best.key() == self.start.key():
            self.start = self.best = rival
            return
        mode = rival.config.compile_mode
        candidate = self._candidate(msgspec.structs.replace(self.best.config, compile_mode=mode))
        if candidate.key() == self.best.key():
            return
        screening = self._screen(self.best, candidate)
        if screening is not None and screening.looks_faster:
            self.turn.arms.drop(self.best)
            self.start, self.best = rival, candidate
        else:
            self.turn.arms.drop(candidate)

    def refuse(self, lever: Lever, reason: str) -> None:
        """Note that this lever is not among the selection's, with the reason."""
        self._note(change_of(lever, "refused", reason))

    def _without(self, lever: Lever) -> StepConfig:
        """Return the best config with this lever's changes set back to the start."""
        start, config = self.start.config, self.best.config
        if lever.name.startswith(PREFIX):
            return lever.unset(config, self.situation)
        pulled = lever.set(start, self.situation)
        names = type(start).__struct_fields__
        changed = {n: getattr(start, n) for n in names if getattr(pulled, n) != getattr(start, n)}
        return msgspec.structs.replace(config, **changed)

    def _mode_change(self, lever: Lever) -> Change:
        """Return the decision on a compile mode, which the rivals made."""
        start = self.start.config
        own = lever.set(start, self.situation).compile_mode
        if own == start.compile_mode:
            reason = "the fastest of torch.compile's modes"
            return change_of(lever, "kept", reason, basis="rival")
        if own not in self.modes:
            return change_of(lever, "not_tried", "it was not timed among the rivals")
        return change_of(lever, "dropped", "another mode was faster")

    def _held(self, lever: Lever) -> bool:
        """Return True if the setting this lever changes already differs from the written one.

        A kernel may take the place of what the start, a rival, has: its fused optimizer.
        """
        config = self.best.config
        written = self.start.config if lever.name.startswith(PREFIX) else self.situation.written
        pulled = lever.set(config, self.situation)
        return any(
            getattr(pulled, name) != getattr(config, name)
            and getattr(config, name) != getattr(written, name)
            and name not in ("kernels", "compile_mode")
            for name in type(config).__struct_fields__
        )

    def _same(self, lever: Lever) -> bool:
        """Return True if the start already includes the lever: it belongs to the rival."""
        return lever.set(self.start.config, self.situation) == self.start.config


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
            changes.append(change_of(lever, "not_applicable", reason))
        elif kernel and kernel in refused_kernels:
            reason = refused_kernels[kernel]
            late = reason.startswith(("the budget", "at most"))
            changes.append(change_of(lever, "not_tried" if late else "refused", reason))
        elif keep_arithmetic and lever.changes_arithmetic:
            changes.append(change_of(lever, "not_applicable", "it changes the arithmetic"))
        else:
            chosen.append(lever)
    return chosen, changes


def _of_region(lever: Lever) -> bool:
    return lever.field == "kernels" and str(lever.value).startswith(REGION)


def _is_unused(lever: Lever, screening: LeverScreening) -> bool:
    return lever.field == "kernels" and lever.value in screening.unused


def _kept(lever: Lever, screening: LeverScreening) -> Change:
    """Keep a lever in the bundle; the step's time without it determines the reason."""
    if not screening.passed:
        return change_of(lever, "kept", f"without it: {screening.reason}", basis="bundle")
    if screening.high < 1.0:
        reason = "the step is slower without it"
        return change_of(lever, "kept", reason, screening, inverted=True, basis="alone")
    reason = "part of the bundle that was proven whole; no clear difference without it alone"
    return change_of(lever, "kept", reason, screening, inverted=True, basis="bundle")


def change_of(
    lever: Lever,
    decision: Decision,
    reason: str,
    screening: LeverScreening | None = None,
    *,
    inverted: bool = False,
    basis: Basis | None = None,
) -> Change:
    """Make a report line; `inverted` means that the screening timed the step without the lever."""
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
