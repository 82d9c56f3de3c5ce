"""Run the final paired comparison of the recipe with every baseline, over several launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ratchet.errors import DeadlinePassed
from ratchet.judge.steps.recipe_trial import time_arms
from ratchet.measure.estimate import Floor, aa_floor, compare, summarise
from ratchet.measure.rounds import FEWEST_ROUNDS
from ratchet.measure.samples import Sample
from ratchet.optimize.step.candidate import Candidate
from ratchet.optimize.turn.budget import (
    LEAST_LAUNCHES,
    START_TOGETHER,
    WARMUP_STEPS,
    ProofPlan,
    plan_proof,
    sacrificed,
    timed,
    together_s,
)
from ratchet.optimize.turn.result import StepSpeedup
from ratchet.optimize.turn.state import MEMORY_SHARE, Turn

TWIN = "twin"
"""A second process of the best rival; any difference between the two is noise."""
EARLY = 0.93
"""Part of its share by which a launch that others follow ends: it overruns by a round or two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The samples of the final run and the answers drawn from them."""

    arms: dict[str, Candidate]
    """Candidates by role; roles without a sample are absent."""
    samples: tuple[Sample, ...]
    descriptions: dict[str, dict[str, Any]]
    setup_s: dict[str, float]
    floor: Floor
    launches: int
    asked: int

    @property
    def decides(self) -> bool:
        """Return True if there were enough launches for a claim."""
        return self.launches >= min(self.asked, LEAST_LAUNCHES)

    def launches_of(self, *roles: str) -> int:
        """Return the number of launches that timed all of these roles."""
        timed = [{one.launch for one in self.samples if one.arm == role} for role in roles]
        return len(set.intersection(*timed))

    def timed(self, *roles: str) -> bool:
        return all(role in self.arms for role in roles)

    def speedup(self, baseline: str, new: str) -> StepSpeedup:
        if self.arms[baseline].key() == self.arms[new].key():
            return StepSpeedup(ratio=1.0, low=1.0, high=1.0, answer="equivalent")
        found = compare(self.samples, baseline=baseline, new=new, floor=self.floor)
        enough = self.launches_of(baseline, new) >= min(self.asked, LEAST_LAUNCHES)
        answer = found.answer if enough else "undecided"
        return StepSpeedup(ratio=found.ratio, low=found.low, high=found.high, answer=answer)

    def is_faster(self, new: str, than: str) -> bool:
        """Return True if this run proves that `new` is faster than `than`."""
        return self.timed(new, than) and self.speedup(than, new).answer == "faster"

    def summary(self, key: str) -> Any:
        return summarise(self.samples, key)

    def recast(self, arms: dict[str, Candidate]) -> Proof:
        """Return the same run with other roles for the candidates that it timed."""
        owner = {candidate.key(): role for role, candidate in self.arms.items()}
        known = {role: one for role, one in arms.items() if one.key() in owner}
        source = {role: owner[candidate.key()] for role, candidate in known.items()}
        twin = [sample for sample in self.samples if sample.arm == TWIN]
        return replace(
            self,
            arms=known,
            samples=tuple(twin + _under(self.samples, source)),
            descriptions={r: self.descriptions.get(s, {}) for r, s in source.items()},
            setup_s={r: self.setup_s.get(s, 0.0) for r, s in source.items()},
        )


def _under(samples: Sequence[Sample], source: dict[str, str]) -> list[Sample]:
    """Return the samples of each source role, renamed to the role."""
    return [
        Sample(**{**asdict(sample), "arm": role})
        for role, other in source.items()
        for sample in samples
        if sample.arm == other
    ]


def prove(turn: Turn, arms: dict[str, Candidate], *, rival: str) -> Proof | None:
    """Time `arms` (role to candidate) and a twin of `rival`, adjacent and in random order.

    Arms that run the same thing share one process. Each launch is remembered separately, so a
    killed run resumes at its current launch. Returns None if the budget has no room for a launch.
    """
    turn.close_arms()
    plan = plan_proof(
        turn.costs, arms, rival=rival, left_s=turn.left_s(), launches=turn.settings.launches
    )
    if plan is None:
        turn.leave_out("the final run", "the budget has no room for one")
        return None
    distinct = _distinct({role: arms[role] for role in plan.roles}, rival)
    sets = [_distinct(some, rival) for some in sacrificed({r: arms[r] for r in plan.roles})]
    done = _launches(turn, sets, rival, plan)
    for omission in plan.omissions:
        turn.leave_out(omission.what, omission.reason)
    if not done:
        turn.leave_out("the final run", "the budget ended during its first launch")
        return None
    if len(done) < plan.launches:
        what = f"{plan.launches - len(done)} of {turn.settings.launches} launches of the final run"
        turn.leave_out(what, "the budget ended before them")
    samples = [Sample(**sample) for payload in done for sample in payload["samples"]]
    # Launches that the ledger remembers of a killed run may have had fewer arms, all of them.
    seen = {sample.arm for sample in samples}
    return Proof(
        arms={role: one for role, one in distinct.items() if role in seen},
        samples=tuple(samples),
        descriptions={role: told for one in done for role, told in one["descriptions"].items()},
        setup_s=done[0]["setup_s"],
        floor=aa_floor(samples, rival, TWIN),
        launches=len(done),
        asked=turn.settings.launches,
    ).recast({role: arms[role] for role in arms})


def _launches(
    turn: Turn, sets: Sequence[dict[str, Candidate]], rival: str, plan: ProofPlan
) -> list[dict[str, Any]]:
    """Return the payload of each launch; fewer than planned if the budget ended.

    A launch that takes longer than planned leaves the later ones a smaller one of the `sets`.
    """
    done: list[dict[str, Any]] = []
    place, least_s = 0, 0.0
    for launch in range(plan.launches):
        more = plan.launches - launch - 1
        needed_s = _needed_s(turn, sets, rival, place, least_s)
        known = [turn.holds("proof", _name(one, rival, launch)) for one in sets]
        fitting = [index for index, one_s in needed_s if one_s * (more + 1) <= turn.left_s()]
        place = known.index(True) if any(known) else min([*fitting, len(sets) - 1])
        if not any(known) and dict(needed_s)[place] > turn.left_s():
            break
        arms = sets[place]
        left_s = turn.left_s() / (more + 1) * (EARLY if more else 1.0)
        ends_s = turn.spent_s + left_s
        rounds = max(FEWEST_ROUNDS, turn.costs.rounds_in(left_s, timed(arms, tuple(arms), rival)))
        try:
            payload = turn.memo(
                "proof",
                _name(arms, rival, launch),
                lambda: _launch(turn, arms, rival, rounds, launch, ends_s),  # noqa: B023
            )
        except DeadlinePassed:
            break
        if len(arms) < len(sets[0]):
            what = f"some arms in launch {launch + 1} of the final run"
            turn.leave_out(what, "an earlier launch took longer than planned")
        done.append(payload)
        least_s = payload.get("least_s", 0.0)  # older ledgers lack it
        for role, setup_s in payload["setup_s"].items():
            if role in arms:
                alone_s = float(setup_s) / together_s([1.0] * START_TOGETHER)
                turn.costs.note_setup(arms[role], float(setup_s), alone_s=alone_s)
    return done


def _needed_s(
    turn: Turn, sets: Sequence[dict[str, Candidate]], rival: str, place: int, least_s: float
) -> list[tuple[int, float]]:
    """Return the least seconds of a launch of each set from `place` on, by the last launch's."""
    estimates_s = [
        turn.costs.launch_s(timed(one, tuple(one), rival), FEWEST_ROUNDS) for one in sets
    ]
    scale = least_s / estimates_s[place] if estimates_s[place] else 0.0
    return [(index, scale * one) for index, one in enumerate(estimates_s) if index >= place]


def _name(arms: dict[str, Candidate], rival: str, launch: int) -> str:
    key = ":".join(sorted(candidate.key() for candidate in arms.values()))
    return f"{key}:{rival}:{launch}"


def _launch(
    turn: Turn,
    distinct: dict[str, Candidate],
    rival: str,
    rounds: int,
    launch: int,
    ends_s: float,
) -> dict[str, Any]:
    turn.tell("proof", launch=launch, rounds=rounds)
    began_s = turn.elapsed_s
    specs = [turn.spec(candidate, name=role) for role, candidate in distinct.items()]
    specs.append(turn.spec(distinct[rival], name=TWIN))
    trial = time_arms(
        specs,
        launches=1,
        rounds=rounds,
        warmup=WARMUP_STEPS,
        seed=turn.settings.seed + launch,
        concurrent=_fit_together(turn, distinct),
        start_together=START_TOGETHER,
        on_event=lambda event: turn.tell("trial", **asdict(event)),
        enough=lambda: turn.spent_s >= ends_s,
    )
    further_s = sum(one.wall_time_s for one in trial.samples if one.round >= FEWEST_ROUNDS)
    return {
        "least_s": turn.elapsed_s - began_s - further_s,
        "samples": [{**asdict(sample), "launch": launch} for sample in trial.samples],
        "descriptions": trial.descriptions,
        "setup_s": trial.setup_time_s,
        "concurrent": trial.concurrent,
    }


def _fit_together(turn: Turn, distinct: dict[str, Candidate]) -> bool:
    """Return True if all arms and the twin fit in memory together, judging by one arm's usage."""
    if turn.device.kind != "cpu":
        return False
    needed_bytes = turn.peak_memory_bytes * (len(distinct) + 1)
    fit = needed_bytes < MEMORY_SHARE * turn.device.memory_bytes
    if not fit:
        turn.warnings.append(
            "the arms do not fit in memory together, so they were timed one after the other; the "
            "intervals lack the precision of adjacent pairs"
        )
    return fit


def _distinct(arms: dict[str, Candidate], first: str) -> dict[str, Candidate]:
    """Return the first role of each different candidate, with `first` before all others."""
    found: dict[str, Candidate] = {}
    for role in sorted(arms, key=lambda role: role != first):
        candidate = arms[role]
        if candidate.key() not in {other.key() for other in found.values()}:
            found[role] = candidate
    return found
