"""Search in the order of the schedule: the critical path, then whatever may win most."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from ratchet.base.errors import OutOfTime
from ratchet.base.measure.sitting import Sitting
from ratchet.train.levers import LEVERS, PREFIX, Lever, Situation, find_lever, kernel_levers
from ratchet.train.levers.table import BF16_WEIGHTS, COMPILE
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.recipe.facts import StepFacts
from ratchet.train.turn import schedule
from ratchet.train.turn.choice import Found, after_a_rival, beats_written, before_a_rival, roles
from ratchet.train.turn.headroom import LargerBatches, StepProfiles, Worth
from ratchet.train.turn.judge_kernels import RegionTrials, UsableKernels, judge_kernels
from ratchet.train.turn.optimize_result import IdentityResult, LargerBatch, Shortfall
from ratchet.train.turn.prove import NEW, RIVAL, Prover
from ratchet.train.turn.rivals import RivalModes
from ratchet.train.turn.schedule import Step
from ratchet.train.turn.screen import Losses, keeps_arithmetic, new_screening_s
from ratchet.train.turn.selection import Selected, Selection, applicable
from ratchet.train.turn.settings import Settings
from ratchet.train.turn.state import Turn
from ratchet.write.write import SHORTEST_S


@dataclass(kw_only=True)
class Search:
    """One turn's search: what was tried, and what may be kept."""

    turn: Turn
    situation: Situation
    profiles: StepProfiles
    written: Candidate
    facts: StepFacts
    kernels: UsableKernels = field(
        default_factory=lambda: UsableKernels(usable={}, refused={}, verdicts=())
    )
    _selection: Selection | None = None
    _same: Selected | None = None
    _earlier: list[Selected] = field(default_factory=list)
    _worth: Worth = field(default_factory=Worth)
    _done: set[Step] = field(default_factory=set)
    _larger_batch: LargerBatch | None = None
    _begun: Candidate | None = None  # The bundle that compiles beside the first rival

    def __post_init__(self) -> None:
        self.sitting = Sitting(prior=self.turn.known_scatter())
        self.prover = Prover(turn=self.turn, sitting=self.sitting)
        self.trials = RegionTrials(turn=self.turn)
        self.batches = LargerBatches(turn=self.turn, facts=self.facts)
        self.losses = Losses(turn=self.turn, written=self.written)
        self.rivals = RivalModes(
            turn=self.turn,
            written=self.written,
            situation=self.situation,
            sitting=self.sitting,
            rule_out=self.profiles.rule_out,
        )

    def run(self) -> Found:
        """Walk the critical path, then do what may win most, until the budget ends."""
        path = {
            schedule.KERNELS: self._judge_kernels,
            schedule.RIVAL: self.rivals.first,
            schedule.BUNDLE: self._try_bundle,
            schedule.LOSSES: self._keep_what_learns,
            schedule.PROOF: self._settle,
        }
        for step in schedule.PATH[1:]:  # the step as written ran already
            beside_it = step in (schedule.KERNELS, schedule.RIVAL)
            if (self.rivals.expected if beside_it else self.rivals.best) is not None:
                path[step]()
        if self.rivals.best is not None:
            self._go_on()
            if not self.losses.may_keep(self._rival):
                self._say_dropped(self._rival)
        found = self.found()
        self.rivals.leave_rest()
        self.turn.arms.close()
        return replace(found, baseline=self.rivals.baseline())

    def found(self) -> Found:
        baseline = self.rivals.baseline()
        best = Selected(best=baseline.best, changes=())
        if self._selection is not None:
            self._selection.modes = baseline.modes
            best = self._selection.snapshot()
        modes = {one.name: one for one in best.changes if one.name.startswith(COMPILE.name)}
        return Found(
            baseline=baseline,
            best=best,
            earlier=tuple(one.with_changes(modes) for one in self._earlier),
            same=self._same,
            kernels=self.kernels,
            losses=self.losses,
            larger_batch=self._larger_batch,
            shortfall=self._shortfall(),
        )

    def _shortfall(self) -> Shortfall | None:
        if self.rivals.best is None:
            waiting = self.rivals.waiting
            return before_a_rival(self.turn, self.losses, waiting[0]) if waiting else None
        best = self._selection.best if self._selection is not None else self._rival
        return after_a_rival(
            self.turn,
            rival=self._rival,
            best=best,
            prover=self.prover,
            losses=self.losses,
            kernels=self.kernels,
        )

    # The critical path.

    @property
    def _selecting(self) -> Selection:
        assert self._selection is not None, "no selection has begun"
        return self._selection

    @property
    def _best(self) -> Candidate:
        return self._selecting.best

    @property
    def _rival(self) -> Candidate:
        assert self.rivals.best is not None, "no rival was timed"
        return self.rivals.best

    @property
    def _arms(self) -> dict[str, Candidate]:
        return {RIVAL: self._rival, NEW: self._best}

    def _judge_kernels(self) -> None:
        """Judge whether the library's kernels are right while the rival compiles; begin the bundle.

        The bundle compiles beside the rival then.
        """
        turn, start, precision = self.turn, self._expected, self._precision()
        # Estimated before anything starts, so that a second turn decides as the first did.
        after_s = new_screening_s(turn, start)
        if precision != self.written.config.precision:
            after_s += self.losses.takes_s(start)
        launch_s = self.prover.launch_s({RIVAL: start, NEW: start})
        self._worth = self.profiles.first_worth(self.written)  # before anything compiles beside it
        self.rivals.begin()
        with turn.schedule.kernels(after_s, launch_s):
            self._judge(precision)
        if turn.arms.any_starts:
            self._begun = self._selection_from(start, precision).begin_bundle()

    @property
    def _expected(self) -> Candidate:
        found = self.rivals.expected
        assert found is not None, "there is no rival"
        return found

    def _precision(self, *, weights: bool = True) -> str:
        settings = self.turn.settings
        tried = weights and BF16_WEIGHTS in chosen_levers(settings) and not settings.keep_precision
        if tried and BF16_WEIGHTS.applies(self.situation) is None:
            return "bf16_master"
        return self._expected.config.precision

    def _judge(self, precision: str, start: Candidate | None = None) -> None:
        """Judge kernels for the rival's step in this precision, or for another step."""
        config = msgspec.structs.replace((start or self._expected).config, precision=precision)
        step = with_config(config, {})
        wanted = [
            lever
            for lever in chosen_levers(self.turn.settings)
            if lever.name.startswith(PREFIX) and lever.applies(self.situation) is None
        ]
        ranked = self._worth.ranked(wanted)
        if precision == "bf16_master":  # pays only with the update that rounds in the same pass
            ranked.sort(key=lambda lever: lever.field != "optimizer")
        names = [one.name.removeprefix(PREFIX) for one in ranked]
        found = judge_kernels(self.turn, step, self.written, names)
        self.kernels = self.kernels.joined(self.trials.recall(found, [step]))

    def _try_bundle(self, *, weights: bool = True) -> None:
        """Time the bundle against the rival; without `weights`, they stay in fp32."""
        self._worth = self.profiles.worth(self.rivals.baseline())
        precision = self._precision(weights=weights)
        self._selection = self._select(self._rival, precision, weights=weights)
        if self._best is not self._selecting.start:
            self.profiles.take_live(self._best)  # the proof ends all processes

    def _select(
        self, start: Candidate, precision: str, *, keep: bool = False, weights: bool = True
    ) -> Selection:
        """Begin a selection with every lever that applies, and time its bundle."""
        selection = self._selection_from(start, precision, keep=keep, weights=weights)
        if self._begun is not None and self._begun.key() != selection.bundle.key():
            self.turn.arms.drop(self._begun)  # another rival came first
        self._begun = None
        if (screening := selection.try_bundle()) is not None:
            self.sitting.add(screening.as_timed())
        return selection

    def _selection_from(
        self, start: Candidate, precision: str, *, keep: bool = False, weights: bool = True
    ) -> Selection:
        """Return a selection with every lever that applies."""
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
            applied = [replace(lever, default=True) for lever in applied]
        selection = Selection(
            turn=self.turn,
            situation=self.situation,
            start=start,
            proven=self.kernels.of(precision),
            modes=self.rivals.baseline().modes,
            worth=self._worth.joined(self.kernels.worth),
            skipped=skipped,
            objection=self._objection,
        )
        selection.prepare(applied)
        return selection

    def _keep_what_learns(self) -> None:
        """Compare losses; if they differ, try a bundle that rounds less, or the arithmetic kept."""
        best = self._best
        if best is self._selecting.start or self.losses.accept(best):
            return
        if self.losses.replays(best) and self.losses.of(best):
            self._without_replays(best)
            return
        reason, both = (
            self.losses.why_not(best),
            (best.config.precision, self._rival.config.precision),
        )
        if self.losses.of(best) and both == ("bf16_master", "bf16_autocast"):
            self.turn.warn(f"bf16 weights were dropped: {reason}")
            self._try_bundle(weights=False)
            self._keep_what_learns()
            self._selecting.refuse(BF16_WEIGHTS, reason)
            return
        self._say_dropped(best)
        self._keep_arithmetic()

    def _without_replays(self, replayed: Candidate) -> None:
        """Go on with a rival that replays no graphs: `replayed` does, and learns otherwise."""
        self._say_dropped(replayed)
        self.rivals.leave_replays(f"its losses differ: {self.losses.why_not(replayed)}")
        if not self.losses.replays(self._rival) and self.losses.replays(self._best):
            self._try_bundle()
            self._keep_what_learns()

    def _say_dropped(self, candidate: Candidate) -> None:
        what = "replayed graphs were" if self.losses.replays(candidate) else "bf16 was"
        self.turn.warn(f"{what} dropped: {self.losses.why_not(candidate)}")

    def _objection(self, candidate: Candidate) -> str:
        """Return why a change may not take the place of a best that learns; empty if it may."""
        if not self.losses.may_keep(self._best) or self.losses.accept(candidate):
            return ""
        return f"losses: {self.losses.why_not(candidate)}"

    def _settle(self) -> None:
        """Launch the best and its rival until they are told apart, and note what is proven."""
        best, rival = self._best, self._rival
        if best.key() in {rival.key(), self.written.key()} or not self.losses.accept(best):
            return
        ratio = self.prover.ratio(rival, best)
        if ratio > 1.0 or ratio == 0.0:  # not timed yet
            self.prover.settle(self._arms_to_prove(), self.turn.settings.launches)
        self._note_proven()

    def _arms_to_prove(self) -> dict[str, Candidate]:
        """Return rival and best, and the step as written if that leaves time for a launch."""
        if self.prover.is_timed(self.written):
            return self._arms
        whole, launch_s = (
            {**self._arms, "as_written": self.written},
            self.prover.launch_s(self._arms),
        )
        fits = self.turn.schedule.may_start(
            schedule.PROOF, self.prover.launch_s(whole), kept_s=launch_s
        )
        return whole if fits else self._arms

    def _note_proven(self) -> None:
        """Keep where the selection stands if that is proven."""
        if self.prover.is_faster(self._best, self._rival):
            self._earlier.append(self._selecting.snapshot())
            ratio = self.prover.ratio(self._rival, self._best)
            self.turn.tell("proven", title=self._best.title, ratio=ratio)

    # What comes after it.

    def _go_on(self) -> None:
        """Do what may win most for its time, again and again; then prove what came of it."""
        further = self._further()

        def needed_s(step: Step) -> float | None:
            return None if step in self._done else further[step][0]()

        def kept_s(step: Step) -> float:
            return 0.0 if step.proves else self._proof_s()

        def fits(step: Step) -> bool:
            found_s = needed_s(step)
            if found_s is None:
                return False
            return self.turn.schedule.may_start(step, found_s, kept_s=kept_s(step))

        while (step := next(filter(fits, self._order()), None)) is not None:
            try:
                with self.turn.schedule.leaving(kept_s(step)):
                    further[step][1]()
            except OutOfTime:
                self._done.add(step)
            if step.once:
                self._done.add(step)
        if self._order() is schedule.UNTIL_PROVEN:
            self.turn.schedule.why_ended = schedule.ENDS_PROVEN
        for step in schedule.THEN:
            if needed_s(step) is not None:
                self.turn.leave_out(step.what, self.turn.schedule.why_ended)
        self._settle()

    def _order(self) -> tuple[Step, ...]:
        if self.turn.settings.until_proven and self.prover.is_faster(self._best, self._rival):
            return schedule.UNTIL_PROVEN
        selected = self._best is not self._selecting.start
        return schedule.THEN if selected else schedule.KERNELS_FIRST

    def _further(self) -> dict[Step, tuple[Callable[[], float | None], Callable[[], None]]]:
        """Return the estimate of each step, None if nothing of it is left, and what runs it."""
        return {
            schedule.LAUNCHES: (self._launches_s, self._launch),
            schedule.LATE_LOSSES: (self._losses_s, self._compare_losses),
            schedule.WHOLE: self._launch_of("as_written"),
            schedule.FILLING: (self._filling_s, self._fill),
            schedule.MODES: (self.rivals.needed_s, self._time_mode),
            schedule.MORE_KERNELS: (self._more_kernels_s, self._more_kernels),
            schedule.ALONE: (self._selecting.needed_s, self._selecting.try_next),
            schedule.SAME: (self._same_s, self._keep_arithmetic),
            schedule.SAME_WHOLE: self._launch_of("best_compile_same", "same_arithmetic"),
            schedule.REGIONS: (self._writing_s, self._write),
        }

    def _proof_s(self) -> float:
        """Return the seconds that proving a new best, or against a new rival, would take."""
        return schedule.PLANNED_LAUNCHES * self.prover.launch_s(self._arms)

    def _uncompared(self) -> Candidate | None:
        """Return the best, or else the rival, which is the recipe if nothing better is proven."""
        both = (self._best, self._rival)
        return next((one for one in both if self.losses.needed_s(one) is not None), None)

    def _losses_s(self) -> float | None:
        found = self._uncompared()
        return self.losses.needed_s(found) if found is not None else None

    def _compare_losses(self) -> None:
        found = self._uncompared()
        if found is None or self.losses.accept(found):
            return
        if self.losses.replays(found) and self.losses.of(found):
            self._without_replays(found)
        elif found is self._best:
            self._keep_arithmetic()

    def _launches_s(self) -> float | None:
        """Estimate one more launch, where the answer is open and may be a gain."""
        rival, best = self._rival, self._best
        if not self.prover.is_open(rival, best) or not self.losses.may_keep(best):
            return None
        tried = self.prover.launches_of(rival, best)
        if tried >= schedule.MOST_LAUNCHES or (tried and self.prover.ratio(rival, best) <= 1.0):
            return None
        if not tried and self._earlier:
            return None  # changes are still being tried on top of what is proven
        return self.prover.launch_s(self._arms)

    def _launch(self) -> None:
        self.prover.launch(self._arms)
        self._note_proven()

    def _launch_of(self, *names: str) -> tuple[Callable[[], float | None], Callable[[], None]]:
        """Return the estimate and the run of a launch with these roles beside rival and recipe."""
        return partial(self._whole_s, names), lambda: self.prover.launch(self._whole(names))

    def _whole(self, names: Sequence[str]) -> dict[str, Candidate]:
        """Return the rival, the recipe if it may win, and these roles beside them."""
        same = self._same.best if self._same is not None else None
        best = self._earlier[-1].best if self._earlier else self._best
        if same is not None and not self.losses.may_keep(best):
            best = same
        known = roles(self.rivals.baseline(), same, best)
        wanted = (RIVAL, *(() if self._losing() else (NEW,)), *names)
        return {role: one for role in wanted if (one := known[role]) is not None}

    def _whole_s(self, names: Sequence[str]) -> float | None:
        """Estimate a launch with these roles, where they were not launched often enough."""
        if self._losing():
            beaten = beats_written(self.rivals.baseline(), self._rival, self.prover)
            if beaten or "as_written" not in names:
                return None
        arms = self._whole(names)
        if not arms.keys() >= set(names):
            return None
        if self.prover.is_timed(*arms.values()):
            return None
        return self.prover.launch_s(arms)

    def _losing(self) -> bool:
        lost = self.prover.ratio(self._rival, self._best) <= 1.0
        return not self._earlier and self._same is None and lost

    def _time_mode(self) -> None:
        """Time the next mode of torch.compile; if it is the rival now, the best takes it over."""
        before = self._rival
        self.rivals.time_next()
        if self._rival is not before:
            self._selecting.follow(self._rival)

    def _filling_s(self) -> float | None:
        """Estimate the first larger batch, where the rival's profile shows an idle GPU."""
        if self.batches.why_not(self._identity()):
            return None
        return self.batches.needed_s(self._best)

    def _fill(self) -> None:
        identity = self._identity()
        assert identity is not None
        self.turn.arms.close()  # the larger batch gets the memory
        self._larger_batch = self.batches.measured(self._best, identity)

    def _identity(self) -> IdentityResult | None:
        profile = self.profiles.of(self._rival)
        return profile.identity if profile is not None else None

    def _more_kernels_s(self) -> float | None:
        """Estimate the verdict on the next kernel that the budget had no room for."""
        if not self.kernels.left_out(self._best.config.precision):
            return None
        return 2 * self.turn.costs.verdict_s + new_screening_s(self.turn, self._best)

    def _more_kernels(self) -> None:
        """Judge the kernels that had no time, and try those that are proven on top."""
        precision = self._best.config.precision
        waiting = self.kernels.left_out(precision)
        with self._before_screening():
            self._judge(precision)
        heard = set(waiting) - set(self.kernels.left_out(precision))
        self._try_with([one for one in kernel_levers() if one.name.removeprefix(PREFIX) in heard])

    def _before_screening(self) -> AbstractContextManager[None]:
        """Limit the enclosed work so that what it finds can be screened and proven."""
        screening_s = new_screening_s(self.turn, self._best)
        return self.turn.schedule.leaving(self._proof_s() + screening_s)

    def _try_with(self, levers: Sequence[Lever]) -> None:
        """Put kernels that were proven since on top of the best, all at once."""
        precision = self._best.config.precision
        applied, refused = applicable(
            levers,
            self.situation,
            refused_kernels=self.kernels.why_not(precision),
            keep_arithmetic=False,
        )
        self._selecting.add(applied, self.kernels.of(precision), self.kernels.worth, refused)

    def _writing_s(self) -> float | None:
        if not self.trials.may_write(self._best):
            return None
        least_s = SHORTEST_S / (schedule.KEEPS * schedule.WRITING.share)
        return least_s + new_screening_s(self.turn, self._best)

    def _write(self) -> None:
        """Have the authors write for the regions of the best step, and try what is proven."""
        precision = self._best.config.precision
        known = {one.name for one in self.kernels.regions.get(precision, ())}
        with self._before_screening():
            self.kernels = self.trials.write(self.kernels, self._best, self._worth.step_time_s)
        regions = self.kernels.regions.get(precision, ())
        self._try_with([one for one in regions if one.name not in known])

    def _same_s(self) -> float | None:
        """Estimate a selection in the written arithmetic, where the best has another."""
        if self._same is not None or keeps_arithmetic(self._best, self.written):
            return None
        turn, start = self.turn, self.rivals.baseline().best_same
        if start is None:
            return None  # its rival is timed first
        return new_screening_s(turn, start) + turn.costs.plain_s + turn.costs.verdict_s

    def _keep_arithmetic(self) -> None:
        """Select in the written arithmetic from its own rival, which is timed if it was not."""
        with contextlib.suppress(OutOfTime):
            while self.rivals.baseline().best_same is None and self.rivals.next_one() is not None:
                self.rivals.time_next()
            start = self.rivals.baseline().best_same
            if start is not None:
                precision = start.config.precision
                self._judge(precision, start)
                self._same = self._select(start, precision, keep=True).snapshot()


def chosen_levers(settings: Settings) -> list[Lever]:
    """Return all levers, or only the one named by `--try`."""
    if settings.try_lever is None:
        return [*LEVERS, *kernel_levers()]
    return [find_lever(settings.try_lever)]
