"""The schedule of a turn on one page: the order of its steps, all times and shares, its clock.

A step of the critical path starts only if everything that stands below it still fits. Kernels can
be cut short anywhere, so they get the time that the others leave. Then comes the first of `THEN`
that fits, again and again, each with room for a proof of what it changes. What a step takes is
learned from this turn and the ledger (`costs`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from ratchet.base import Json
from ratchet.base.errors import OutOfTime
from ratchet.base.measure.rounds import FEWEST_ROUNDS
from ratchet.train.recipe import Candidate


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a turn does if there is time for it."""

    what: str  # A noun phrase, for the list of what was left out
    part: float = 1.0
    """Part of its estimated time from which it starts: estimates are cautious, so half of it is
    enough where nothing else waits for the time."""
    share: float = 1.0  # Share of the time left that it may take
    once: bool = False  # True if it is done at most once, whatever comes of it
    proves: bool = False  # True if it times what is to be proven, so that no proof is due after it


# The critical path.
WRITTEN: Final = Step("the step as written")
RIVAL: Final = Step("torch.compile in its default mode, in the cheapest precision that may pay")
KERNELS: Final = Step("kernels for the step's call sites, while that rival compiles")
BUNDLE: Final = Step("the bundle of everything that is right, timed against the rival")
LOSSES: Final = Step("the comparison of losses, if the arithmetic changed", part=0.5)
PROOF: Final = Step("launches of rival and bundle, until they are told apart", part=0.5)
PATH: Final = (WRITTEN, KERNELS, RIVAL, BUNDLE, LOSSES, PROOF)

# Then whatever may win most for its time.
LAUNCHES: Final = Step("more launches of the final run", proves=True)
LATE_LOSSES: Final = Step("the comparison of losses")
WHOLE: Final = Step("the step as written in the final run", proves=True)
MODES: Final = Step("further modes of torch.compile")
FILLING: Final = Step("a larger batch for an idle GPU", once=True, proves=True)
MORE_KERNELS: Final = Step("kernels that were not judged", once=True)
ALONE: Final = Step("single changes")
SAME: Final = Step("the arithmetic kept", once=True)
SAME_WHOLE: Final = Step("the arithmetic kept in the final run", proves=True)
REGIONS: Final = Step("writing kernels for the step's own regions", once=True)
THEN: Final = (
    *(LAUNCHES, LATE_LOSSES, WHOLE, FILLING, MODES, MORE_KERNELS),
    *(ALONE, SAME, SAME_WHOLE, REGIONS),
)
UNTIL_PROVEN: Final = (LAUNCHES, LATE_LOSSES, WHOLE)
"""The work that a turn which ends with its proof still does after it."""
KERNELS_FIRST: Final = (
    *(LAUNCHES, LATE_LOSSES, MORE_KERNELS, WHOLE, FILLING, MODES),
    *(ALONE, SAME, SAME_WHOLE, REGIONS),
)
"""`THEN` while no change was selected: without one there is nothing to prove."""

# Beside them, where there is room.
PROFILE: Final = Step("a profile of the written or the rival's step", share=0.1)
LAST_PROFILE: Final = Step("a profile of the recipe")
GRADIENTS: Final = Step("the check of the recipe's gradients")
CEILINGS: Final = Step("measuring the ceilings again")
NO_ROOM: Final = "the budget has no room for it"
ENDS_PROVEN: Final = "--until-proven ended the turn before it"

# What a turn's time goes to.
BEFORE: Final = "before the step"  # Imports, and the ceilings where they are due
AS_WRITTEN: Final = "the step as written"
SITES: Final = "call sites"
JUDGING: Final = "kernels judged"
STARTING: Final = "starts and compilations"
TIMING: Final = "timed pairs"
PROFILING: Final = "profiles"
LAUNCHING: Final = "launches of the proof"
LEARNING: Final = "losses compared"
AUTHORING: Final = "kernels written"
REST: Final = "the rest"


@dataclass(frozen=True, slots=True)
class Share:
    """Some seconds and a share of others, up to a limit."""

    whole: str
    share: float
    more_s: float = 0.0
    most_s: float = math.inf

    def of(self, whole_s: float) -> float:
        return min(self.most_s, self.more_s + self.share * whole_s)


CLOSING: Final = Share("the budget", 0.04, more_s=1.5, most_s=15.0)
"""For assembling the result, writing it and exiting."""
SCREENING: Final = Share("the budget", 1 / 60, most_s=10.0)
"""For timing the two arms of a screening."""
SETTLING: Final = Share("a screening", 0.35)
"""For steps of each arm before it is timed, `FEWEST_SETTLING` to `SETTLING_STEPS` of them.

The first 20 to 40 steps of a process are slower than later ones: a step of moe-42m against itself,
in a new process, came out at 0.965x and 0.97x in two times 20 rounds, and at 1.00x after them.
"""
MEASURING: Final = Share("the time left", 0.05, most_s=20.0)  # For measuring what regions take now
WRITING: Final = Share("the time left", 0.4, most_s=600.0)
"""For authors who write for the step's regions. They are told of the part `KEEPS`: the last verdict
of a search may take longer than planned."""
KEEPS: Final = 0.8

FEWEST_SETTLING, SETTLING_STEPS, MOST_SCREENED_ROUNDS = 2, 20, 25
PLANNED_LAUNCHES, LEAST_LAUNCHES, KERNELS_SHARE = 2, 1, 0.25
"""Launches of the proof that kernels leave room for, beside the bundle's screening, which counts
too; and those that they leave if less than this share of the time would remain for them."""
MOST_LAUNCHES, MOST_ROUNDS = 6, 20
"""Launches after which a proof is given up, and rounds of one; it times for about as long as its
arms took to start."""
LEAST_VERDICT_S, MOST_VERDICT_S = 5.0, 180.0
"""Time left for a verdict on a kernel to begin, and its limit."""

# What things take until it was seen.
MARGIN: Final = 1.15  # Safety factor on times that are predicted from the starts so far
WARMUP_STEPS, START_TOGETHER, MOST_TOGETHER = 3, 2, 4
"""Steps of a new arm before it is timed, and arms that start at a time, with few cores and with
many: imports and tracing use one core each, Triton's and C++ compilers a few more."""
CORES_A_START: Final = 4  # Cores for each arm that starts, beyond `START_TOGETHER` of them
BESIDE: Final = 0.2
"""Share of its own time that an arm adds to a longer start beside it, on two cores."""
COMPILING_BESIDE: Final = 0.8
"""`BESIDE` for two arms that both compile with cold caches and so occupy every core.

Two starts that took 128 s one after the other took 114 s together (vit, two Zen 4 cores).
"""
WARM: Final = 0.15
"""Share of the compile time that a restart takes with warm caches.

Measured: 0.06 to 0.15 (llama-8m and llama-tiny on two Zen 4 cores).
"""
COMPILED_START, AUTOTUNED_START = 5.0, 2.5
"""Compiled over plain start time (3 to 7 for llama-8m), and autotuned over compiled."""
SHRUNK_STEP_S, SHRUNK_COMPILE = 0.02, 0.8
"""Upper limit of the step time of a shrunk copy, which may also be the step's own time, and its
compile time over the step's: 21 s to 32 for llama-8m."""
READ_S, CEILINGS_S = 3.0, 8.0
"""Reading a trace, and measuring the ceilings, which takes under 5 s on free cores."""
SAME_END_S: Final = 2.0
"""Tolerance within which stages of turns with equal budgets count as ending together."""


def starts_at_once(cores: int) -> int:
    """Return how many arms may start at a time on so many cores."""
    return max(1, min(START_TOGETHER, cores), min(MOST_TOGETHER, cores // CORES_A_START))


@dataclass(kw_only=True)
class TurnSchedule:
    """The clock of one turn: says whether a step may start, and until when it may run."""

    budget_s: float
    started_s: float = field(default_factory=lambda: time.monotonic())
    reserved_s: float = 0.0  # Seconds that kernels left to the bundle and its proof
    took_s: dict[str, float] = field(default_factory=dict)
    """Seconds by what the turn was doing; what starts or compiles beside it does not count."""
    why_ended: str = NO_ROOM  # Why what is left at the end was not done
    _beside_s: float = math.inf  # End of the stage of kernels if nothing compiles beside it
    _doing: str = BEFORE
    _noted_s: float = 0.0
    _until_s: float = math.inf  # End of the current stage, in seconds spent
    _skipped_s: float = 0.0
    """Original time of recalled evidence, beyond the time this turn took to recall it."""

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since this turn began."""
        return time.monotonic() - self.started_s

    @property
    def spent_s(self) -> float:
        """Return the seconds of the budget used so far, including those of recalled evidence.

        A second turn therefore makes the same decisions as the first and ends once it has recalled
        everything; a larger budget continues from there.
        """
        return self.elapsed_s + self._skipped_s

    @property
    def stage_ends_s(self) -> float:
        """Return when the last measurement of the current stage must end, in seconds spent."""
        return min(self.budget_s - CLOSING.of(self.budget_s), self._until_s)

    @property
    def left_s(self) -> float:
        """Return the seconds left to the current stage; not below zero."""
        return max(0.0, self.stage_ends_s - self.spent_s)

    @property
    def deadline_s(self) -> float:
        """Return when the current stage must end, on the clock of `time.monotonic`."""
        return time.monotonic() + self.left_s

    def is_over(self) -> bool:
        return self.left_s <= 0

    def check(self, what: str) -> None:
        if self.is_over():
            raise OutOfTime(f"no time is left to {what}")

    def may_start(self, step: Step, needed_s: float, *, kept_s: float = 0.0) -> bool:
        """Return True if a step of `needed_s` fits, with `kept_s` left for a proof."""
        return step.part * needed_s + kept_s <= step.share * self.left_s

    @contextmanager
    def until(self, spent_s: float) -> Iterator[None]:
        """Limit the enclosed stage to `spent_s` seconds spent, or to the enclosing stage's end."""
        outer = self._until_s
        self._until_s = min(outer, spent_s)
        try:
            yield
        finally:
            self._until_s = outer

    def leaving(self, kept_s: float) -> AbstractContextManager[None]:
        """Limit the enclosed stage so that so many seconds are left after it."""
        return self.until(self.stage_ends_s - kept_s)

    @contextmanager
    def kernels(self, after_s: float, launch_s: float) -> Iterator[None]:
        """Limit the stage of kernels: the bundle and the losses need `after_s`, then launches.

        After that limit it goes on while the rival still compiles, up to half of the time left:
        nothing could be timed meanwhile.
        """
        left_s = self.stage_ends_s - self.spent_s
        share_s = left_s - after_s - PLANNED_LAUNCHES * launch_s
        if share_s < KERNELS_SHARE * (left_s - after_s):
            share_s = left_s - after_s - LEAST_LAUNCHES * launch_s
        self.reserved_s = left_s - max(0.0, share_s)
        self._beside_s = self.stage_ends_s - self.reserved_s
        try:
            with self.leaving(min(self.reserved_s, left_s / 2)):
                yield
        finally:
            self._beside_s = math.inf

    def may_judge(self, last_s: float, *, beside: bool = False) -> bool:
        """Return True if there is time for a verdict that takes as long as the last one.

        `beside`: a rival still compiles.
        """
        end_s = self.stage_ends_s if beside else min(self.stage_ends_s, self._beside_s)
        return end_s - self.spent_s > max(LEAST_VERDICT_S, last_s)

    @property
    def verdict_s(self) -> float:
        """Return the limit of a verdict that begins now."""
        return min(MOST_VERDICT_S, self.left_s)

    @property
    def screening_s(self) -> float:
        """Return the seconds for which one screening times its two arms."""
        return SCREENING.of(self.budget_s)

    @property
    def writing_s(self) -> float:
        return KEEPS * WRITING.of(self.left_s)

    def rounds(self, round_s: float, started_s: float) -> int:
        """Return the rounds of a launch: as long as its starts take, if the stage has the time."""
        if not round_s:
            return MOST_ROUNDS
        most_s = min(started_s, max(0.0, self.left_s - started_s))
        return max(FEWEST_ROUNDS, min(MOST_ROUNDS, math.floor(most_s / round_s)))

    def alarm(self, seconds: float) -> Callable[[], bool]:
        """Return a function that says whether so many seconds have passed since this call."""
        ends_s = self.elapsed_s + seconds
        return lambda: self.elapsed_s >= ends_s

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Count the time of the enclosed work as that of `what`, not of what encloses it."""
        self.note_time()
        outer, self._doing = self._doing, what
        try:
            yield
        finally:
            self.note_time()
            self._doing = outer

    def begin_rest(self) -> None:
        """Count what follows, outside of any `doing`, as the rest of the turn."""
        self.note_time()
        self._doing = REST

    def note_time(self) -> None:
        """Count the time since the last call."""
        now_s = self.elapsed_s
        self.took_s[self._doing] = self.took_s.get(self._doing, 0.0) + now_s - self._noted_s
        self._noted_s = now_s

    def advance(self, spent_s: float) -> None:
        """Move on to `spent_s` seconds spent, because recalled evidence took the time."""
        self._skipped_s += max(0.0, spent_s - self.spent_s)


# Costs that a turn has seen, of starts, compilations and steps, and those it expects from them.


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

    at_a_time: int = START_TOGETHER  # Arms that start side by side: one on a single core
    setups_s: dict[str, float] = field(default_factory=dict)
    """First starts of compiled arms: from process start to the end of the first step."""
    steps_s: dict[str, float] = field(default_factory=dict)
    profile_s: float = 0.0
    verdict_s: float = 0.0
    """The last verdict on a kernel. The first one also starts the judge's processes."""
    plain_s: float = 0.0  # The shortest start that compiles nothing; 0 if none was seen
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
        started_s = self.at_once_s(map(self.restart_s, candidates))
        return MARGIN * (started_s + (WARMUP_STEPS - 1 + rounds) * steps_s)

    def at_once_s(self, setups_s: Iterable[float]) -> float:
        """Return the seconds that arms take to start, all at the same time."""
        found = list(setups_s)
        return max(together_s(found, len(found) or 1), sum(found) / self.at_a_time)

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
