"""`ratchet write PROBLEM`: one problem's run from its first proposal to its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ratchet.amd.architectures import TARGETS
from ratchet.base.devices import ceilings
from ratchet.base.devices.probe import Device
from ratchet.base.errors import LedgerError, RatchetError
from ratchet.base.ledger.connect import utc_now
from ratchet.judge.court.court import Court, target_for
from ratchet.judge.court.machines import LocalFleet
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.revision import revision
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.write.author import Answer, Author
from ratchet.write.outcome import Writing, result_of
from ratchet.write.problem_run import ProblemRun, RunEvent
from ratchet.write.roster import Setting, make_roster
from ratchet.write.search.roofline import floor_s
from ratchet.write.writing_book import WritingBook, WritingOptions
from ratchet.write.writing_result import WritingRequest, WritingResult

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
    guests: Sequence[Author] = (),
) -> WritingResult:
    """Write kernels for one problem until its budget ends; the best is what a verdict confirmed.

    `spent_s` of the budget went into reading the problem. `guests` are authors that the request
    names and that a higher room made. Ctrl-C ends the run: the result has what
    is known by then, and a resumed run goes on from there. Every answer is in the ledger as soon as
    it is given.

    Raises:
        RatchetError: a problem that cannot be judged, a device that is not there, `resume` without
            an unfinished run, a ledger that fails.
    """
    began_s = time.monotonic() - spent_s
    if problem.fault:
        raise RatchetError(f"problem {problem.name!r} cannot be judged: {problem.fault}")
    court.fleet.device(request.device)  # raises DeviceError
    book = WritingBook(court.ledger, court.fingerprint)
    key = problem.hash
    state = Writing(
        problem=problem,
        problem_hash=key,
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
    if earlier is None and proven and _is_enough(request, book, key):
        return _recalled(state, proven[-1][0])
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
    return _run(state, book, [kernel for kernel, _ in proven], follow, began_s, guests)


def _is_enough(request: WritingRequest, book: WritingBook, problem_hash: str) -> bool:
    """Return whether a proven kernel of the ledger answers the request."""
    if request.reuse != "same budget":
        return request.reuse == "always"
    return book.largest_budget_s(problem_hash) >= request.budget_s


def _run(
    state: Writing,
    book: WritingBook,
    proven: Sequence[Kernel],
    follow: Follow | None,
    began_s: float,
    guests: Sequence[Author],
) -> WritingResult:
    """Search, confirm, and note the end of the run. Getting ready counts too."""
    request, run_id = state.request, state.run_id
    before = book.answers(run_id)
    fleet = state.court.fleet
    device = fleet.device(request.device)
    if isinstance(fleet, LocalFleet):  # the ceilings are this machine's
        state.floor_s = _floor_s(state.problem, device)
    setting = Setting(run=run_id, problem=state.problem, request=request, book=book, device=device)
    state.roster = make_roster(setting, proven=proven, guests=guests)

    on_gpu = device.kind == "cuda"
    target = target_for(request.language, request.target, on_gpu=on_gpu)

    def keep(answer: Answer) -> None:
        book.add(run_id, answer, state.problem_hash)

    def recall(answer: Answer) -> JudgedKernel | None:
        """Return the verdict of an earlier part of this run, which is not given twice."""
        if answer.stage != "judged":
            return None
        terms = Terms(device=request.device, target=target, profiled=TARGETS, compared=True)
        return state.court.known(answer.kernel, state.problem, terms)

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


def _floor_s(problem: Problem, device: Device) -> float | None:
    """Return the roofline's time on the machine's cores; a GPU's judge has its own floor."""
    if device.kind != "cpu":
        return None
    try:
        return floor_s(problem, ceilings.measure(device, again="due"))
    except RatchetError:
        return None


def _recalled(state: Writing, kernel: Kernel) -> WritingResult:
    """Return the result that is a kernel the ledger holds as proven."""
    state.recalled = state.court.last(kernel, state.problem, Terms(device=state.request.device))
    return result_of(state, running=False)
