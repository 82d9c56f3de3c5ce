"""`ratchet write`: one problem's run, or those of a workload, which share one budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.base.devices import ceilings
from ratchet.base.devices.probe import Device
from ratchet.base.errors import EndpointError, LearnError, LedgerError, RatchetError
from ratchet.base.ledger.connect import utc_now
from ratchet.judge.court.court import Court, target_for
from ratchet.judge.court.machines import LocalFleet
from ratchet.judge.kernels.kernel import TARGETS, Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.revision import revision
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.write.author import Answer
from ratchet.write.effort import floor_s
from ratchet.write.outcome import Writing, failed_result, result_of
from ratchet.write.problem_run import ProblemRun, RunEvent
from ratchet.write.roster import Setting, make_roster
from ratchet.write.writing_book import WritingBook, WritingOptions
from ratchet.write.writing_result import Reuse, WritingRequest, WritingResult

Follow = Callable[[RunEvent, Callable[[], WritingResult]], None]
"""Called with each event, and with a function that gives the result so far."""


def write(
    problem: Problem,
    request: WritingRequest,
    *,
    court: Court,
    follow: Follow | None = None,
    command: str = "",
    spent_s: float = 0.0,
) -> WritingResult:
    """Write kernels for one problem until its budget ends; the best is what a verdict confirmed.

    `spent_s` of the budget went into reading the problem. Ctrl-C ends the run: the result has what
    is known by then, and a resumed run goes on from there. Every answer is in the ledger as soon as
    it is given. Raises RatchetError: a problem that cannot be judged, a device that is not there,
    `resume` without an unfinished run, a ledger that fails.
    """
    began_s = time.monotonic() - spent_s
    if problem.fault:
        raise RatchetError(f"problem {problem.name!r} cannot be judged: {problem.fault}")
    court.fleet.device(request.device)  # raises DeviceError
    book = WritingBook(court.ledger, court.fingerprint)
    key = problem.hash
    state = Writing(
        problem=problem,
        request=request,
        court=court,
        command=command,
        started_at=utc_now(),
    )
    proven = [] if request.reuse == "never" else book.proven(key)
    earlier = book.unfinished(key) if request.resume else None
    if request.resume and earlier is None:
        raise LedgerError(
            f"no unfinished run on {problem.name!r} to resume here: leave --resume out"
        )
    enough = request.reuse == "always" or (
        request.reuse == "same budget" and book.largest_budget_s(key) >= request.budget_s
    )
    if earlier is None and proven and enough:
        state.recalled = court.last(proven[-1][0], problem, Terms(device=request.device))
        return result_of(state, running=False)
    if earlier is None:
        options = WritingOptions(
            budget_s=request.budget_s,
            seed=request.seed,
            authors=request.authors,
            judge=revision(),
            device=request.device,
        )
        state.run_id = book.start(problem, options)
    else:
        state.run_id, state.started_at = earlier.run, earlier.started_at
    return _run(state, book, [kernel for kernel, _ in proven], follow, began_s)


def _run(
    state: Writing,
    book: WritingBook,
    proven: Sequence[Kernel],
    follow: Follow | None,
    began_s: float,
) -> WritingResult:
    """Search, confirm, and note the end of the run. Getting ready counts too."""
    request, run_id = state.request, state.run_id
    before = book.answers(run_id)
    fleet = state.court.fleet
    device = fleet.device(request.device)
    if isinstance(fleet, LocalFleet):  # the ceilings are this machine's
        state.floor_s = _floor_s(state.problem, device, math.inf)
    setting = Setting(run=run_id, problem=state.problem, request=request, book=book, device=device)
    state.roster = make_roster(setting, proven=proven)

    on_gpu = device.kind == "cuda"
    target = target_for(request.language, request.target, on_gpu=on_gpu)

    def keep(answer: Answer) -> None:
        book.add(run_id, answer, state.problem.hash)

    def recall(answer: Answer) -> JudgedKernel | None:
        """Return the verdict of an earlier part of this run, which is not given twice."""
        if answer.stage != "judged":
            return None
        terms = Terms(device=request.device, target=target, profiled=TARGETS, compared=True)
        return state.court.known(answer.kernel, state.problem, terms)

    def floor_below(time_s: float) -> float | None:
        state.floor_s = _floor_s(state.problem, device, time_s)
        return state.floor_s

    def listen(event: RunEvent) -> None:
        if follow is not None:
            follow(event, lambda: result_of(state, running=True))

    work = state.work = ProblemRun(
        problem=state.problem,
        request=request,
        authors=list(state.roster.authors),
        court=state.court,
        keep=keep,
        listen=listen,
        floor_s=state.floor_s,
        floor_below=floor_below,
        on_gpu=on_gpu,
        target=target,
        before_s=max((one.after_s for one in before), default=0.0),
    )
    work.before_s += time.monotonic() - began_s
    work.restore(before, [one for one in map(recall, before) if one is not None])
    try:
        work.search()
        work.confirm()
    except KeyboardInterrupt:
        work.stopped = "interrupted"
    result = result_of(state, running=False)
    summary = {
        "status": result.status,
        "kernel_hash": result.best.kernel_hash if result.best else None,
        "screened": result.screened,
        "spent_s": result.spent_s,
        "stopped": result.stopped,
    }
    book.end(run_id, "interrupted" if work.stopped == "interrupted" else "finished", summary)
    return result


def _floor_s(problem: Problem, device: Device, fastest_s: float) -> float | None:
    """Return the roofline's time on the machine's cores; a GPU's judge has its own floor.

    A call that took `fastest_s` refutes ceilings by which it needs longer.
    """
    if device.kind != "cpu":
        return None
    try:
        known = ceilings.measure(device, again="due")
        return floor_s(
            problem,
            ceilings.unrefuted(device, known, lambda one: fastest_s < (floor_s(problem, one) or 0)),
        )
    except RatchetError:
        return None


SHORTEST_S = 15.0  # A problem gets at least so many seconds: one verdict and some screenings
LARGEST_SHARE = 1 / 3
"""Share of the budget that one of three or more problems may take before the last one."""
SEARCHED = "searched before without a proven kernel; leave --resume out to search again"
Done = Callable[[WritingResult], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    problem: Problem
    gain_s: float  # Seconds of a step that can still be won on it
    likely_s: float | None = None
    """The part of it that is likely won, by which problems are ordered; None: all of it."""

    @property
    def weight_s(self) -> float:
        """Return what orders the problems and shares the budget."""
        return self.gain_s if self.likely_s is None else self.likely_s


class RegionRow(msgspec.Struct, frozen=True, kw_only=True):
    problem: str
    problem_hash: str
    gain_s: float
    status: str  # A run's (`WritingResult.status`), or `not_reached`
    reason: str
    ratio: float | None = None  # The verdict's ratio to the reference
    low: float | None = None
    high: float | None = None
    kernel_hash: str | None = None
    screened: int = 0
    spent_s: float = 0.0
    recalled: bool = False


class WorkloadWriting(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of all problems of a workload."""

    workload: str
    budget_s: float
    spent_s: float
    rows: tuple[RegionRow, ...]
    interrupted: bool
    command: str


def write_all(
    workload: str,
    asked: Sequence[Asked],
    request: WritingRequest,
    *,
    court: Court,
    follow: Callable[[Problem], Follow],
    done: Done,
    command: str = "",
    spent_s: float = 0.0,
) -> WorkloadWriting:
    """Write kernels for problems in the order of what is likely won, until the budget ends.

    Those that the generator does not cover come last, unless somebody but the compiler writes for
    them: a few of its kernels would take the time that many others need.
    A problem's share of what is left is its share of the gain that is left, but at least
    SHORTEST_S and, unless it is the last one, at most LARGEST_SHARE of the budget. What a problem
    leaves goes to those after it: a proven kernel of the ledger costs nothing. `done` gets each
    result; `spent_s` of the budget are gone.
    """
    began = time.monotonic() - spent_s
    waiting = sorted(asked, key=lambda one: one.weight_s, reverse=True)
    last: list[Asked] = []
    rows: list[RegionRow] = []
    interrupted = False
    while waiting or last:
        one = waiting.pop(0) if waiting else last.pop(0)
        left_s = request.budget_s - (time.monotonic() - began)
        gains = [other.weight_s for other in (one, *waiting, *last)]
        share = one.weight_s / sum(gains) if sum(gains) > 0 else 1 / len(gains)
        if len(gains) > 1:
            largest = max(LARGEST_SHARE, 1 / len(asked))
            share = min(share, largest * request.budget_s / max(left_s, 1e-9))
        budget_s = min(left_s, max(SHORTEST_S, share * left_s))
        if interrupted or (budget_s < SHORTEST_S and rows):
            rows.append(
                RegionRow(
                    problem=one.problem.name,
                    problem_hash=one.problem.hash,
                    gain_s=one.gain_s,
                    status="not_reached",
                    reason="the budget ended before this region",
                )
            )
            continue
        if waiting and _is_the_compiler_s(one.problem, request):
            last.append(one)
            continue
        result = _written(one, request, budget_s, court, follow(one.problem), command)
        interrupted = result.stopped == "interrupted"
        rows.append(_row(one, result))
        done(result)
    return WorkloadWriting(
        workload=workload,
        budget_s=request.budget_s,
        spent_s=time.monotonic() - began,
        rows=tuple(rows),
        interrupted=interrupted,
        command=command,
    )


def _is_the_compiler_s(problem: Problem, request: WritingRequest) -> bool:
    """Return whether nobody but the compiler writes for a problem: the generator lacks an op."""
    others = set(request.authors) - {"library", "search"}
    if others != {"compiler"}:
        return False
    from ratchet.write.generator import space_for

    try:
        space_for(problem, device="cuda" if request.language == "triton" else "cpu")
    except RatchetError:
        return True
    return False


def _written(
    one: Asked,
    request: WritingRequest,
    budget_s: float,
    court: Court,
    follow: Follow,
    command: str,
) -> WritingResult:
    """Return one problem's result; a problem that cannot be written for has a result too."""
    reuse: Reuse = "never" if request.reuse == "never" else "always"
    own = msgspec.structs.replace(request, budget_s=budget_s, reuse=reuse, resume=False)
    book = WritingBook(court.ledger, court.fingerprint)
    try:
        if request.resume:
            key = one.problem.hash
            earlier = book.unfinished(key)
            if earlier is not None:
                before = max((answer.after_s for answer in book.answers(earlier.run)), default=0.0)
                own = msgspec.structs.replace(own, resume=True, budget_s=before + budget_s)
            elif book.largest_budget_s(key) and not book.proven(key):
                return failed_result(one.problem, own, SEARCHED, command=command)
        if own.reuse == "always" and not book.proven(one.problem.hash):
            # Judge on this problem what is proven for the same region under other values.
            name, language = one.problem.name, own.language
            kernel = book.best_of_region(name, one.problem.hash, language=language)
            if kernel is not None:
                limit_s = max(SHORTEST_S, own.budget_s / 2)
                court.judge(kernel, one.problem, Terms(time_limit_s=limit_s, device=own.device))
        return write(one.problem, own, court=court, follow=follow, command=command)
    except (LedgerError, EndpointError, LearnError):  # the other problems' runs would fail so too
        raise
    except RatchetError as error:
        return failed_result(one.problem, own, str(error), command=command)


def _row(one: Asked, result: WritingResult) -> RegionRow:
    best = result.best
    ratio = None if best is None else best.verdict.speedup.vs_reference
    return RegionRow(
        problem=result.problem,
        problem_hash=result.problem_hash,
        gain_s=one.gain_s,
        status=result.status,
        ratio=ratio.ratio if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        kernel_hash=None if best is None else best.kernel_hash,
        screened=result.screened,
        spent_s=result.spent_s,
        recalled=best is not None and best.recalled,
        reason=best.reason if best else "; ".join(result.notes) or "no kernel was right",
    )
