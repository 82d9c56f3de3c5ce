"""The schedule of a turn on one page: the order of its steps, all times and shares, its clock.

A step of the critical path starts only if everything that stands below it still fits. Kernels can
be cut short anywhere, so they get the time that the others leave. Then comes the first of `THEN`
that fits, again and again, each with room for a proof of what it changes. What a step takes is
learned from this turn and the ledger (`costs`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from ratchet.base.errors import DeadlinePassed
from ratchet.base.measure.rounds import FEWEST_ROUNDS


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a turn does if there is time for it."""

    what: str
    """A noun phrase, for the list of what was left out."""
    part: float = 1.0
    """Part of its estimated time from which it starts: estimates are cautious, so half of it is
    enough where nothing else waits for the time."""
    share: float = 1.0
    """Share of the time left that it may take."""
    once: bool = False
    """True if it is done at most once, whatever comes of it."""
    proves: bool = False
    """True if it times what is to be proven, so that no proof is due after it."""


# The critical path.
WRITTEN: Final = Step("the step as written")
RIVAL: Final = Step("torch.compile in its default mode, in the cheapest precision that may pay")
KERNELS: Final = Step("kernels for that step's call sites")
BUNDLE: Final = Step("the bundle of everything that is right, timed against the rival")
LOSSES: Final = Step("the comparison of losses, if the arithmetic changed", part=0.5)
PROOF: Final = Step("launches of rival and bundle, until they are told apart", part=0.5)
PATH: Final = (WRITTEN, RIVAL, KERNELS, BUNDLE, LOSSES, PROOF)

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
MEASURING: Final = Share("the time left", 0.05, most_s=20.0)
"""For measuring what regions take now."""
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
MARGIN: Final = 1.15
"""Safety factor on times that are predicted from the starts so far."""
WARMUP_STEPS, START_TOGETHER, MOST_TOGETHER = 3, 2, 4
"""Steps of a new arm before it is timed, and arms that start at a time, with few cores and with
many: imports and tracing use one core each, Triton's and C++ compilers a few more."""
CORES_A_START: Final = 4
"""Cores for each arm that starts, beyond `START_TOGETHER` of them."""
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
COMPILED_START, AUTOTUNED_START = 3.0, 2.5
"""Compiled over plain start time, and autotuned over compiled."""
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
    reserved_s: float = 0.0
    """Seconds that kernels left to the bundle and its proof."""
    _until_s: float = math.inf
    """End of the current stage, in seconds spent."""
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
        """Raise DeadlinePassed if no time is left."""
        if self.is_over():
            raise DeadlinePassed(f"no time is left to {what}")

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

    def kernels(self, after_s: float, launch_s: float) -> AbstractContextManager[None]:
        """Limit the stage of kernels: the bundle and the losses need `after_s`, then launches."""
        left_s = self.stage_ends_s - self.spent_s
        share_s = left_s - after_s - PLANNED_LAUNCHES * launch_s
        if share_s < KERNELS_SHARE * (left_s - after_s):
            share_s = left_s - after_s - LEAST_LAUNCHES * launch_s
        self.reserved_s = left_s - max(0.0, share_s)
        return self.leaving(self.reserved_s)

    def may_judge(self, last_s: float) -> bool:
        """Return True if there is time for a verdict that takes as long as the last one."""
        return self.left_s > max(LEAST_VERDICT_S, last_s)

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
        """Return the seconds that authors get."""
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

    def advance(self, spent_s: float) -> None:
        """Move on to `spent_s` seconds spent, because recalled evidence took the time."""
        self._skipped_s += max(0.0, spent_s - self.spent_s)
