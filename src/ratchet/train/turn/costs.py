"""Costs that a turn has seen, of starts, compilations and steps, and those it expects from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.base import Json
from ratchet.train.recipe.candidate import Candidate
from ratchet.train.turn.schedule import (
    AUTOTUNED_START,
    BESIDE,
    COMPILED_START,
    COMPILING_BESIDE,
    MARGIN,
    SHRUNK_COMPILE,
    SHRUNK_STEP_S,
    START_TOGETHER,
    WARM,
    WARMUP_STEPS,
)


def crowding(cold_arms: int, at_a_time: int = START_TOGETHER) -> float:
    """Return how much longer this many cold compilations take side by side than one alone.

    Where more than `START_TOGETHER` start at a time, there are cores to spare.
    """
    beside = COMPILING_BESIDE if at_a_time <= START_TOGETHER else BESIDE
    return 1 + beside * max(0, cold_arms - 1)


def together_s(setups_s: Iterable[float], at_a_time: int = START_TOGETHER) -> float:
    """Return the seconds that arms take to start, `at_a_time` side by side on shared cores."""
    ordered = sorted(setups_s, reverse=True)
    groups = [ordered[first : first + at_a_time] for first in range(0, len(ordered), at_a_time)]
    return sum((1 - BESIDE) * max(group) + BESIDE * sum(group) for group in groups)


@dataclass(kw_only=True)
class Costs:
    """Seconds that arms took in this turn: starts by what they compile, steps by candidate."""

    at_a_time: int = START_TOGETHER
    """Arms that start side by side: one on a single core."""
    setups_s: dict[str, float] = field(default_factory=dict)
    """First starts of compiled arms: from process start to the end of the first step."""
    steps_s: dict[str, float] = field(default_factory=dict)
    profile_s: float = 0.0
    verdict_s: float = 0.0
    """The last verdict on a kernel. The first one also starts the judge's processes."""
    plain_s: float = 0.0
    """The shortest start that compiles nothing; 0 if none was seen."""
    modes_s: dict[str, float] = field(default_factory=dict)
    """Starts that compile from scratch, alone, by compile mode."""
    restarts_s: dict[str, float] = field(default_factory=dict)
    """The latest start that was not the first."""
    warm: dict[str, float] = field(default_factory=dict)
    """Share of the compile time that a restart takes, `with` kernels in the step or `without`: the
    passes that install them leave less to the caches."""

    def learn(self, seen: Mapping[str, Json]) -> None:
        """Take over what these costs were (`asdict`) when a recalled measurement ended."""
        for name, value in seen.items():
            old = getattr(self, name)
            setattr(self, name, {**old, **value} if isinstance(old, dict) else value)

    def note_plain(self, start_s: float) -> None:
        """Record the seconds until an arm could run its first step; the shortest counts.

        A start is slower beside arms that compile, or before the files are in memory.
        """
        if start_s > 0:
            self.plain_s = min(start_s, self.plain_s or start_s)

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
        key, alone_s = candidate.graph_key(), alone_s or setup_s
        if key in self.setups_s:
            self._note_restart(candidate, alone_s)
        elif not compiled:
            self.restarts_s[key] = alone_s
        else:
            self.setups_s[key] = setup_s
            self.modes_s[mode] = max(alone_s, self.modes_s.get(mode, 0.0))

    def is_cold(self, candidate: Candidate) -> bool:
        """Return True if its start would compile code that no start in this turn has compiled."""
        seen = {*self.setups_s, *self.restarts_s}
        return candidate.config.compile_mode is not None and candidate.graph_key() not in seen

    def _note_restart(self, candidate: Candidate, setup_s: float) -> None:
        """Learn from a second start and its share of a long first start's compile time."""
        key, kind = candidate.graph_key(), _kind(candidate)
        self.restarts_s[key] = setup_s
        compiled_s = self.setups_s[key] - self.plain_s
        if compiled_s > self.plain_s:
            share = min(1.0, (setup_s - self.plain_s) / compiled_s)
            self.warm[kind] = max(self.warm.get(kind, 0.0), share)

    def note_step(self, candidate: Candidate, step_s: float) -> None:
        if step_s > 0:
            self.steps_s[candidate.key()] = step_s

    def setup_s(self, candidate: Candidate) -> float:
        """Return its first start's seconds, or a guess from similar starts; 0 if none was seen."""
        return self.setups_s.get(candidate.graph_key()) or self.compiled_s(candidate)

    def compiled_s(self, candidate: Candidate) -> float:
        """Return the seconds of a start that compiles from scratch, alone; 0 if none was seen."""
        mode = candidate.config.compile_mode
        if mode is None:
            return self.plain_s
        if mode in self.modes_s:
            return self.modes_s[mode]
        if "default" in self.modes_s:
            return self.modes_s["default"] * (AUTOTUNED_START if mode == "max-autotune" else 1.0)
        return COMPILED_START * self.plain_s

    def restart_s(self, candidate: Candidate) -> float:
        """Return the seconds of another start; caches are warm if it was started before."""
        return self.setup_s(candidate) if self.is_cold(candidate) else self.warm_s(candidate)

    def warm_s(self, candidate: Candidate) -> float:
        """Return the seconds of a start whose code is in the compile cache."""
        key, setup_s = candidate.graph_key(), self.setup_s(candidate)
        if key in self.restarts_s:
            return self.restarts_s[key]
        if setup_s <= self.plain_s:
            return setup_s
        warm = self.warm.get(_kind(candidate), WARM)
        return self.plain_s + warm * (setup_s - self.plain_s)

    def step_s(self, candidate: Candidate) -> float:
        """Return the time of its step, or the longest of any so far; 0 if none was timed."""
        return self.steps_s.get(candidate.key()) or max(self.steps_s.values(), default=0.0)

    def launch_s(self, candidates: Sequence[Candidate], rounds: int) -> float:
        """Return the seconds of one launch of these arms: starts, warm-ups and rounds."""
        steps_s = sum(self.step_s(one) for one in candidates)
        started_s = together_s(map(self.restart_s, candidates), self.at_a_time)
        return MARGIN * (started_s + (WARMUP_STEPS - 1 + rounds) * steps_s)

    def losses_s(self, written: Candidate, candidate: Candidate, steps: int) -> float:
        """Return the seconds in which shrunk copies of both train for so many steps.

        The copies compile from scratch, because their shapes differ.
        """
        compiled_s = self.plain_s + SHRUNK_COMPILE * (self.compiled_s(candidate) - self.plain_s)
        started_s = together_s([self.restart_s(written), compiled_s], self.at_a_time)
        step_s = min(SHRUNK_STEP_S, self.step_s(candidate))
        return started_s + steps * step_s * 2 / self.at_a_time


def _kind(candidate: Candidate) -> str:
    return "with" if candidate.kernels else "without"
