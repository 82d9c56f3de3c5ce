"""Find the rival, torch.compile's best version of the step: one mode at a time, cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ratchet.base.errors import ArmFailure, OutOfTime
from ratchet.base.measure.sitting import Sitting
from ratchet.judge.kernels.languages.cpp import find_compiler
from ratchet.train.levers import Situation
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.turn.optimize_result import Rival
from ratchet.train.turn.schedule import NO_ROOM, START_TOGETHER
from ratchet.train.turn.screen import LeverScreening, Oracle, expect, screen, screening_s
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.config import REPLAYING, StepConfig

MODES = {
    "cpu": ("default", "max-autotune"),
    "cuda": ("default", "reduce-overhead", "max-autotune"),
}
"""Torch.compile's modes by kind of device. CUDA graphs do nothing for a CPU."""
MOST_WORDS = 300  # Maximum number of characters of torch's own reason that are shown

CLEARLY = 1.1
"""Low end of a screening's interval from which it shows a gain over the step as written.

A screening is one launch, whose interval knows nothing of how much starts of a process differ.
"""

RuleOut = Callable[[Candidate, Candidate], str | None]
"""Returns the reason not to time a rival, given the fastest so far; None to time it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The candidates that every claim is measured against, as far as they are known."""

    written: Candidate
    best: Candidate
    """The fastest torch.compile candidate in any arithmetic; the step as written without one."""
    best_same: Candidate | None
    """The fastest in the arithmetic of the step as written; None if none was timed."""
    rivals: tuple[Rival, ...]
    plain: Candidate | None = None
    """The fastest in the arithmetic of the step as written that replays no graphs of launches."""
    beats_written: bool = False
    """True if a screening says that `best` clearly beats the step as written."""
    modes: frozenset[str] = frozenset()  # The compile modes that were timed

    @property
    def has_rival(self) -> bool:
        """Return True if any torch.compile candidate was timed."""
        return self.best.key() != self.written.key()


@dataclass(kw_only=True)
class RivalModes:
    """Torch.compile's modes: those timed, the fastest of them, and those still to be timed."""

    turn: Turn
    written: Candidate
    situation: Situation
    sitting: Sitting
    rule_out: RuleOut = lambda best, rival: None
    waiting: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    _by_precision: dict[str, Candidate] = field(default_factory=dict)
    _timed: list[Candidate] = field(default_factory=list)
    _rows: list[Rival] = field(default_factory=list)
    _faster: set[str] = field(default_factory=set)
    """Keys of those that clearly beat the step as written."""
    _modes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        own, reason = self.written.config.precision, self.situation.bf16_is_slow
        if own == "fp32" and not self.turn.settings.keep_precision:
            if reason is None:
                self.waiting = self._in("bf16_autocast", own)
                return
            self._rows += [_untimed(rival, reason) for rival in self._in("bf16_autocast")]
        self.waiting = self._in(own)

    def _in(self, *precisions: str) -> list[Candidate]:
        """Return torch.compile's modes in these precisions, with the fused optimizer if any."""
        optimizer = "as_written" if self.situation.why_not_fused else "fused"
        changes = [
            {"compile_mode": mode, "precision": precision, "optimizer": optimizer}
            for mode in MODES[self.situation.device_kind]
            for precision in precisions
        ]
        config = self.written.config
        return [with_config(msgspec.structs.replace(config, **one), {}) for one in changes]

    @property
    def expected(self) -> Candidate | None:
        """The fastest rival so far, or the one that is timed first; None if none is left."""
        return self.best or next(iter(self.waiting), None)

    def begin(self) -> list[Candidate]:
        """Let the first rival start; return those that start beside it."""
        rival = self.waiting[0]
        beside = self._beside(rival)
        expect(self.turn, self.written, rival, None, *beside)
        return beside

    def first(self) -> None:
        """Time the cheapest rival that works.

        Without time for one, there is none. Raises CompilerMissing if torch.compile lacks a
        compiler it needs, and ArmFailure if it fails in every mode for another reason.
        """
        while self.waiting and self.best is None:
            rival, beside = self.waiting[0], self.begin()
            try:
                self.time_next()
                self._time_live(beside)
            except OutOfTime:
                if rival in self.waiting:
                    self.turn.leave_out(f"the rival {rival.title}", NO_ROOM)
                return
        if self.best is None:
            self._raise_why()

    def _beside(self, rival: Candidate) -> list[Candidate]:
        """Return the replaying mode of a rival, where there are cores to compile it meanwhile."""
        if self.turn.costs.at_a_time <= START_TOGETHER:
            return []
        config = msgspec.structs.replace(rival.config, compile_mode="reduce-overhead")
        return [one for one in self.waiting if one.config == config and one is not rival]

    def _time_live(self, rivals: Sequence[Candidate]) -> None:
        """Time the rivals whose processes run already."""
        for rival in rivals:
            if self.best is not None and self.turn.arms.is_live(rival):
                self.waiting.remove(rival)
                self.waiting.insert(0, rival)
                self.time_next()

    def _raise_why(self) -> None:
        if self.turn.device.kind == "cpu":
            find_compiler()
        first = " ".join(self._rows[-1].reason.split())[:MOST_WORDS]
        raise ArmFailure(
            f"torch.compile failed in every mode, so there is no rival to prove against: {first}"
        )

    def next_one(self) -> Candidate | None:
        """Return the rival that is to be timed next, the cheapest; None if none is left."""
        while self.best is not None and self.waiting:
            self.waiting.sort(key=self.turn.costs.compiled_s)
            rival = self.waiting[0]
            reason = self.rule_out(self._incumbent(rival), rival)
            if reason is None:
                return rival
            self._leave_out(rival, reason, for_want_of_budget=False)
        return None

    def needed_s(self) -> float | None:
        """Estimate the seconds of timing the next rival; None if none is left."""
        rival = self.next_one()
        if rival is None:
            return None
        return screening_s(self.turn, self._incumbent(rival), rival, None)

    def _incumbent(self, rival: Candidate) -> Candidate:
        return self._by_precision.get(rival.config.precision) or self.best or self.written

    def _leave_out(self, rival: Candidate, reason: str, *, for_want_of_budget: bool = True) -> None:
        self.waiting.remove(rival)
        self._rows.append(_untimed(rival, reason))
        what = f"the rival {rival.title}"
        self.turn.leave_out(what, reason, for_want_of_budget=for_want_of_budget)

    def time_next(self) -> None:
        """Time the rival that waits first against the best of its precision, or of any."""
        rival = self.waiting[0]
        incumbent = self._incumbent(rival)
        screening = screen(self.turn, incumbent, rival, None)
        self.waiting.pop(0)
        self._rows.append(_row(rival, screening))
        if screening.passed:
            self.sitting.add(screening.as_timed())
            self._modes.add(str(rival.config.compile_mode))
            self._timed.append(rival)
            self._rank(rival, incumbent, screening)
        if self.best is None or self.best.key() != rival.key():
            self.turn.arms.drop(rival)

    def _rank(self, rival: Candidate, incumbent: Candidate, screening: LeverScreening) -> None:
        """Put a timed rival in its place.

        It takes the place of another only if it is clearly faster: one that cannot be told apart is
        no stronger rival, and every change on top of it would compile as long as it did. If it
        clearly beats the step as written, its key is noted.
        """
        precision, won = rival.config.precision, screening.low > 1.0
        beaten = incumbent is self.written or incumbent.key() in self._faster
        if beaten and screening.low > (CLEARLY if incumbent is self.written else 1.0):
            self._faster.add(rival.key())
        if incumbent.config.precision == precision and incumbent is not self.written and not won:
            return
        self._by_precision[precision] = rival
        faster = self.best is None or (won and incumbent is self.best)
        if self.best is not None and won and not faster:
            faster = self.turn.costs.step_s(rival) < self.turn.costs.step_s(self.best)
        if faster:
            self.best = rival

    def leave_replays(self, reason: str) -> None:
        """Leave out the modes that replay graphs of launches: what they compute is not the step.

        The fastest of the other modes takes their place; without one, they stay what is timed
        against.
        """
        if all(map(_replays, self._timed)):
            return
        replayed = [one for one in (*self.waiting, *self._timed) if _replays(one)]
        for rival in replayed:
            if rival in self.waiting:
                self._leave_out(rival, reason, for_want_of_budget=False)
        titles = {one.title for one in replayed}
        self._rows = [
            msgspec.structs.replace(one, reason=reason) if one.title in titles else one
            for one in self._rows
        ]
        self._timed = [one for one in self._timed if not _replays(one)]
        fastest_first = sorted(self._timed, key=self.turn.costs.step_s)
        self.best = fastest_first[0]
        self._by_precision = {one.config.precision: one for one in reversed(fastest_first)}

    def _plain(self) -> list[Candidate]:
        own = self.written.config.precision
        return [one for one in self._timed if not _replays(one) and one.config.precision == own]

    def leave_rest(self) -> None:
        """Name the rivals that the budget had no room for."""
        while (rival := self.next_one()) is not None:
            self._leave_out(rival, self.turn.schedule.why_ended)

    def baseline(self) -> Baseline:
        best = self.best or self.written
        why = self.turn.schedule.why_ended
        rows = [*self._rows, *(_untimed(one, why) for one in self.waiting)]
        return Baseline(
            written=self.written,
            best=best,
            best_same=self._by_precision.get(self.written.config.precision),
            rivals=tuple(rows),
            plain=min(self._plain(), key=self.turn.costs.step_s, default=None),
            beats_written=best.key() in self._faster,
            modes=frozenset(self._modes),
        )


def _replays(rival: Candidate) -> bool:
    return rival.config.compile_mode in REPLAYING


def _untimed(rival: Candidate, reason: str) -> Rival:
    return _row(rival, LeverScreening(passed=False, reason=f"not timed: {reason}"))


def _row(rival: Candidate, screening: LeverScreening) -> Rival:
    return Rival(
        title=rival.title,
        precision=rival.config.precision,
        step_time_s=screening.step_time_s if screening.passed else None,
        setup_time_s=screening.setup_s if screening.passed else None,
        reason=screening.reason,
    )


def oracle_for(written: Candidate, config: StepConfig) -> Oracle:
    """Return the candidates whose gradients judge a config: fp32's, and its own arithmetic's.

    The latter is the step as written but for the arithmetic, so nothing of it is compiled.
    """
    exact = "fp64" if written.config.precision == "fp64" else "fp32"
    reference = with_config(msgspec.structs.replace(written.config, precision=exact), {})
    own: dict[str, str] = {"matmul_precision": config.matmul_precision, "products": config.products}
    if config.precision != written.config.precision:
        own["precision"] = "bf16_autocast"
    return Oracle(
        reference=reference, allowed=with_config(msgspec.structs.replace(written.config, **own), {})
    )
