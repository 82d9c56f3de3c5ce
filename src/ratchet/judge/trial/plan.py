"""Plan the timing of a case: launches, rounds, calls, and how many of them are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ratchet.base.measure.contest import even_rounds
from ratchet.judge.problems.problem import MORE_TIME
from ratchet.judge.trial.open_problem import OpenProblem, Rivalry
from ratchet.judge.verdict import CandidateFault, Decided

LOOKS = 3  # At most this many, each if the one before left the answer open (`looks`)
LAUNCHES = 3
MIN_LAUNCHES = 2  # One launch says nothing about the next
MIN_ROUNDS, MAX_ROUNDS = 4, 16
GPU_MIN_ROUNDS = 8  # On a GPU a process takes seconds to start, and a round a tenth of one
TARGET_BATCH_S = 0.001
"""A batch this long hides most of the round trip to a worker (about 0.1 ms, in both arms). The rest
of it draws a ratio towards 1. Longer batches scatter as much from round to round, and cost more: on
two shared cores 0.5, 1 and 2 ms had a standard deviation of 0.21 to 0.27, 0.22 to 0.26 and 0.17 to
0.24 (of the logarithm, 190 rounds of eight kernels each)."""
MAX_CALLS = 32
MAX_BATCH_BYTES = 128 << 20
MOST_HELD_BYTES, SLOW_CALL_S = 1 << 30, 0.25
"""A batch has several calls although one would do, up to this size together and time of each."""
GPU_TARGET_BATCH_S, GPU_MAX_CALLS = 0.02, 1024
"""The same on a GPU, where mapping takes longer, calls are shorter, and memory is the limit. Of
calls of 20 us, 512 last 10 ms, where a gain of 1.15x saves little more than half a round trip: for
`DeviceClock` that is none."""
DRAWN_ON_CORES_BYTES = 1 << 30
"""The limit on a GPU for a problem whose values the cores draw, for each call anew."""
CHECK_SHARE = 0.5
"""Comparing takes at most this share of the arms' time, but one batch of each launch is always
compared."""
MORE_SHARE = 0.05
"""If comparing is cheap, several calls of a batch are compared, within this share of the time."""
MOST_CHECKED = 8
SHARE_OF_TIME = 0.8
SHORT_BUDGET_S, BUDGET_S, LONG_BUDGET_S = 0.15, 0.5, 1.5
"""Seconds of the first, second and third look at one case, unless the fewest rounds take longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimingPlan:
    """Launches, rounds of each, and how many of its batches are compared; fixed once made."""

    launches: int
    rounds: int
    checks: int
    calls_checked: int  # Calls compared in each batch that is compared


def budgets_s() -> tuple[float, ...]:
    """Return how long each look at a case takes at most."""
    return (SHORT_BUDGET_S, BUDGET_S, LONG_BUDGET_S)[:LOOKS]


def plan_case(
    case: int,
    opened: OpenProblem,
    *,
    round_s: float,
    arms: int,
    calls: int,
    budget_s: float,
    first_call_s: float,
) -> TimingPlan:
    """Plan what the time allows. `round_s` is one warm batch of `calls` calls of each of the arms.

    Every launch after the first spends `first_call_s` again, in which a kernel may compile. If a
    comparison (in float64) costs more than the rest of the round, fewer batches have one. Raises
    CandidateFault if two launches do not fit into the time limit.
    """
    check_s = opened.check_time_s[case]
    share = min(1.0, CHECK_SHARE * round_s / check_s) if check_s > 0 else 1.0
    probe_s = check_s + round_s / arms
    launch_s = MIN_ROUNDS * round_s + check_s + probe_s
    room_s = SHARE_OF_TIME * opened.clock.left_s / max(1, len(opened.timed))
    launches = min(LAUNCHES, int((room_s + first_call_s) / (launch_s + first_call_s)))
    if launches < MIN_LAUNCHES:
        least_s = MIN_LAUNCHES * (launch_s + first_call_s) - first_call_s
        why = (
            f"timing takes {least_s / SHARE_OF_TIME:.0f} s or more, and the time limit of "
            f"{opened.clock.limit_s:.3g} s leaves {opened.clock.left_s:.0f} s; {MORE_TIME}"
        )
        raise CandidateFault(Decided.untimed(why))
    rounds = round_count(round_s + share * check_s, budget_s)
    more_s = launches * (launch_s + (GPU_MIN_ROUNDS - MIN_ROUNDS) * round_s)
    if opened.accelerator is not None and more_s <= room_s:
        rounds = max(rounds, min(GPU_MIN_ROUNDS, MAX_ROUNDS))
    left_s = (room_s + first_call_s) / launches - first_call_s - rounds * round_s - probe_s
    fitting = int(left_s / check_s) if check_s > 0 else rounds
    checks = max(1, min(rounds, fitting, math.ceil(share * rounds)))
    more = int(MORE_SHARE * round_s / check_s) if check_s > 0 and checks == rounds else 1
    calls_checked = max(1, min(more, MOST_CHECKED, calls))
    return TimingPlan(launches=launches, rounds=rounds, checks=checks, calls_checked=calls_checked)


def round_count(round_s: float, budget_s: float) -> int:
    """Return how many rounds of a launch fit the budget of a look."""
    return even_rounds(budget_s / LAUNCHES, round_s, most=MAX_ROUNDS, fewest=MIN_ROUNDS)


def calls_of(rivalry: Rivalry, case: int, *, share: int = 1) -> int:
    """Return the number of calls in a batch of a case, on its device.

    On a GPU a batch gets this share of the memory that one of a verdict may take. Once
    memory was refused, batches have fewer calls (`OpenProblem.with_fewer_calls`).
    """
    opened = rivalry.opened
    facts, accelerator = opened.cases[case], opened.accelerator
    if accelerator is None:
        calls = calls_per_batch(facts.time_s, facts.bytes)
        least = rivalry.least_calls
        fits = least * facts.bytes <= MOST_HELD_BYTES and facts.time_s <= SLOW_CALL_S
        return max(calls, least) if fits else calls
    drawn_there = opened.problem.model is None
    limit = accelerator.batch_bytes if drawn_there else DRAWN_ON_CORES_BYTES
    return calls_per_batch(facts.time_s, facts.bytes, gpu_bytes=limit // share)


def calls_per_batch(time_s: float, size_bytes: float, *, gpu_bytes: int | None = None) -> int:
    """Return the number of calls that hides the round trip and fits in memory."""
    gpu = gpu_bytes is not None
    target_s, most = (GPU_TARGET_BATCH_S, GPU_MAX_CALLS) if gpu else (TARGET_BATCH_S, MAX_CALLS)
    wanted = math.ceil(target_s / max(time_s, 1e-7))
    limit = MAX_BATCH_BYTES if gpu_bytes is None else gpu_bytes
    return max(1, min(wanted, int(limit / max(size_bytes, 1.0)), most))
