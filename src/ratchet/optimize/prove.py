"""The final paired run: the recipe against every baseline, over several launches."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ratchet.judge.recipe_trial import time_arms
from ratchet.measure.estimate import Floor, aa_floor, compare, summarise
from ratchet.measure.samples import Sample
from ratchet.optimize.candidate import Candidate
from ratchet.optimize.result import Speedup
from ratchet.optimize.turn import MEMORY_SHARE, WARMUP_STEPS, Turn

TWIN = "twin"
"""A second process of the best rival: what differs between them is noise."""
FEWEST_ROUNDS, MOST_ROUNDS = 5, 20
START_TOGETHER = 2
"""Arms that start at a time: imports and tracing use one core each."""
LEAST_S = 6.0
"""Of timing in a launch, however little of the budget is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The samples of the final run and what they say."""

    arms: dict[str, Candidate]
    samples: tuple[Sample, ...]
    descriptions: dict[str, dict[str, Any]]
    setup_s: dict[str, float]
    floor: Floor

    def speedup(self, baseline: str, new: str) -> Speedup:
        if baseline == new:
            return Speedup(ratio=1.0, low=1.0, high=1.0, answer="equivalent")
        found = compare(self.samples, baseline=baseline, new=new, floor=self.floor)
        return Speedup(ratio=found.ratio, low=found.low, high=found.high, answer=found.answer)

    def summary(self, key: str) -> Any:
        return summarise(self.samples, key)


def prove(turn: Turn, arms: dict[str, Candidate], *, rival: str, step_s: dict[str, float]) -> Proof:
    """Time `arms` (role to candidate) and a twin of `rival`, adjacent and in random order.

    Arms that run the same thing share one process. Each launch is remembered by itself, so that
    a killed run goes on with the launch it was at.
    """
    launches = turn.settings.launches
    distinct = _distinct(arms, rival)
    rounds = _rounds(turn, [step_s.get(role, 1.0) for role in distinct] + [step_s.get(rival, 1.0)])
    key = ":".join(sorted(candidate.key() for candidate in distinct.values()))
    samples: list[Sample] = []
    descriptions: dict[str, dict[str, Any]] = {}
    setup_s: dict[str, float] = {}
    turn.close_arms()
    for launch in range(launches):
        payload = turn.memo(
            "proof",
            f"{key}:{rival}:{launch}",
            lambda: _launch(turn, distinct, rival, rounds, launch),  # noqa: B023
        )
        samples += [Sample(**sample) for sample in payload["samples"]]
        descriptions |= payload["descriptions"]
        setup_s |= payload["setup_s"]
    samples = _with_aliases(samples, arms, distinct)
    return Proof(
        arms=arms,
        samples=tuple(samples),
        descriptions=descriptions,
        setup_s=setup_s,
        floor=aa_floor(samples, rival, TWIN),
    )


def _launch(
    turn: Turn, distinct: dict[str, Candidate], rival: str, rounds: int, launch: int
) -> dict[str, Any]:
    turn.tell("proof", launch=launch, rounds=rounds)
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
    )
    return {
        "samples": [{**asdict(sample), "launch": launch} for sample in trial.samples],
        "descriptions": trial.descriptions,
        "setup_s": trial.setup_time_s,
        "concurrent": trial.concurrent,
    }


def _fit_together(turn: Turn, distinct: dict[str, Candidate]) -> bool:
    """Whether all arms and the twin stand in memory at once, by what one was seen to use."""
    if turn.device.kind != "cpu":
        return False
    needed_bytes = turn.peak_memory_bytes * (len(distinct) + 1)
    fit = needed_bytes < MEMORY_SHARE * turn.device.memory_bytes
    if not fit:
        turn.warnings.append(
            "the arms do not fit in memory together: they were timed one after the other, and the "
            "intervals do not have the precision of adjacent pairs"
        )
    return fit


def _distinct(arms: dict[str, Candidate], first: str) -> dict[str, Candidate]:
    """The first role of each different candidate, `first` before all."""
    found: dict[str, Candidate] = {}
    for role in sorted(arms, key=lambda role: role != first):
        candidate = arms[role]
        if candidate.key() not in {other.key() for other in found.values()}:
            found[role] = candidate
    return found


def _with_aliases(
    samples: list[Sample], arms: dict[str, Candidate], distinct: dict[str, Candidate]
) -> list[Sample]:
    """Give roles that share a process the same samples under each name."""
    owner = {candidate.key(): role for role, candidate in distinct.items()}
    found = list(samples)
    for role, candidate in arms.items():
        source = owner[candidate.key()]
        if source != role:
            found += [
                Sample(**{**asdict(sample), "arm": role})
                for sample in samples
                if sample.arm == source
            ]
    return found


def _rounds(turn: Turn, step_times_s: list[float]) -> int:
    """Rounds a launch, from what is left of the budget; a launch's start is paid first."""
    left_s = turn.left_s() / turn.settings.launches
    for_rounds_s = max(LEAST_S, 0.5 * left_s)
    return min(MOST_ROUNDS, max(FEWEST_ROUNDS, math.floor(for_rounds_s / sum(step_times_s))))
