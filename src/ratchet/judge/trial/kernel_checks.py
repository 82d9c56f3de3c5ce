"""Check that a kernel is right: each case once, with new values, read while it is stopped."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ratchet.judge.problems.case import LONG_SUM
from ratchet.judge.problems.problem import MORE_TIME, Case
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.open_problem import CallCheck, DrawnBatch, OpenProblem, Record
from ratchet.judge.verdict import CandidateFault, fault

# Faults of emulated machine code in the words of a verdict: a race, an access out of bounds.

_FAULT = re.compile(
    r"the kernel (?:raised|cannot be loaded): (?:\w+: )?in the kernel (?P<kernel>\S+) at "
    r"[^\s:]+:(?P<line>\d+)(?: \(\w+\))?: (?P<what>a race in LDS|an access of )"
)
_BEYOND = re.compile(r"an access of \d+ bytes (?:ends|lies|at \d+ is outside)")


def wrong_words(reason: str) -> str | None:
    """Return the reason of a `wrong` verdict for such a fault of machine code; None for others."""
    found = _FAULT.search(reason)
    if found is None:
        return None
    is_race = found["what"].startswith("a race")
    if not is_race and not _BEYOND.match(reason, found.start("what")):
        return None
    what = "race in LDS" if is_race else "out of bounds"
    head = f"{what} at line {found['line']} of {found['kernel']}: {found['what']}"
    return reason[: found.start()] + head + reason[found.end() :]


WORK_S = 120.0
"""The judge gives up a candidate's process that was at work for longer than this over all cases,
and for longer than the time limit."""
INEXACT: Final = "long sums"  # The evidence of long sums that lose too much, if any do
REJECTING: Final = ("crashed", "wrong", "refused")
"""The statuses of a kernel that is built for its file's sizes alone on others."""
NEAR: Final = 0.5
"""On a size that the problem does not state, an answer that is further off than this (the norm of
its error over that of the right answer) is taken for another computation, not for an inexact
one."""
AT_ONCE_S: Final = 0.1  # Calls are compared in one message if that takes no longer
VARIED_S = 0.3
"""Seconds for checking a timed case with values that are drawn as those of hidden cases are."""


OtherProcess = Callable[[Case], contextlib.AbstractContextManager[CandidateProcess] | None]


@dataclass(slots=True)
class CheckedCases:
    """The process that was checked, and the cases that a right kernel need not take, by index."""

    process: CandidateProcess
    declined: set[int] = field(default_factory=set)
    apart: set[int] = field(default_factory=set)
    """Those that it rejects, or that it was given in a process of their own."""


class CallAnswer(NamedTuple):
    """The verdict on one call: was it right, and why."""

    passed: bool | None  # None if it declined
    detail: str
    overflows: bool = False
    """True if the reference overflows on these values, so nothing was compared."""


def check_cases(
    candidate: CandidateProcess,
    opened: OpenProblem,
    record: Record,
    renew: Callable[[], CandidateProcess],
    other: OtherProcess | None = None,
) -> CheckedCases:
    """Check every case of the problem: none may be wrong, and no timed one declined.

    A timed case is also given values of the hidden ones, so a kernel cannot infer its inputs'
    values from their sizes. On sizes that the file of a model does not have nothing is held against
    the kernel: `renew` starts it anew if they end its process. `other` returns what starts the
    process for a hidden case whose sizes a kernel's constants follow, or None. Raises
    CandidateFault.
    """
    checked = CheckedCases(candidate)
    for index, case in enumerate(opened.problem.cases):
        candidate = checked.process
        if case.grown:
            checked.apart.add(index)
            passed, detail, _ = _check_grown(checked, opened, index, renew)
            if passed is False and case.name == LONG_SUM and not opened.is_shrunk:
                longest = max(max(one.shape, default=0) for one in case.inputs)
                record.note(INEXACT, f"in sums as long as {longest} it loses more: {detail}")
                passed = None  # a length that the judge chose
        elif case.hidden and opened.has_other_sizes(index):
            passed, detail = _check_other_sizes(checked, opened, index, renew, other)
        else:
            passed, detail, _ = check_case(candidate, opened, index)
        record.note(f"correct on {case.name}", detail, passed=passed)
        if passed is None:
            checked.declined.add(index)
            if case.timed:
                raise fault("refused", f"the kernel declines the timed case {case.name}")
        elif not passed:
            raise fault("wrong", f"case {case.name}: {detail}")
        elif opened.unchecked(index):
            detail = _check_variations(candidate, opened, index)
            record.note(f"correct on {case.name}, varied", detail)
        if candidate.worked_s > max(WORK_S, opened.clock.limit_s):
            raise fault(
                "timed_out",
                f"the candidate's process was at work for {candidate.worked_s:.0f} s by case "
                f"{index + 1} of {len(opened.problem.cases)}; {MORE_TIME}",
            )
    if len(checked.declined) == len(opened.problem.cases):
        raise fault("refused", "the kernel declines every case")
    return checked


def _check_other_sizes(
    checked: CheckedCases,
    opened: OpenProblem,
    index: int,
    renew: Callable[[], CandidateProcess],
    other: OtherProcess | None,
) -> tuple[bool | None, str]:
    """Check a model's kernel on sizes that its file does not have, after it was right on those.

    It need not take them: whatever fails there is no fault of a kernel for the file's sizes.
    """
    process = other(opened.problem.cases[index]) if other is not None else None
    if process is not None:
        checked.apart.add(index)
    try:
        with process or contextlib.nullcontext(checked.process) as asked:
            passed, detail, _ = check_case(asked, opened, index)
    except CandidateFault as error:
        if error.decided.status not in REJECTING:
            raise
        passed, detail = False, error.decided.reason
        if process is None and not error.raised:
            checked.process = renew()
    if passed is False:
        checked.apart.add(index)
        return None, f"it takes the sizes of the problem's file alone: {detail}"
    followed = "its file's constants followed the sizes; " if process is not None else ""
    return passed, followed + detail


def _check_grown(
    checked: CheckedCases,
    opened: OpenProblem,
    index: int,
    renew: Callable[[], CandidateProcess],
) -> CallAnswer:
    """Check a kernel on a size that its problem does not state; it need not take that.

    It does if it comes near the answer. Then an error is one of its arithmetic.
    """
    candidate = checked.process
    try:
        with candidate.uncounted(), opened.draw(index, 1, writable_inputs=True) as batch:
            (code,) = make_calls(candidate, opened, batch)
            candidate.deliver(0)
            check = opened.check(batch, 0, code)
    except CandidateFault as error:
        if error.decided.status not in REJECTING:
            raise
        if not error.raised:
            checked.process = renew()
        why = f"it takes the sizes of its cases alone: {error.decided.reason}"
        return CallAnswer(None, why)
    answer = answer_of_call(code, check)
    if answer.passed is False and (code or check.changed_input is not None or check.off > NEAR):
        why = f"it takes the sizes of its cases alone: on this one {answer.detail}"
        return CallAnswer(None, why)
    return answer


def _check_variations(candidate: CandidateProcess, opened: OpenProblem, index: int) -> str:
    """Check as many kinds of values, in random order, as VARIED_S allows: at least one."""
    began, tried, overflows = time.perf_counter(), 0, 0
    kinds = opened.unchecked(index)
    name = opened.problem.cases[index].name
    for values in opened.rng.sample(kinds, len(kinds)):
        if tried and time.perf_counter() - began > VARIED_S:
            break
        with candidate.uncounted():  # a census is of the case's own values
            passed, detail, overflow = check_case(candidate, opened, index, [values])
        tried, overflows = tried + 1, overflows + overflow
        if passed is None:
            raise fault("refused", f"the kernel declines the timed case {name} by its values")
        if not passed:
            raise fault("wrong", f"case {name} with values of a hidden case: {detail}")
    detail = f"{tried} of {len(kinds)} kinds of hidden cases' values at its sizes"
    if overflows:
        detail += f"; with {overflows} the reference overflows, so nothing is compared"
    return detail


def check_case(
    candidate: CandidateProcess,
    opened: OpenProblem,
    index: int,
    values: Sequence[int] = (),
    *,
    seeds: Sequence[int] = (),
) -> CallAnswer:
    """Make one call on a case; return its answer.

    With `seeds`, other kernels are checked on the same values. Raises CandidateFault.
    """
    with begun_case(candidate, opened, index, values, seeds=seeds) as finish:
        return finish()


@contextlib.contextmanager
def begun_case(
    candidate: CandidateProcess,
    opened: OpenProblem,
    index: int,
    values: Sequence[int] = (),
    *,
    seeds: Sequence[int] = (),
) -> Iterator[Callable[[], CallAnswer]]:
    """Begin the call of `check_case`; yield what waits for it and returns what that does."""
    with opened.draw(index, 1, writable_inputs=True, values=values, seeds=seeds) as batch:
        wait = begin_calls(candidate, opened, batch)

        def finish() -> CallAnswer:
            (code,) = wait()
            return check_call(candidate, opened, batch, 0, code, again=bool(seeds))

        yield finish


def make_calls(candidate: CandidateProcess, opened: OpenProblem, batch: DrawnBatch) -> list[int]:
    """Make all calls of a batch, untimed; return their codes.

    Raises CandidateFault, which names the case and the shapes of its inputs.
    """
    return begin_calls(candidate, opened, batch)()


def begin_calls(
    candidate: CandidateProcess, opened: OpenProblem, batch: DrawnBatch
) -> Callable[[], list[int]]:
    """Begin all calls of a batch, untimed; return what waits for them and returns their codes."""
    calls = len(batch.layout.calls)
    limit_s = opened.limit_s(batch.case, calls)
    with _naming(batch, opened):
        candidate.resume()
        candidate.prepare(batch.layout, batch.memories, batch.read)
        began = candidate.begin_calls(batch.memories, limit_s=limit_s)

    def wait() -> list[int]:
        with _naming(batch, opened):
            return candidate.end_calls(calls, began, limit_s=limit_s)[2]

    return wait


def check_call(
    candidate: CandidateProcess,
    opened: OpenProblem,
    batch: DrawnBatch,
    call: int,
    code: int,
    *,
    again: bool = False,
) -> CallAnswer:
    """Compare the outputs of a call that was made.

    With `again`, the right answers are kept for other kernels' calls on the same values.
    """
    return next(check_calls(candidate, opened, batch, {call: code}, again=again))


def check_calls(
    candidate: CandidateProcess,
    opened: OpenProblem,
    batch: DrawnBatch,
    codes: Mapping[int, int],
    *,
    again: bool = False,
) -> Iterator[CallAnswer]:
    """Compare the outputs of calls, given with their codes: all at once if that is cheap."""
    calls = list(codes.items())
    is_cheap = 0 < opened.check_time_s[batch.case] * len(calls) < AT_ONCE_S
    for part in [calls] if is_cheap else [[one] for one in calls]:
        for call, _ in part:
            with _naming(batch, opened):
                candidate.deliver(call)
        for (_, code), found in zip(
            part, opened.check_together(batch, part, again=again), strict=True
        ):
            yield answer_of_call(code, found)


@contextlib.contextmanager
def _naming(batch: DrawnBatch, opened: OpenProblem) -> Iterator[None]:
    """Name the case in a candidate's fault."""
    try:
        yield
    except CandidateFault as error:
        if error.decided.status == "unmeasured":
            raise
        raise error.on(f"case {opened.shown(batch.case)}") from error


def answer_of_call(code: int, check: CallCheck) -> CallAnswer:
    if check.changed_input is not None:
        return CallAnswer(False, f"input {check.changed_input} was changed")
    if code > 0:
        if check.written:
            return CallAnswer(False, f"it declined (code {code}) but wrote to its outputs")
        return CallAnswer(None, f"declined (code {code}): torch would compute it")
    if code < 0:
        why = f"it returned {code}: an entry returns 0, or a positive code to decline"
        return CallAnswer(False, why)
    return CallAnswer(check.passed, check.detail, check.overflows)
