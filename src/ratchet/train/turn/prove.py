"""Prove the recipe: launches of it and its rival, timed side by side until they are told apart."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import msgspec

from ratchet.base.errors import MeasureError, OutOfTime
from ratchet.base.measure import Floor, Ratio, Sample
from ratchet.base.measure.estimate import DISTURBED, ArmTime, launch_medians, summarise
from ratchet.base.measure.rounds import FEWEST_ROUNDS, until_settled
from ratchet.base.measure.sitting import FEWEST_LAUNCHES, Sitting, TimedTogether
from ratchet.judge.steps.arms import time_arms
from ratchet.train.recipe import Candidate
from ratchet.train.recipe.facts import ArmFacts
from ratchet.train.turn.schedule import LAUNCHING, MARGIN, PROOF, WARMUP_STEPS
from ratchet.train.turn.state import Turn

RIVAL, NEW = "best_compile", "ratchet"  # The two roles that every launch times
TWIN = "twin"  # A second process of the rival; any difference between the two is noise
MOST_WIDTH = 100.0  # High end of an interval over its low end, from which it says nothing at all


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofLaunch:
    """One launch of the final run, by the roles of its arms."""

    estimate_s: float  # The estimate of its time, and its time but for the rounds beyond the fewest
    least_s: float
    samples: tuple[Sample, ...]
    processes: dict[str, str]  # A name of its own for each process
    descriptions: dict[str, ArmFacts]
    setup_s: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The answers that a sitting's launches give, by the roles that candidates have in it."""

    arms: Mapping[str, Candidate]  # Candidates by role; roles that were not timed are absent
    sitting: Sitting
    descriptions: Mapping[str, ArmFacts]
    """Last description of each candidate's arm, by the candidate's key."""

    @property
    def launches(self) -> int:
        """Return the number of launches that timed the recipe beside its rival."""
        if not self.timed(RIVAL, NEW):
            return 0
        return self.sitting.launches_of(self.arms[RIVAL].key(), self.arms[NEW].key())

    def timed(self, *roles: str) -> bool:
        return all(role in self.arms for role in roles)

    def speedup(self, baseline: str, new: str) -> Ratio | None:
        """Compare two roles; None if no chain of pairs joins them."""
        if not self.timed(baseline, new):
            return None
        return speedup_of(self.sitting, self.arms[baseline], self.arms[new])

    @property
    def floor(self) -> Floor | None:
        """Return the range of ratios between two copies of the rival; None if it is unknown."""
        if not self.timed(RIVAL, NEW):
            return None
        floor = self.sitting.compare(self.arms[RIVAL].key(), self.arms[NEW].key()).floor
        return floor if floor is not None and floor.high < MOST_WIDTH else None

    def summary(self, role: str) -> ArmTime:
        """Return a role's own step time, over the launches near its fastest one.

        Ratios count every launch, as drift cancels in pairs. In times it does not: of a quiet and a
        disturbed launch, the medians of two roles can contradict their ratio.
        """
        samples = [one for one in self._samples(role) if one.arm == role]
        medians = launch_medians(samples)
        least = min(medians.values(), default=0.0)
        near = [one for one in samples if medians[one.launch] <= DISTURBED * least]
        return summarise(near if len(near) >= FEWEST_ROUNDS else samples, role)

    def samples(self) -> list[Sample]:
        """Return every sample of the roles, each launch with a number of its own."""
        found = [one for role in self.arms for one in self._samples(role)]
        return sorted(found, key=lambda one: (one.launch, one.round, one.position))

    def _samples(self, role: str) -> list[Sample]:
        """Return one role's samples under its name; a second process of it is called the twin."""
        key, found = self.arms[role].key(), []
        for launch, timed in enumerate(self.sitting.timed):
            own = [arm for arm, way in timed.ways.items() if way == key]
            names = {arm: TWIN if place else role for place, arm in enumerate(sorted(own))}
            found += [
                replace(one, arm=names[one.arm], launch=launch)
                for one in timed.samples
                if one.arm in names
            ]
        return found


def speedup_of(sitting: Sitting, old: Candidate, new: Candidate) -> Ratio | None:
    """Compare two candidates; None if no chain of pairs joins them, or if it says nothing."""
    if old.key() == new.key():
        return Ratio(ratio=1.0, low=1.0, high=1.0, answer="equivalent")
    found = _compared(sitting, old, new)
    if found is None or not math.isfinite(found.high) or found.high / found.low > MOST_WIDTH:
        return None
    return Ratio(ratio=found.ratio, low=found.low, high=found.high, answer=found.answer)


def _compared(sitting: Sitting, old: Candidate, new: Candidate) -> Ratio | None:
    try:
        return sitting.compare(old.key(), new.key())
    except MeasureError:
        return None


@dataclass(kw_only=True)
class Prover:
    """Runs launches one after another; each is remembered, so that a killed turn resumes."""

    turn: Turn
    sitting: Sitting
    descriptions: dict[str, ArmFacts] = field(default_factory=dict)
    _count: dict[str, int] = field(default_factory=dict)  # Launches so far, by what they timed
    _scale: float = 1.0  # Time of the last launch over its estimate

    def launch_s(self, arms: Mapping[str, Candidate]) -> float:
        """Estimate the seconds of the shortest launch of these arms, by role."""
        costs = [*_distinct(arms).values(), arms[RIVAL]]
        return self._scale * self.turn.costs.launch_s(costs, FEWEST_ROUNDS)

    def settle(self, arms: Mapping[str, Candidate], launches: int) -> None:
        """Launch rival and new until they are told apart, time runs out, or so often."""
        both = (arms[RIVAL], arms[NEW])

        def settled(looks: int) -> bool:
            return not self.is_open(*both) or self.launches_of(*both) >= launches

        def take(looks: int) -> bool:
            if not self.turn.schedule.may_start(PROOF, self.launch_s(arms)):
                return False
            self.launch(arms)
            return True

        with contextlib.suppress(OutOfTime):
            until_settled(take, settled)

    def is_open(self, rival: Candidate, new: Candidate) -> bool:
        """Return True if more launches may still show that `new` is faster."""
        if rival.key() == new.key():
            return False
        found = _compared(self.sitting, rival, new)
        return found is None or found.answer == "undecided"

    def launches_of(self, *candidates: Candidate) -> int:
        """Return the number of launches that timed all of these candidates."""
        return self.sitting.launches_of(*(one.key() for one in candidates))

    def is_timed(self, *candidates: Candidate) -> bool:
        """Return True if each of these candidates was started often enough to be compared."""
        return self.sitting.starts_of(*(one.key() for one in candidates)) >= FEWEST_LAUNCHES

    def ratio(self, rival: Candidate, new: Candidate) -> float:
        """Return the estimated ratio by now; 0 if there is none."""
        found = _compared(self.sitting, rival, new)
        return 0.0 if found is None else found.ratio

    def speedup(self, old: Candidate, new: Candidate) -> Ratio | None:
        """Compare two candidates by all launches so far; None if they do not tell."""
        return speedup_of(self.sitting, old, new)

    def is_faster(self, new: Candidate, than: Candidate) -> bool:
        found = self.speedup(than, new)
        return found is not None and found.answer == "faster"

    def launch(self, arms: Mapping[str, Candidate]) -> None:
        """Time the arms and a twin of the rival in new processes; OutOfTime if time ran out.

        Roles that run the same thing share one process.
        """
        turn = self.turn
        turn.arms.close()
        distinct = _distinct(arms)
        name = ":".join(sorted(one.key() for one in distinct.values()))
        number = self._count[name] = self._count.get(name, -1) + 1
        key = f"{name}:{arms[RIVAL].key()}:{number}"
        place = sum(self._count.values()) + len(self._count) - 1
        found = turn.memo("proof", key, ProofLaunch, lambda: self._launch(distinct, place))
        self._learn(distinct, found)
        processes = found.processes
        ways = {role: arms[RIVAL if role == TWIN else role].key() for role in processes}
        self.sitting.add(TimedTogether(samples=found.samples, processes=processes, ways=ways))

    def _learn(self, distinct: Mapping[str, Candidate], found: ProofLaunch) -> None:
        costs = self.turn.costs
        crowd = costs.at_once_s([1.0] * len(found.setup_s))
        for role, setup_s in found.setup_s.items():
            if role in distinct:
                costs.note_setup(distinct[role], setup_s, alone_s=setup_s / crowd)
        for role, told in found.descriptions.items():
            if role in distinct:
                self.descriptions[distinct[role].key()] = told
        if found.estimate_s > 0:
            self._scale *= max(0.5, min(2.0, found.least_s / found.estimate_s))

    def _launch(self, distinct: Mapping[str, Candidate], place: int) -> ProofLaunch:
        turn = self.turn
        rounds = self._rounds(distinct)
        turn.tell("proof", launch=place, rounds=rounds)
        estimate_s, began_s = self.launch_s(distinct), turn.schedule.elapsed_s
        specs = [turn.arms.spec(candidate, name=role) for role, candidate in distinct.items()]
        specs.append(turn.arms.spec(distinct[RIVAL], name=TWIN))
        names = {role: uuid.uuid4().hex for role in (*distinct, TWIN)}
        fit = turn.arms.fit_together([*distinct.values(), distinct[RIVAL]])
        if not fit:
            turn.warn(
                "the arms do not fit in memory together, so they were timed one after the other; "
                "the intervals lack the precision of adjacent pairs"
            )
        with turn.schedule.doing(LAUNCHING):
            trial = time_arms(
                specs,
                rounds=rounds,
                warmup=WARMUP_STEPS,
                seed=turn.settings.seed + place,
                concurrent=fit,
                start_together=len(specs),
                on_event=lambda event: turn.tell("trial", **asdict(event)),
                enough=turn.schedule.is_over,
            )
        further_s = sum(one.wall_time_s for one in trial.samples if one.round >= FEWEST_ROUNDS)
        return ProofLaunch(
            estimate_s=estimate_s,
            least_s=turn.schedule.elapsed_s - began_s - further_s,
            samples=tuple(trial.samples),
            processes=names,
            descriptions={
                role: msgspec.convert(told, ArmFacts) for role, told in trial.descriptions.items()
            },
            setup_s=dict(trial.setup_time_s),
        )

    def _rounds(self, distinct: Mapping[str, Candidate]) -> int:
        costs, arms = self.turn.costs, [*distinct.values(), distinct[RIVAL]]
        round_s = MARGIN * sum(costs.step_s(one) for one in arms)
        return self.turn.schedule.rounds(round_s, self._scale * costs.launch_s(arms, 0))

    def proof(self, arms: Mapping[str, Candidate | None]) -> Proof:
        """Return what was found of these roles; those that were never timed are left out."""
        known = {way for one in self.sitting.timed for way in one.ways.values()}
        timed = {role: one for role, one in arms.items() if one is not None and one.key() in known}
        return Proof(arms=timed, sitting=self.sitting, descriptions=self.descriptions)


def _distinct(arms: Mapping[str, Candidate]) -> dict[str, Candidate]:
    """Return the first role of each different candidate, with the rival before all others."""
    found: dict[str, Candidate] = {}
    for role in sorted(arms, key=lambda role: role != RIVAL):
        if all(arms[role].key() != other.key() for other in found.values()):
            found[role] = arms[role]
    return found
