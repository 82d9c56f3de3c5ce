"""Search in the order of the schedule: the critical path, then whatever may win most."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from ratchet.authors.shares import SHORTEST_S
from ratchet.base.errors import DeadlinePassed
from ratchet.measure.sitting import FEWEST_LAUNCHES, Sitting
from ratchet.optimize.levers import LEVERS, Lever, Situation, find_lever, kernel_levers
from ratchet.optimize.levers.kernels import PREFIX
from ratchet.optimize.levers.operators import BF16_WEIGHTS, COMPILE
from ratchet.optimize.step.candidate import Candidate, with_config
from ratchet.optimize.turn.climb import Climb, Climber, applicable
from ratchet.optimize.turn.keep import Found, beats_written, keeps_arithmetic, roles
from ratchet.optimize.turn.limit import ranked, too_small
from ratchet.optimize.turn.losses import compare_losses, comparison_s
from ratchet.optimize.turn.prove import NEW, RIVAL, Prover
from ratchet.optimize.turn.prove_kernels import ProvenKernels, prove_kernels
from ratchet.optimize.turn.prove_regions import RegionTrials
from ratchet.optimize.turn.result import LossResult
from ratchet.optimize.turn.rivals import RivalModes
from ratchet.optimize.turn.schedule import (
    HOPEFUL,
    KEEPS,
    KERNELS_SHARE,
    LEAST_LAUNCHES,
    MOST_LAUNCHES,
    NO_ROOM,
    PLANNED_LAUNCHES,
    WRITING_SHARE,
)
from ratchet.optimize.turn.screen import new_screening_s
from ratchet.optimize.turn.settings import Settings
from ratchet.optimize.turn.state import Turn
from ratchet.optimize.turn.steer import Steering, Worth


@dataclass(frozen=True, kw_only=True, slots=True)
class Further:
    """One thing that may be done once the critical path is walked."""

    what: str
    """A noun phrase, for the list of what the budget had no room for."""
    needed_s: Callable[[], float | None]
    """Seconds that it would take now; None if there is nothing left of it to do."""
    run: Callable[[], None]
    """Does it; DeadlinePassed if time ran out, which is not tried again."""
    is_once: bool = False
    """True if it is done at most once, whatever comes of it."""
    is_proof: bool = False
    """True if it times what is to be proven, so that no proof is due after it."""


@dataclass(kw_only=True)
class Search:
    """One turn's search: what was tried, and what may be kept."""

    turn: Turn
    situation: Situation
    steering: Steering
    written: Candidate
    kernels: ProvenKernels = field(
        default_factory=lambda: ProvenKernels(proven={}, refused={}, verdicts=())
    )
    reserved_s: float = 0.0
    """Seconds that kernels left to the bundle and its proof."""
    _climber: Climber | None = None
    _same: Climb | None = None
    _earlier: list[Climb] = field(default_factory=list)
    _losses: dict[str, LossResult | None] = field(default_factory=dict)
    """By precision; None if the budget ended before they were compared."""
    _worth: Worth = field(default_factory=Worth)
    _done: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sitting = Sitting(prior=self.turn.known_scatter())
        self.prover = Prover(turn=self.turn, sitting=self.sitting)
        self.trials = RegionTrials(turn=self.turn)
        self.rivals = RivalModes(
            turn=self.turn,
            written=self.written,
            situation=self.situation,
            sitting=self.sitting,
            rule_out=self.steering.rule_out,
        )

    def run(self) -> Found:
        """Walk the critical path, then do what may win most, until the budget ends."""
        self.rivals.first()
        if self.rivals.best is not None:
            self._worth = self.steering.worth(self.rivals.baseline())
            self._judge_kernels()
            self._climb(weights=True)
            self._settle()
            self._go_on()
            if not self._may_keep(self._rival):
                self.turn.warn(f"bf16 was dropped: {self._why_not(self._rival)}")
        self.rivals.leave_rest()
        self.turn.close_arms()
        return self.found()

    def found(self) -> Found:
        """Return the results by now."""
        baseline = self.rivals.baseline()
        best = Climb(best=baseline.best, changes=())
        if self._climber is not None:
            self._climber.modes = baseline.modes
            best = self._climber.snapshot()
        modes = {one.name: one for one in best.changes if one.name.startswith(COMPILE.name)}
        return Found(
            baseline=baseline,
            best=best,
            earlier=tuple(one.with_changes(modes) for one in self._earlier),
            same=self._same,
            kernels=self.kernels,
            losses=dict(self._losses),
        )

    # The critical path.

    @property
    def _climbing(self) -> Climber:
        assert self._climber is not None, "no climb has begun"
        return self._climber

    @property
    def _best(self) -> Candidate:
        return self._climbing.best

    @property
    def _rival(self) -> Candidate:
        assert self.rivals.best is not None, "no rival was timed"
        return self.rivals.best

    @property
    def _arms(self) -> dict[str, Candidate]:
        """Return the rival and the best, as a launch times them."""
        return {RIVAL: self._rival, NEW: self._best}

    def _precision(self, *, weights: bool = True) -> str:
        """Return the precision of the bundle."""
        settings = self.turn.settings
        tried = weights and BF16_WEIGHTS in chosen_levers(settings) and not settings.keep_precision
        if tried and BF16_WEIGHTS.applies(self.situation) is None:
            return "bf16_master"
        return self.rivals.baseline().best.config.precision

    def _judge_kernels(self) -> None:
        """Judge the library's kernels, those with the most time to win first, then the regions'."""
        with self.turn.stage(self._kernels_end_s()):
            self._judge(self._step_of(self._precision()))

    def _step_of(self, precision: str) -> Candidate:
        start = self.rivals.baseline().best
        return with_config(start.config.model_copy(update={"precision": precision}), {})

    def _judge(self, step: Candidate) -> None:
        wanted = [
            lever
            for lever in chosen_levers(self.turn.settings)
            if lever.name.startswith(PREFIX) and lever.applies(self.situation) is None
        ]
        worth = self._worth
        reasons = {
            one.name.removeprefix(PREFIX): too_small(one.name, worth.by_lever, worth.step_time_s)
            for one in ranked(wanted, worth.by_lever)
        }
        small = {name: reason for name, reason in reasons.items() if reason is not None}
        timed = not self.kernels.proven
        found = prove_kernels(self.turn, step, self.written, list(reasons), small, timed=timed)
        self.kernels = self.kernels.joined(self.trials.recall(found, [step]))

    def _kernels_end_s(self) -> float:
        """Return when the last kernel must be judged, in seconds spent: the rest has its needs."""
        turn, start = self.turn, self.rivals.baseline().best
        after_s = new_screening_s(turn, start)
        if self._precision() != self.written.config.precision:
            after_s += comparison_s(turn, self.written, start)
        launch_s = self.prover.launch_s({RIVAL: start, NEW: start})
        left_s = turn.ends_s - turn.spent_s
        share_s = left_s - after_s - PLANNED_LAUNCHES * launch_s
        if share_s < KERNELS_SHARE * (left_s - after_s):
            share_s = left_s - after_s - LEAST_LAUNCHES * launch_s
        share_s = max(0.0, share_s)
        self.reserved_s = left_s - share_s
        return turn.spent_s + share_s

    def _climb(self, *, weights: bool) -> None:
        """Time the bundle; where its losses differ, one that rounds less; then the arithmetic kept.

        Without `weights`, they stay in fp32.
        """
        precision, start = self._precision(weights=weights), self.rivals.baseline().best
        self._climber = climber = self._new_climber(start, precision, weights=weights)
        if not self._try_bundle(climber) or self._accepts(climber.best):
            return
        losses, reason = self._losses[climber.best.config.precision], self._why_not(climber.best)
        rounds_less = self._rival.config.precision == "bf16_autocast"
        if losses and weights and rounds_less and climber.best.config.precision == "bf16_master":
            self.turn.warn(f"bf16 weights were dropped: {reason}")
            self._climb(weights=False)
            self._climbing.refuse(BF16_WEIGHTS, reason)
            return
        self.turn.warn(f"bf16 was dropped: {reason}")
        self._climb_same()

    def _why_not(self, candidate: Candidate) -> str:
        """Return why a candidate's arithmetic may not be kept."""
        losses = self.found().losses_of(candidate)
        return losses.detail if losses else "the budget ended before its losses were compared"

    def _try_bundle(self, climber: Climber) -> bool:
        """Time a climb's bundle; return True if it looks faster than where the climb began."""
        screening = climber.try_bundle()
        if screening is not None:
            self.sitting.add(screening.as_timed())
        return screening is not None

    def _new_climber(
        self, start: Candidate, precision: str, *, keep: bool = False, weights: bool = True
    ) -> Climber:
        """Begin a climb with every lever that applies; without `weights`, they stay in fp32."""
        levers = [*chosen_levers(self.turn.settings), *self.kernels.regions.get(precision, ())]
        if not weights:
            levers = [lever for lever in levers if lever.name != BF16_WEIGHTS.name]
        applied, skipped = applicable(
            levers,
            self.situation,
            refused_kernels=self.kernels.why_not(precision),
            keep_arithmetic=keep or self.turn.settings.keep_precision,
        )
        if self.turn.settings.try_lever is not None:
            applied = [as_default(lever) for lever in applied]
        climber = Climber(
            turn=self.turn,
            situation=self.situation,
            start=start,
            proven=self.kernels.of(precision),
            modes=self.rivals.baseline().modes,
            worth={**self._worth.by_lever, **self.kernels.worth},
            step_time_s=self._worth.step_time_s,
        )
        climber.prepare(applied, skipped)
        return climber

    def _accepts(self, candidate: Candidate) -> bool:
        """Return True if the candidate's arithmetic is the written one, or learns as well."""
        if keeps_arithmetic(candidate, self.written):
            return True
        precision = candidate.config.precision
        if not self._may_keep(candidate) and precision not in self._losses:
            self._losses[precision] = self._compared(candidate)
        return self._may_keep(candidate)

    def _compared(self, candidate: Candidate) -> LossResult | None:
        """Compare how well small copies learn; None if the budget ended before that was known."""
        turn = self.turn
        needed_s = comparison_s(turn, self.written, candidate)
        if turn.left_s() <= 0 or HOPEFUL * needed_s > turn.left_s():
            turn.leave_out("the comparison of losses", NO_ROOM)
            return None
        try:
            return compare_losses(turn, self.written, candidate)
        except DeadlinePassed:
            turn.leave_out("the comparison of losses", "the budget ended during it")
            return None

    def _may_keep(self, candidate: Candidate) -> bool:
        """Return True if it is known by now that the candidate's arithmetic may be kept."""
        return self.found().may_keep(candidate)

    def _losses_s(self) -> float | None:
        """Estimate the comparison of losses, where the best needs one that was not made."""
        best = self._best
        if self._may_keep(best) or best.config.precision in self._losses:
            return None
        return comparison_s(self.turn, self.written, best)

    def _settle(self) -> None:
        """Launch the best and its rival until they are told apart, and note what is proven."""
        climber, rival = self._climber, self._rival
        if climber is None or climber.best.key() in {rival.key(), self.written.key()}:
            return
        if not self._accepts(climber.best):
            return
        ratio = self.prover.ratio(rival, climber.best)
        if ratio > 1.0 or ratio == 0.0:  # not timed yet
            self.prover.settle(self._arms, self.turn.settings.launches)
        self._note_proven()

    def _note_proven(self) -> None:
        """Keep where the climb stands if that is proven."""
        if self.prover.proof(self._arms).is_faster(NEW, RIVAL):
            self._earlier.append(self._climbing.snapshot())
            ratio = self.prover.ratio(self._rival, self._best)
            self.turn.tell("proven", title=self._best.title, ratio=ratio)

    # What comes after it.

    def _go_on(self) -> None:
        """Do what may win most for its time, again and again; then prove what came of it."""
        while (one := self._next_step()) is not None:
            kept_s = 0.0 if one.is_proof else self._proof_s()
            try:
                with self.turn.stage(self.turn.ends_s - kept_s):
                    one.run()
            except DeadlinePassed:
                self._done.add(one.what)
            if one.is_once:
                self._done.add(one.what)
        for one in self._steps():
            if one.what not in self._done and one.needed_s() is not None:
                self.turn.leave_out(one.what, NO_ROOM)
        self._settle()

    def _next_step(self) -> Further | None:
        """Return the first thing that still fits, with a proof after it where one is due."""
        for one in self._steps():
            needed_s = None if one.what in self._done else one.needed_s()
            if needed_s is None:
                continue
            if not one.is_proof:
                needed_s += self._proof_s()
            if needed_s <= self.turn.left_s():
                return one
        return None

    def _steps(self) -> list[Further]:
        """Return everything that may be done, what matters most first."""
        written, same = ("as_written",), ("best_compile_same", "same_arithmetic")
        return [
            Further(
                what="more launches of the final run",
                needed_s=self._launches_s,
                run=self._launch,
                is_proof=True,
            ),
            Further(
                what="the comparison of losses",
                needed_s=self._losses_s,
                run=self._compare_losses,
            ),
            Further(
                what="the step as written in the final run",
                needed_s=partial(self._whole_s, written),
                run=partial(self._launch_whole, written),
                is_proof=True,
            ),
            Further(
                what="further modes of torch.compile",
                needed_s=self.rivals.needed_s,
                run=self.rivals.time_next,
            ),
            Further(
                what="kernels that were not judged",
                needed_s=self._more_kernels_s,
                run=self._more_kernels,
                is_once=True,
            ),
            Further(
                what="single changes",
                needed_s=self._climbing.needed_s,
                run=self._climbing.try_next,
            ),
            Further(
                what="the arithmetic kept",
                needed_s=self._same_s,
                run=self._climb_same,
                is_once=True,
            ),
            Further(
                what="the arithmetic kept in the final run",
                needed_s=partial(self._whole_s, same),
                run=partial(self._launch_whole, same),
                is_proof=True,
            ),
            Further(
                what="writing kernels for the step's own regions",
                needed_s=self._writing_s,
                run=self._write,
                is_once=True,
            ),
        ]

    def _proof_s(self) -> float:
        """Return the seconds that proving a new best, or against a new rival, would take."""
        return PLANNED_LAUNCHES * self.prover.launch_s(self._arms)

    def _launches_s(self) -> float | None:
        """Estimate one more launch, where the answer is open and may be a gain."""
        rival, best = self._rival, self._best
        if not self.prover.is_open(rival, best) or not self._may_keep(best):
            return None
        tried = self.prover.launches_of(rival, best)
        if tried >= MOST_LAUNCHES or (tried and self.prover.ratio(rival, best) <= 1.0):
            return None
        if not tried and self._earlier:
            return None  # changes are still being tried on top of what is proven
        return self.prover.launch_s(self._arms)

    def _launch(self) -> None:
        self.prover.launch(self._arms)
        self._note_proven()

    def _compare_losses(self) -> None:
        if not self._accepts(self._best):
            self._climb_same()

    def _whole(self, names: Sequence[str]) -> dict[str, Candidate]:
        """Return the rival, the recipe if it may win, and these roles beside them."""
        found = self.found()
        same = found.same.best if found.same is not None else None
        best = self._earlier[-1].best if self._earlier else found.best.best
        if same is not None and not found.may_keep(best):
            best = same
        known = roles(found.baseline, same, best)
        wanted = (RIVAL, *(() if self._losing() else (NEW,)), *names)
        return {role: one for role in wanted if (one := known[role]) is not None}

    def _whole_s(self, names: Sequence[str]) -> float | None:
        """Estimate a launch with these roles, where they were not launched often enough."""
        if self._losing() and (names != ("as_written",) or self._rival_beats_written()):
            return None
        arms = self._whole(names)
        if not all(name in arms for name in names):
            return None
        if self.prover.launches_of(*arms.values()) >= FEWEST_LAUNCHES:
            return None
        return self.prover.launch_s(arms)

    def _rival_beats_written(self) -> bool:
        return beats_written(self.found().baseline, self._rival, self.prover)

    def _losing(self) -> bool:
        """Return True if there is no gain to be shown."""
        return (
            not self._earlier
            and self._same is None
            and self.prover.ratio(self._rival, self._best) <= 1.0
        )

    def _launch_whole(self, names: Sequence[str]) -> None:
        self.prover.launch(self._whole(names))

    def _more_kernels_s(self) -> float | None:
        """Estimate the verdict on the next kernel that the budget had no room for."""
        if not self.kernels.left_out(self._best.config.precision):
            return None
        return 2 * self.turn.costs.verdict_s + new_screening_s(self.turn, self._best)

    def _more_kernels(self) -> None:
        """Judge the kernels that had no time, and try those that are proven on top."""
        precision = self._best.config.precision
        waiting = self.kernels.left_out(precision)
        with self._stage_before_screening():
            self._judge(self._step_of(precision))
        heard = set(waiting) - set(self.kernels.left_out(precision))
        self._try_with([one for one in kernel_levers() if one.name.removeprefix(PREFIX) in heard])

    def _stage_before_screening(self) -> AbstractContextManager[None]:
        """Limit the enclosed work so that what it finds can be screened and proven."""
        ends_s = self.turn.spent_s + self.turn.left_s() - self._proof_s()
        return self.turn.stage(ends_s - new_screening_s(self.turn, self._best))

    def _try_with(self, levers: Sequence[Lever]) -> None:
        """Put kernels that were proven since on top of the best, all at once."""
        precision = self._best.config.precision
        applied, refused = applicable(
            levers,
            self.situation,
            refused_kernels=self.kernels.why_not(precision),
            keep_arithmetic=False,
        )
        self._climbing.add(applied, self.kernels.of(precision), self.kernels.worth, refused)
        self._climbing.try_together(applied)

    def _writing_s(self) -> float | None:
        if not self.trials.may_write(self._best):
            return None
        return SHORTEST_S / (KEEPS * WRITING_SHARE) + new_screening_s(self.turn, self._best)

    def _write(self) -> None:
        """Have the authors write for the regions of the best step, and try what is proven."""
        precision = self._best.config.precision
        known = {one.name for one in self.kernels.regions.get(precision, ())}
        with self._stage_before_screening():
            self.kernels = self.trials.write(self.kernels, self._best, self._worth.step_time_s)
        regions = self.kernels.regions.get(precision, ())
        self._try_with([one for one in regions if one.name not in known])

    def _same_s(self) -> float | None:
        """Estimate a climb in the written arithmetic, where the best has another."""
        if self._same is not None or keeps_arithmetic(self._best, self.written):
            return None
        turn, start = self.turn, self.rivals.baseline().best_same
        if start is None:
            return None  # its rival is timed first
        return new_screening_s(turn, start) + self.turn.costs.plain_s + turn.costs.verdict_s

    def _climb_same(self) -> None:
        """Climb in the written arithmetic from its own rival, which is timed if it was not."""
        with contextlib.suppress(DeadlinePassed):
            self._climb_in_written_arithmetic()

    def _climb_in_written_arithmetic(self) -> None:
        while self.rivals.baseline().best_same is None and self.rivals.next_one() is not None:
            self.rivals.time_next()
        start = self.rivals.baseline().best_same
        if start is None:
            return
        self._judge(with_config(start.config, {}))
        climber = self._new_climber(start, start.config.precision, keep=True)
        self._try_bundle(climber)
        self._same = climber.snapshot()


def chosen_levers(settings: Settings) -> list[Lever]:
    """Return all levers, or only the one named by `--try`."""
    if settings.try_lever is None:
        return [*LEVERS, *kernel_levers()]
    return [find_lever(settings.try_lever)]


def as_default(lever: Lever) -> Lever:
    """Return the lever as part of the bundle, so that the lever named by `--try` is tried."""
    return replace(lever, default=True)
