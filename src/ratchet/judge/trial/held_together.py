"""Check the results of several calls together, and after many calls in one process.

A kernel may return the same buffer from every call, or compute its first dozens of calls and then
repeat an old answer. Both are right one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ratchet.judge.stage_result import Decided, Ok, as_stage
from ratchet.judge.trial.kernel_checks import DrawnBatch, OpenProblem, make_calls, verdict_of_call
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.verdict import Evidence

FEWEST, MOST = 3, 9
"""Calls on a timed case whose results are compared together."""
HELD_BYTES: Final = 64 << 20
COMPARED_S: Final = 0.3
"""Seconds for comparing them, after the first."""
WORN_CALLS, WORN_S = 300, 1.0
"""Cheap calls that a process makes, or the seconds they may take."""
CHEAP_BYTES, CHEAP_S = 1 << 20, 0.003
BATCH: Final = 32


def check_together(
    candidate: CandidateProcess, opened: OpenProblem, *, worn: bool
) -> Ok[None] | Decided:
    """Compare the results of several calls on different inputs, held together, on a timed case.

    If `worn`, compare those of cheap calls after hundreds of others in the same process.
    """
    return as_stage(partial(_check, candidate, opened, worn))


def _check(
    candidate: CandidateProcess, opened: OpenProblem, worn: bool, evidence: list[Evidence]
) -> Decided | None:
    censuses, candidate.censuses = candidate.censuses, None
    for index in opened.timed[:1]:
        wrong = _held(candidate, opened, index, evidence)
        if wrong is not None:
            return wrong
    wrong = _worn(candidate, opened, evidence) if worn else None
    candidate.censuses = censuses
    return wrong


def _held(
    candidate: CandidateProcess, opened: OpenProblem, index: int, evidence: list[Evidence]
) -> Decided | None:
    """Compare several calls; record if the last, on the first one's inputs, repeats its bits."""
    facts, name = opened.cases[index], opened.problem.cases[index].name
    calls = max(FEWEST, min(MOST, int(HELD_BYTES / max(1.0, facts.bytes))))
    with opened.draw(index, calls, writable_inputs=False, distinct=calls - 1) as batch:
        codes = make_calls(candidate, opened, batch)
        for call in (0, calls - 1):
            candidate.deliver(call)
        same = opened.ask(do="repeats", batch=batch.number, calls=[0, calls - 1])["same"]
        order = [1, *opened.rng.sample([0, *range(2, calls - 1)], calls - 2)]
        detail = _first_wrong(candidate, opened, batch, codes, order)
    if detail:
        why = (
            f"case {name}: right one call at a time, and wrong where the results of several calls "
            "are held together (one buffer for all of them, or an old answer)"
        )
        return Decided("wrong", f"{why}: {detail}")
    words = "equal bit for bit" if same else "not equal bit for bit, which is allowed"
    detail = f"two calls on the same inputs of {name}: {words}"
    evidence.append(Evidence(check="repeatability", passed=True, detail=detail))
    return None


def _worn(
    candidate: CandidateProcess, opened: OpenProblem, evidence: list[Evidence]
) -> Decided | None:
    """Make many cheap calls on changing inputs and sizes, and compare the last ones."""
    cheap = [
        index
        for index, facts in enumerate(opened.cases)
        if facts.bytes <= CHEAP_BYTES and facts.time_s <= CHEAP_S
    ]
    made, began = 0, time.perf_counter()
    cheap = opened.rng.sample(cheap, min(3, len(cheap)))
    while cheap and made < WORN_CALLS and time.perf_counter() - began < WORN_S:
        for index in cheap:
            _worn_batch(candidate, opened, index, compared=False)
            made += BATCH
    for index in cheap:
        detail = _worn_batch(candidate, opened, index, compared=True)
        if detail:
            name = opened.problem.cases[index].name
            why = f"after {made} calls in one process, case {name}: {detail}"
            return Decided("wrong", why)
    if cheap:
        detail = f"right after {made} calls on {len(cheap)} cheap cases in one process"
        evidence.append(Evidence(check="wear", passed=True, detail=detail))
    return None


def _worn_batch(
    candidate: CandidateProcess, opened: OpenProblem, index: int, *, compared: bool
) -> str:
    """Run a batch of a cheap case; return how a call is wrong, if the results are compared."""
    with opened.draw(index, BATCH, writable_inputs=False) as batch:
        codes = make_calls(candidate, opened, batch)
        if not compared or any(code > 0 for code in codes):  # it may decline this case
            return ""
        order = opened.rng.sample(range(BATCH), BATCH)
        return _first_wrong(candidate, opened, batch, codes, order)


def _first_wrong(
    candidate: CandidateProcess,
    opened: OpenProblem,
    batch: DrawnBatch,
    codes: Sequence[int],
    order: Sequence[int],
) -> str:
    """Compare calls in this order while there is time; return how the first wrong one is wrong."""
    began = time.perf_counter()
    for place, call in enumerate(order):
        if place and time.perf_counter() - began > COMPARED_S:
            break
        candidate.deliver(call)
        passed, detail = verdict_of_call(codes[call], opened.check(batch, call, codes[call]))
        if not passed:
            return detail
    return ""
