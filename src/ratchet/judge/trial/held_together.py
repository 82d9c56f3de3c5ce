"""Check the results of several calls together.

A kernel may return the same buffer from every call, or from every second: right one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from ratchet.judge.trial.kernel_checks import (
    DrawnBatch,
    OpenProblem,
    check_call,
    make_calls,
)
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.timing.fewer_calls import with_fewer_calls
from ratchet.judge.verdict import Evidence, fault

FEWEST, MOST = 4, 8
"""Calls on a timed case whose results are compared together, always an even number."""
HELD_BYTES: Final = 64 << 20
ALIKE_PAIR: Final = (2, 1)
"""A call, and the earlier one whose inputs it repeats but for a few elements."""
COMPARED_S: Final = 0.3
"""Seconds for comparing them, after the first two."""


def check_together(candidate: CandidateProcess, opened: OpenProblem) -> None:
    """Compare the results of several calls on different inputs, held together, on a timed case.

    The evidence says if the last call, on the first one's inputs, repeats its bits.
    """
    if not opened.timed:
        return
    index = opened.timed[0]
    facts, name = opened.cases[index], opened.problem.cases[index].name
    calls = max(FEWEST, min(MOST, 2 * int(HELD_BYTES / max(1.0, 2 * facts.bytes))))

    def run(calls: int) -> tuple[bool, str]:
        drawn = opened.draw(
            index, calls, writable_inputs=False, distinct=calls - 1, alike=[ALIKE_PAIR]
        )
        with drawn as batch:
            codes = make_calls(candidate, opened, batch)
            for call in (0, calls - 1):
                candidate.deliver(call)
            same = opened.ask(do="repeats", batch=batch.number, calls=[0, calls - 1])["same"]
            first = [1, 0, *batch.alike]  # each parity first
            rest = [call for call in range(2, calls - 1) if call not in first]
            order = [*first, *opened.rng.sample(rest, len(rest))]
            return same, first_wrong(candidate, opened, batch, codes, order, least=len(first))

    with candidate.uncounted():
        same, detail = with_fewer_calls(opened, calls, run, least=FEWEST)
    if detail:
        why = (
            f"case {name}: right one call at a time, and wrong where the results of several calls "
            "are held together (one buffer for all of them, or an old answer)"
        )
        raise fault("wrong", f"{why}: {detail}")
    words = "equal bit for bit" if same else "not equal bit for bit, which is allowed"
    detail = f"two calls on the same inputs of {name}: {words}"
    opened.evidence.append(Evidence(check="repeatability", passed=True, detail=detail))


def first_wrong(
    candidate: CandidateProcess,
    opened: OpenProblem,
    batch: DrawnBatch,
    codes: Sequence[int],
    order: Sequence[int],
    *,
    least: int = 2,
    again: bool = False,
) -> str:
    """Compare calls in this order while there is time; return how the first wrong one is wrong.

    At least so many are compared, if there are as many. With `again`, the right answers are kept
    for other kernels' calls on the same values.
    """
    began = time.perf_counter()
    for place, call in enumerate(order):
        if place >= least and time.perf_counter() - began > COMPARED_S:
            break
        passed, detail = check_call(candidate, opened, batch, call, codes[call], again=again)
        if not passed:
            return detail
    return ""
