"""The schedule of a turn: the order, and every share of it.

The critical path comes first, and a step of it begins only if all that stands below it still fits:

1. the step as written;
2. torch.compile in its default mode, in the cheapest precision that may pay;
3. kernels for that step's call sites: the only step that can be cut short anywhere;
4. the bundle of everything that is right, timed against the rival;
5. the losses, if the arithmetic changed;
6. launches of the rival and the bundle, until they are told apart.

Then comes whatever may win most for its time, one after another (`search`): other rivals, kernels
and levers alone, regions, the arithmetic kept, more launches. Each of these leaves room for a proof
of what it changes.
"""

from __future__ import annotations

from typing import Final

NO_ROOM: Final = "the budget has no room for it"
"""Why something was left out."""

CLOSING_S, CLOSING_SHARE, MOST_CLOSING_S = 1.5, 0.04, 15.0
"""Kept for assembling the result, writing it and exiting: a part, and a share of the budget."""

SCREEN_S, SCREEN_SHARE = 10.0, 1 / 60
"""Timing of one screening, or this share of the budget if that is less."""
MOST_SCREENED_ROUNDS: Final = 25
FEWEST_SETTLING, SETTLING_STEPS, SETTLING_SHARE = 2, 20, 0.35
"""Steps of each arm before it is timed, in at most this share of the screening's time.

The first 20 to 40 steps of a process are slower than later ones: a step of moe-42m against itself,
in a new process, came out at 0.965x and 0.97x in two times 20 rounds, and at 1.00x after them.
"""

PLANNED_LAUNCHES, LEAST_LAUNCHES = 2, 1
"""Launches of the proof that kernels leave room for, beside the bundle's screening, which counts
too; and those they leave if that would cost them more than `KERNELS_SHARE`."""
KERNELS_SHARE: Final = 0.25
"""Share of the time for kernels and launches below which kernels get that of one launch too."""
MOST_LAUNCHES: Final = 6
"""Launches after which a proof is given up."""
MOST_ROUNDS: Final = 20
"""Rounds of one launch; it times for about as long as its arms took to start."""
HOPEFUL: Final = 0.5
"""Part of its estimated time from which the bundle, or a proof's next launch, is begun: estimates
are cautious, and nothing else is waiting for the time."""

PROFILE_SHARE, READ_S = 0.1, 3.0
"""Share of the time left that a profile may take; seconds to read a trace, until one was read."""
LEAST_VERDICT_S, MOST_VERDICT_S = 5.0, 180.0
"""Time left for a verdict on a kernel to begin, and its limit."""

MEASURING_S, MEASURING_SHARE = 20.0, 0.05
"""Time for measuring what regions take now, and its share of the time left at most."""
WRITING_SHARE, MOST_WRITING_S = 0.4, 600.0
"""Part of the time left in which authors write for the step's regions, and its most."""
KEEPS: Final = 0.8
"""Part of that time they are told of: the last verdict of a search may take longer than planned."""

SAME_END_S: Final = 2.0
"""Tolerance within which stages of turns with equal budgets count as ending together."""


def closing_s(budget_s: float) -> float:
    """Return the seconds reserved for assembling the result, writing it and exiting."""
    return min(MOST_CLOSING_S, CLOSING_S + CLOSING_SHARE * budget_s)


def screening_time_s(budget_s: float) -> float:
    """Return the seconds for which one screening times its two arms."""
    return min(SCREEN_S, SCREEN_SHARE * budget_s)
