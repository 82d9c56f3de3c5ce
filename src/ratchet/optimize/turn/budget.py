"""Budget one turn: learn what stages cost, and keep enough for the final run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ratchet.measure.rounds import FEWEST_ROUNDS
from ratchet.optimize.step.candidate import Candidate
from ratchet.optimize.turn.result import Omission

MOST_ROUNDS = 20
"""Maximum rounds in one launch of the final run."""
LEAST_LAUNCHES = 2
"""Minimum launches of the final run; one launch cannot show how much starts differ."""
WARMUP_STEPS = 3
START_TOGETHER = 2
"""Number of arms that start at a time; imports and tracing use one core each."""
PROOF_SHARE = 0.2
"""Share of the budget that a proof longer than the shortest one may reserve."""
MARGIN = 1.15
"""Safety factor on the proof's launch time as predicted from the starts so far."""
BESIDE = 0.2
"""Share of its own time that an arm adds to a longer start beside it, on two cores."""
LARGE_SHARE = 0.45
"""Share of the budget that the shortest run with all launches may reserve; else some go."""
COMPILING_BESIDE = 0.8
"""`BESIDE` for two arms that both compile with cold caches and so occupy every core.

Two starts that took 128 s one after the other took 114 s together (vit, two Zen 4 cores).
"""
WARM = 0.15
"""Share of the compile time that a restart takes with warm caches, if none was seen yet.

Measured: 0.06 to 0.15 (llama-8m and llama-tiny on two Zen 4 cores).
"""
COMPILED_START, AUTOTUNED_START = 3.0, 2.5
"""Guesses until one was seen: compiled over plain start time, and autotuned over compiled."""


def closing_s(budget_s: float) -> float:
    """Return the seconds reserved for assembling the result, writing it and exiting."""
    return min(15.0, 1.5 + 0.04 * budget_s)


def crowding(cold_arms: int) -> float:
    """Return how much longer this many cold compilations take side by side than one alone."""
    return 1 + COMPILING_BESIDE * max(0, cold_arms - 1)


def together_s(setups_s: Iterable[float], at_a_time: int = START_TOGETHER) -> float:
    """Return the seconds that arms take to start, `at_a_time` side by side on shared cores."""
    ordered = sorted(setups_s, reverse=True)
    groups = [ordered[first : first + at_a_time] for first in range(0, len(ordered), at_a_time)]
    return sum((1 - BESIDE) * max(group) + BESIDE * sum(group) for group in groups)


@dataclass(kw_only=True)
class Costs:
    """Seconds that arms took in this turn: starts by what they compile, steps by candidate."""

    setups_s: dict[str, float] = field(default_factory=dict)
    """First starts of compiled arms: from process start to the end of the first step."""
    steps_s: dict[str, float] = field(default_factory=dict)
    profile_s: float = 0.0
    verdict_s: float = 0.0
    """The last verdict on a kernel. The first one also starts the judge's processes."""
    _modes: dict[str, float] = field(default_factory=dict)
    """Seconds of a start that compiles from scratch, alone, by compile mode."""
    _plain_s: float = math.inf
    _restarts_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the latest start that was not the first."""
    _warm: dict[bool, float] = field(default_factory=dict)
    """Share of the compile time that a restart takes, by whether the step has kernels: the passes
    that install them leave less to the caches."""

    def note_plain(self, start_s: float) -> None:
        """Record the seconds until an arm could run its first step; the shortest counts.

        A start is slower beside arms that compile, or before the files are in memory.
        """
        if start_s > 0:
            self._plain_s = min(start_s, self._plain_s)

    def note_setup(
        self,
        candidate: Candidate,
        setup_s: float,
        *,
        alone_s: float | None = None,
        compiled: bool = True,
    ) -> None:
        """Learn from a start; `alone_s` is the time it would have taken with no arm beside it.

        `compiled` is False if it found all of its code in the compile cache.
        """
        if setup_s <= 0:
            return
        mode = candidate.config.compile_mode
        if mode is None:
            self.note_plain(setup_s)
            return
        key = candidate.graph_key()
        if key in self.setups_s:
            self._note_restart(candidate, alone_s or setup_s)
        elif not compiled:
            self._restarts_s[key] = alone_s or setup_s
        else:
            self.setups_s[key] = setup_s
            self._modes[mode] = max(alone_s or setup_s, self._modes.get(mode, 0.0))

    def is_cold(self, candidate: Candidate) -> bool:
        """Return True if its start would compile code that no start in this turn has compiled."""
        key = candidate.graph_key()
        seen = key in self.setups_s or key in self._restarts_s
        return candidate.config.compile_mode is not None and not seen

    def _note_restart(self, candidate: Candidate, setup_s: float) -> None:
        """Learn from a second start and its share of a long first start's compile time."""
        key, kind = candidate.graph_key(), bool(candidate.kernels)
        self._restarts_s[key] = setup_s
        compiled_s = self.setups_s[key] - self.plain_s
        if compiled_s > self.plain_s:
            share = min(1.0, (setup_s - self.plain_s) / compiled_s)
            self._warm[kind] = max(self._warm.get(kind, 0.0), share)

    def note_step(self, candidate: Candidate, step_s: float) -> None:
        if step_s > 0:
            self.steps_s[candidate.key()] = step_s

    @property
    def plain_s(self) -> float:
        """Seconds of a start that compiles nothing; 0 if none was seen."""
        return self._plain_s if math.isfinite(self._plain_s) else 0.0

    def setup_s(self, candidate: Candidate) -> float:
        """Return its first start's seconds, or a guess from similar starts; 0 if none was seen."""
        return self.setups_s.get(candidate.graph_key()) or self.compiled_s(candidate)

    def compiled_s(self, candidate: Candidate) -> float:
        """Return the seconds of a start that compiles from scratch, alone; 0 if none was seen."""
        mode = candidate.config.compile_mode
        if mode is None:
            return self.plain_s
        if mode in self._modes:
            return self._modes[mode]
        if mode != "default" and "default" in self._modes:
            return AUTOTUNED_START * self._modes["default"]
        return COMPILED_START * self.plain_s

    def restart_s(self, candidate: Candidate) -> float:
        """Return the seconds of another start; caches are warm if it was started before."""
        return self.setup_s(candidate) if self.is_cold(candidate) else self.warm_s(candidate)

    def warm_s(self, candidate: Candidate) -> float:
        """Return the seconds of a start whose code is in the compile cache."""
        key, setup_s = candidate.graph_key(), self.setup_s(candidate)
        if key in self._restarts_s:
            return self._restarts_s[key]
        if setup_s <= self.plain_s:
            return setup_s
        warm = self._warm.get(bool(candidate.kernels), WARM)
        return self.plain_s + warm * (setup_s - self.plain_s)

    def step_s(self, candidate: Candidate) -> float:
        """Return the time of its step, or the longest of any so far; 0 if none was timed."""
        return self.steps_s.get(candidate.key()) or max(self.steps_s.values(), default=0.0)

    def launch_s(self, candidates: Sequence[Candidate], rounds: int) -> float:
        """Return the seconds of one launch of these arms: starts, warm-ups and rounds."""
        steps_s = sum(self.step_s(one) for one in candidates)
        started_s = together_s(self.restart_s(one) for one in candidates)
        return MARGIN * (started_s + (WARMUP_STEPS - 1 + rounds) * steps_s)

    def rounds_in(self, left_s: float, candidates: Sequence[Candidate]) -> int:
        """Return the number of rounds that fit in the time left; may be negative."""
        spare_s = left_s - self.launch_s(candidates, 0)
        round_s = MARGIN * sum(self.step_s(one) for one in candidates)
        return min(MOST_ROUNDS, math.floor(spare_s / round_s)) if round_s else MOST_ROUNDS


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofPlan:
    """The arms and launches of the final run, and the parts that had to be left out."""

    roles: tuple[str, ...]
    launches: int
    omissions: tuple[Omission, ...]


HOPEFUL = 0.6
"""The shortest final run is tried where this part of its estimated time is left."""
SACRIFICES = (
    ("best_compile_same", "same_arithmetic"),
    ("as_written",),
)
"""Roles that a short final run gives up, in this order."""


def plan_proof(
    costs: Costs, arms: dict[str, Candidate], *, rival: str, left_s: float, launches: int
) -> ProofPlan | None:
    """Return the largest final run that fits, or None: fewer arms first, then fewer launches.

    An interval over two launches is over three times as wide as one over three, as Student's t
    has one degree of freedom less. `arms` are candidates by role. The rival is timed twice, for
    the noise floor.
    """
    fewest = min(launches, LEAST_LAUNCHES)
    plans = [
        _with_fewer_arms(arms, given_up, count)
        for count in range(launches, fewest - 1, -1)
        for given_up in range(len(SACRIFICES) + 1)
    ]
    for plan in plans:
        launch_s = costs.launch_s(timed(arms, plan.roles, rival), FEWEST_ROUNDS)
        # The estimate may be too high, and nothing else is waiting for the time.
        hope = HOPEFUL if plan is plans[-1] else 1.0
        if hope * plan.launches * launch_s <= left_s:
            fewer = [_fewer(plan.launches, launches)] if plan.launches < launches else []
            return replace(plan, omissions=(*plan.omissions, *fewer))
    return None


def _with_fewer_arms(arms: dict[str, Candidate], given_up: int, launches: int) -> ProofPlan:
    """Return a plan without the arms of the first `given_up` sacrifices."""
    sets = [tuple(some) for some in sacrificed(arms)]
    roles = sets[min(given_up, len(sets) - 1)]
    gone = [role for role in arms if role not in roles]
    omissions = (_without(gone),) if gone else ()
    return ProofPlan(roles=roles, launches=launches, omissions=omissions)


def sacrificed(arms: dict[str, Candidate]) -> list[dict[str, Candidate]]:
    """Return these arms, then the smaller sets that a short final run makes do with."""
    sets = [arms]
    for sacrifice in SACRIFICES:
        now = sets[-1]
        gone = [role for role in sacrifice if role in now and _is_alone(arms, tuple(now), role)]
        if gone:
            sets.append({role: one for role, one in now.items() if role not in gone})
    return sets


def timed(arms: dict[str, Candidate], roles: Sequence[str], rival: str) -> list[Candidate]:
    """Return the processes of one launch: each different candidate once, and the rival's twin."""
    distinct = {arms[role].key(): arms[role] for role in roles}
    return [*distinct.values(), arms[rival]]


def _is_alone(arms: dict[str, Candidate], roles: Sequence[str], role: str) -> bool:
    """Return True if dropping the role saves a process: no essential role runs the same."""
    essential = {arms[name].key() for name in ("best_compile", "ratchet") if name in roles}
    return arms[role].key() not in essential


def _without(roles: Sequence[str]) -> Omission:
    names = {
        "best_compile_same": "torch.compile's best in the same arithmetic",
        "same_arithmetic": "the recipe with the arithmetic kept",
        "as_written": "the step as written",
    }
    what = " and ".join(names[role] for role in roles)
    return Omission(what=f"{what} in the final run", reason="the budget has no room for it")


def _fewer(launches: int, asked: int) -> Omission:
    left_out = asked - launches
    what = f"{left_out} of {asked} launches of the final run"
    return Omission(what=what, reason="the budget has no room for more")


def reserve_s(
    costs: Costs, written: Candidate, rival: Candidate, *, budget_s: float, launches: int
) -> float:
    """Return the seconds of the budget reserved for the final run.

    The search's result is assumed to cost as much as the rival; the third one is the twin.
    """
    launch_s = costs.launch_s([rival] * 3, FEWEST_ROUNDS)
    least_s = launches * launch_s
    if least_s > LARGE_SHARE * budget_s:
        least_s = min(launches, LEAST_LAUNCHES) * launch_s
    most_s = launches * costs.launch_s([written, *[rival] * 3], MOST_ROUNDS)
    return max(least_s, min(most_s, PROOF_SHARE * budget_s))
