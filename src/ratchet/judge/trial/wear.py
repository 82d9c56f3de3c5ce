"""Wear: hundreds of calls in one process before any answer that a kernel is right.

Inputs, weights and sizes change from call to call, and each batch of a case lies at addresses that
earlier ones had with other values. So a kernel that repeats an old answer after its first dozens of
calls is wrong, and so is one that looks results up by an address or a shape. Memory that grows from
call to call is told.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from ratchet.judge.stage_result import Decided, Ok, as_stage
from ratchet.judge.trial.held_together import first_wrong
from ratchet.judge.trial.kernel_checks import OpenProblem, make_calls
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.timing.fewer_calls import with_fewer_calls
from ratchet.judge.verdict import Evidence

FEWEST_CALLS, MOST_CALLS = 300, 500
"""Calls before the last ones are compared; a kernel cannot know their number."""
WORN_S = 2.0
"""Seconds that they may take if they are not that many by then, by the quickest round: a machine
that stands still for a moment spares no kernel its calls."""
CASES: Final = 3
CHEAP_BYTES, CHEAP_S = 1 << 20, 0.003
SLOWEST_S: Final = 0.25
"""A case whose call takes longer is not called that often."""
BATCH = 32
BATCH_BYTES: Final = 64 << 20
LEAST_ROUNDS: Final = 2
GROWN_BYTES: Final = 8 << 20
"""Memory that a process may take for good within these calls: caches, arenas of threads."""
GREW: Final = "memory"
"""The evidence of a process that grows, if it does."""


@dataclass(kw_only=True)
class _Worn:
    """The calls that one process has made, and its memory after each round."""

    candidate: CandidateProcess
    opened: OpenProblem
    made: int = 0

    def round(self, places: dict[int, int]) -> str:
        """Call each case once more; return how a call is wrong, of which one is compared."""
        for index, place in places.items():
            detail = self.batch(index, place, most=1 if is_cheap(self.opened, index) else 0)
            if detail:
                return detail
        return ""

    def batch(self, index: int, place: int, *, most: int) -> str:
        """Run a batch of a case, whose layout `place` decides; compare at most so many calls."""
        opened, facts = self.opened, self.opened.cases[index]

        def run(calls: int) -> str:
            with opened.draw(index, calls, writable_inputs=False, places=place) as batch:
                codes = make_calls(self.candidate, opened, batch)
                self.made += calls
                if not most or any(code > 0 for code in codes):  # it may decline this case
                    return ""
                order = opened.rng.sample(range(calls), min(most, calls))
                return first_wrong(self.candidate, opened, batch, codes, order)

        calls = max(2, min(BATCH, int(BATCH_BYTES / max(1.0, facts.bytes))))
        detail, _ = with_fewer_calls(opened, calls, run, least=2)
        name = opened.problem.cases[index].name
        why = f"after {self.made} calls in one process with changing inputs, case {name}"
        return f"{why}: {detail}" if detail else ""


def check_wear(candidate: CandidateProcess, opened: OpenProblem) -> Ok[None] | Decided:
    """Compare the last of several hundred calls in one process; tell if its memory grows."""
    return as_stage(partial(_check, candidate, opened))


def is_cheap(opened: OpenProblem, index: int) -> bool:
    """Return whether a case is small and quick."""
    facts = opened.cases[index]
    return facts.bytes <= CHEAP_BYTES and facts.time_s <= CHEAP_S


def _check(
    candidate: CandidateProcess, opened: OpenProblem, evidence: list[Evidence]
) -> Decided | None:
    chosen = _chosen(opened)
    if not chosen:
        detail = f"no case is quick enough to be called hundreds of times (at most {SLOWEST_S} s)"
        evidence.append(Evidence(check="wear", passed=None, detail=detail))
        return None
    places = {index: opened.rng.getrandbits(32) for index in chosen}
    wanted = opened.rng.randint(FEWEST_CALLS, MOST_CALLS)
    worn = _Worn(candidate=candidate, opened=opened)
    memory: list[tuple[int, int]] = []
    rounds, quickest_s = 0, math.inf
    with candidate.uncounted():
        while rounds < LEAST_ROUNDS or (worn.made < wanted and rounds * quickest_s < WORN_S):
            began = time.perf_counter()
            detail = worn.round(places)
            if detail:
                return Decided("wrong", detail)
            memory.append((worn.made, candidate.own_bytes()))
            rounds, quickest_s = rounds + 1, min(quickest_s, time.perf_counter() - began)
        for index, place in places.items():
            detail = worn.batch(index, place, most=BATCH)
            if detail:
                return Decided("wrong", detail)
    memory.append((worn.made, candidate.own_bytes()))
    detail = f"right after {worn.made} calls on {len(places)} cases in one process"
    evidence.append(Evidence(check="wear", passed=True, detail=detail))
    if grows := _growth(memory):
        evidence.append(Evidence(check=GREW, passed=False, detail=grows))
    return None


def _chosen(opened: OpenProblem) -> list[int]:
    """Return cheap cases at random; without any, the cheapest two."""
    open_ones = [
        index
        for index, facts in enumerate(opened.cases)
        if index not in opened.unworn and facts.time_s <= SLOWEST_S
    ]
    cheap = [index for index in open_ones if is_cheap(opened, index)]
    if cheap:
        return opened.rng.sample(cheap, min(CASES, len(cheap)))
    return sorted(open_ones, key=lambda index: opened.cases[index].bytes)[:2]


def _growth(memory: list[tuple[int, int]]) -> str:
    """Return how a process grows from call to call, in words; "" if it settles.

    It must grow in each third of the calls: what it takes once is no growth.
    """
    if len(memory) < 4:
        return ""
    marks = [memory[len(memory) * third // 4] for third in (1, 2, 3)] + [memory[-1]]
    steps = [after[1] - before[1] for before, after in itertools.pairwise(marks)]
    calls, grown = marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]
    if min(steps) <= 0 or grown < GROWN_BYTES or calls <= 0:
        return ""
    return (
        f"its process grows by {grown / calls / 1024:.0f} KiB a call: "
        f"{grown / (1 << 20):.0f} MiB over {calls} calls"
    )
