"""Check that a kernel is right: each case once, with new values, read while it is stopped."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ratchet.base.errors import JudgeError
from ratchet.base.process import Clock
from ratchet.base.process.channel import Message, close_descriptors
from ratchet.base.process.child import ChildFailure
from ratchet.judge.integrity.outputs import Read, Spot
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.trial.device_clock import DeviceClock
from ratchet.judge.trial.machine_faults import is_fault
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.processes.reference import (
    DeviceMemoryRefused,
    ReferenceFault,
    ReferenceProcess,
)
from ratchet.judge.trial.processes.rivals import COMPILED, RivalProcess, Rivals
from ratchet.judge.verdict import CandidateFault, Evidence, fault
from ratchet.judge.workers.memory.layout import BatchLayout

SLOWEST_FACTOR = 100.0
"""The judge gives up a kernel that is this many times slower than the reference."""
SLOWEST_FLOOR_S = 10.0
WORK_S = 120.0
"""It gives up a process that was at work for longer than this over all cases, and longer than the
time limit."""
TORCH_BYTES = 32 << 30
"""Address space that torch takes."""
MARGIN_BYTES = 4 << 30
"""Address space beyond the tensors: the interpreter, threads' stacks, OpenMP."""
SHOWN_INPUTS = 4
REJECTING: Final = ("crashed", "wrong", "refused")
"""Endings on other sizes of a kernel that is built for its file's alone; a wrong value is none."""
NEAR: Final = 0.5
"""An answer further off than this, relative to itself, is that of another computation."""
VARIED_S = 0.3
"""Seconds for checking a timed case with values of hidden ones."""
COMPILE_LIMIT_S, COMPILE_SHARE, COMPILE_LEAST_S = 60.0, 0.5, 5.0
"""torch.compile of the reference may take this long, this share of the time left, and at least the
last of these."""


OtherProcess = Callable[[Case], contextlib.AbstractContextManager[CandidateProcess] | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseFacts:
    """The reference worker's measurements of one case."""

    name: str
    time_s: float
    """One warm call of the reference, by the worker's own clock: for planning only."""
    flops: float
    """Operations of one call; 0 if nothing is timed."""
    bytes: float
    """Bytes of inputs and outputs: the least that can be moved."""

    def limit_s(self, calls: int) -> float:
        """Return the seconds that a candidate may be at work on this many calls."""
        return SLOWEST_FLOOR_S + SLOWEST_FACTOR * calls * self.time_s


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCheck:
    """The reference worker's findings in memory after one call of a candidate."""

    changed_input: int | None
    written: bool
    """True if the call wrote to its outputs."""
    passed: bool
    detail: str
    off: float = 0.0
    """The error in norm, relative to the answer's own, on a grown case."""
    overflows: bool = False
    """True if the reference overflows on these values, so nothing was compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnBatch:
    """A batch in shared memory, as the judge holds it: places and descriptors, no answers."""

    number: int
    case: int
    layout: BatchLayout
    memories: list[int]
    values: Sequence[str] = ()
    """The case whose values each call has, if they are not the case's own."""
    read: Read | None = None
    """Reads the outputs on a GPU, through the reference worker."""
    alike: Sequence[int] = ()
    """Calls whose inputs are those of an earlier one, but for a few elements."""


class OpenProblem:
    """A problem that the reference worker holds open, and the secrets of this verdict."""

    def __init__(
        self,
        problem: Problem,
        reference: ReferenceProcess,
        cases: Sequence[CaseFacts],
        rng: random.Random,
        clock: Clock,
        accelerator: Accelerator | None = None,
        evidence: list[Evidence] | None = None,
    ) -> None:
        """Stages add what they find to `evidence`."""
        self.problem = problem
        self.evidence = [] if evidence is None else evidence
        self.accelerator = accelerator
        self.device_clock = DeviceClock()
        self._flushed: Message = {}
        self.reference = reference
        self.cases = list(cases)
        self.rng = rng
        self.clock = clock
        self.check_time_s = dict.fromkeys(range(len(self.cases)), 0.0)
        """Seconds that the last comparison of each case took."""
        self._variations = {
            index: problem.varied(case) for index, case in enumerate(problem.cases) if case.timed
        }
        self.unworn: set[int] = set()
        """The cases that a kernel rejects, or that it was given in a process of their own."""
        self.declined: set[int] = set()
        """The cases that a kernel declines."""
        self.overflows = 0
        """Calls that were not compared, because the reference overflows on their values."""
        self.rivals = Rivals(problem, reference, clock, accelerator)
        """Processes of the reference that are timed."""
        self.lasting: dict[str, RivalProcess] = {}
        """Those that last for the whole verdict, by the name of their arm."""
        self._batches = 0
        self.is_emulated = False
        self.least_calls = 1
        """The fewest calls of a timed batch, unless they are too large or too slow."""
        self.batch_part = 1
        """On a GPU a batch has this part of its calls: memory was refused for more."""
        self.among = 1
        """Verdicts that share one chance of a false answer."""

    def has_other_sizes(self, index: int) -> bool:
        """Return whether a case has sizes that the file of a KernelBench problem has not."""
        given = [one.shape for one in self.problem.cases[0].inputs]
        found = [one.shape for one in self.problem.cases[index].inputs]
        return self.problem.model is not None and found != given

    def shown(self, index: int) -> str:
        """Return a case's name with its inputs' shapes and dtypes, without a model's state."""
        case, form = self.problem.cases[index], self.problem.model
        specs = case.inputs[0 if form is None else len(form.state) :]
        words = [f"{'x'.join(map(str, one.shape)) or 'scalar'} {one.dtype}" for one in specs]
        more = ["..."] if len(words) > SHOWN_INPUTS else []
        return f"{case.name} ({', '.join([*words[:SHOWN_INPUTS], *more])})"

    def limit_s(self, case: int, calls: int) -> float:
        """Return the seconds that a candidate may be at work on this many calls, untimed.

        An emulated kernel is not compared with the reference's speed: the verdict's limit holds.
        """
        if self.is_emulated:
            return self.clock.step_limit_s
        return self.cases[case].limit_s(calls)

    @property
    def timed(self) -> list[int]:
        return [index for index, case in enumerate(self.problem.cases) if case.timed]

    def variations(self, case: int) -> int:
        """Return how many kinds of values a timed case has besides its own."""
        return len(self._variations.get(case, ()))

    def unchecked(self, case: int) -> list[int]:
        """Return the kinds of values that no hidden case has at these sizes."""
        hidden = [one.inputs for one in self.problem.cases if one.hidden]
        found = self._variations.get(case, ())
        return [kind for kind, varied in enumerate(found) if varied.inputs not in hidden]

    def memory_bytes(self, kernel: Kernel) -> int:
        """Return the address space for the largest case, copies of it, and torch if needed."""
        largest = max(case.bytes for case in self.cases)
        needed = TORCH_BYTES if kernel.language in WITH_TORCH else 1 << 30
        return int(8 * largest) + needed + MARGIN_BYTES

    def ask(self, **message: object) -> Message:
        """Ask the reference worker; raises ReferenceFault if it reports an error."""
        return self.reference.ask(timeout_s=self.clock.reference_limit_s, **message)

    @contextlib.contextmanager
    def draw(
        self,
        case: int,
        calls: int,
        *,
        writable_inputs: bool,
        distinct: int | None = None,
        values: Sequence[int] = (),
        seeds: Sequence[int] = (),
        places: int | None = None,
        alike: Sequence[tuple[int, int]] = (),
    ) -> Iterator[DrawnBatch]:
        """Draw fresh values for some calls of a case; they are given back at the end.

        `distinct` is the number of draws, which the calls take in turn; by default one per call.
        `values` names the variation (`Problem.varied`) from which each call's values are drawn.
        `seeds` are those of a round: all of its arms compute on the same values, each in memory of
        its own. Batches of a case with the same `places` have the same layout, and on cores their
        tensors lie at the same addresses. `alike` has pairs of a call and an earlier one, whose
        inputs it repeats but for a few elements, where the answer shows such a change.
        """
        drawn = seeds or [self.rng.getrandbits(48) for _ in range(min(calls, distinct or calls))]
        self._batches += 1
        number = self._batches
        reply, memories = self.reference.ask_for_memory(
            timeout_s=self.clock.reference_limit_s,
            do="draw",
            batch=number,
            case=case,
            seeds=[drawn[call % len(drawn)] for call in range(calls)],
            round=bool(seeds),
            writable_inputs=writable_inputs,
            values=list(values),
            places=places,
            alike=list(alike),
        )
        try:
            yield DrawnBatch(
                number=number,
                case=case,
                layout=BatchLayout.of(reply["layout"]),
                memories=memories,
                values=[self._variations[case][kind].name for kind in values],
                read=partial(self._read, number) if self.accelerator else None,
                alike=reply["alike"],
            )
        finally:
            close_descriptors(memories)
            if self.reference.alive:
                self.reference.ask(timeout_s=30.0, do="release", batch=number)

    def _read(self, number: int, spots: Sequence[Spot]) -> list[bytes]:
        """Return the bytes at some spots of a batch in a GPU's memory."""
        try:
            reply = self.ask(do="places", batch=number, spots=list(spots))
        except ChildFailure as error:  # it is not the candidate's process that failed
            raise JudgeError(f"the reference worker {error}") from error
        return [bytes.fromhex(one) for one in reply["found"]]

    def flush(self, *, load_s: float = 0.0) -> None:
        """Empty a GPU's caches before a batch, and keep it busy for so long.

        On cores each batch's memory is new to the caches.
        """
        if self.accelerator is not None:
            self._flushed = self.ask(do="flush", load_s=load_s)

    def flushes(self) -> Evidence:
        """Return the evidence of what was done to a GPU's caches before each batch."""
        size = f"{self._flushed.get('flushed_bytes', 0)} bytes written before every batch"
        reset = "reset" if self._flushed.get("persisting_reset") else "not known to this driver"
        return Evidence(check="caches", passed=True, detail=f"{size}; persisting lines {reset}")

    @contextlib.contextmanager
    def reference_rests(self) -> Iterator[None]:
        """Stop the reference worker while the candidate runs.

        On a GPU it goes on: it must read the outputs at once, and only waits until then.
        """
        if self.accelerator is not None:
            yield
            return
        self.reference.pause()
        try:
            yield
        finally:
            self.reference.resume()

    def compile_rival(self) -> Evidence:
        """Have the reference compiled for all launches; return whether that succeeded."""
        check, threads = "torch.compile as a rival", self.reference.threads
        limit_s = self._compile_limit_s
        try:
            started = self.rivals.start(threads=threads, compiled=True, limit_s=limit_s)
        except (ReferenceFault, DeviceMemoryRefused) as error:
            return Evidence(check=check, passed=False, detail=f"not timed: {error}")
        self.lasting[COMPILED] = started
        return Evidence(check=check, passed=True, detail="compiled before the clock started")

    def compile_into(self, folder: Path) -> None:
        """Have the reference worker compile the reference for every case, into a folder.

        Raises ReferenceFault if it cannot.
        """
        self.ask(do="compile into", folder=str(folder), limit_s=self._compile_limit_s)

    @property
    def _compile_limit_s(self) -> float:
        return max(COMPILE_LEAST_S, min(COMPILE_LIMIT_S, COMPILE_SHARE * self.clock.left_s))

    def check(self, batch: DrawnBatch, call: int, code: int, *, again: bool = False) -> CallCheck:
        """Compare the outputs of a call that returned `code`; the candidate must be stopped.

        With `again`, the right answers are kept for other arms' calls on the same values.
        """
        began = time.perf_counter()
        reply = self.ask(do="check", batch=batch.number, call=call, code=code, again=again)
        self.check_time_s[batch.case] = time.perf_counter() - began
        check = CallCheck(**reply)
        self.overflows += check.overflows
        return check


def described_cases(
    problem: Problem,
    reference: ReferenceProcess,
    *,
    threads: int,
    seed: int,
    timeout_s: float,
    accelerator: Accelerator | None = None,
    kind: type[CaseFacts] = CaseFacts,
    is_timed: bool = True,
    evidence: list[Evidence],
) -> list[CaseFacts]:
    """Have the reference worker open a problem; return what it measured of each case, as `kind`.

    The worker judges the problem first: CandidateFault if it refuses the problem. It counts no
    operations unless a kernel `is_timed`.
    """
    try:
        reply = reference.ask(
            timeout_s=timeout_s,
            do="open",
            problem=problem.as_json(),
            threads=threads,
            seed=seed,
            device=accelerator.as_json() if accelerator else None,
            is_timed=is_timed,
        )
    except ReferenceFault as error:
        raise fault("refused", f"the problem cannot be judged: {error}") from error
    trivial = ", ".join(reply["gate"])
    detail = f"passes though trivial: {trivial}" if trivial else ""
    evidence.append(Evidence(check="problem gate", passed=not trivial, detail=detail))
    if trivial:
        raise fault("refused", f"the problem accepts {trivial}: tighten it")
    measured = zip(problem.cases, reply["cases"], strict=True)
    return [kind(name=case.name, **one) for case, one in measured]


def check_cases(
    candidate: CandidateProcess, opened: OpenProblem, other: OtherProcess | None = None
) -> None:
    """Check every case of the problem: none may be wrong, and no timed one declined.

    A timed case is also given values of the hidden ones, so a kernel cannot infer its inputs'
    values from their sizes. `other` returns what starts the process for a hidden case whose sizes
    a kernel's constants follow, or None. Raises CandidateFault.
    """
    evidence, declined = opened.evidence, 0
    for index, case in enumerate(opened.problem.cases):
        if case.grown:
            passed, detail = _check_grown(candidate, opened, index)
        elif case.hidden and opened.has_other_sizes(index):
            passed, detail = _check_other_sizes(candidate, opened, index, other)
        else:
            passed, detail = check_case(candidate, opened, index)
        evidence.append(Evidence(check=f"correct on {case.name}", passed=passed, detail=detail))
        if passed is None:
            declined += 1
            opened.declined.add(index)
            if case.timed:
                raise fault("refused", f"the kernel declines the timed case {case.name}")
        elif not passed:
            raise fault("wrong", f"case {case.name}: {detail}")
        elif opened.unchecked(index):
            evidence.append(_check_variations(candidate, opened, index))
        if candidate.worked_s > max(WORK_S, opened.clock.limit_s):
            raise fault(
                "timed_out",
                f"the candidate's process was at work for {candidate.worked_s:.0f} s by case "
                f"{index + 1} of {len(opened.problem.cases)}; raise the time limit",
            )
    if declined == len(opened.problem.cases):
        raise fault("refused", "the kernel declines every case")


def _check_other_sizes(
    candidate: CandidateProcess, opened: OpenProblem, index: int, other: OtherProcess | None
) -> tuple[bool | None, str]:
    """Check a model's kernel on sizes that its file does not have; it may reject them."""
    process = other(opened.problem.cases[index]) if other is not None else None
    if process is not None:
        opened.unworn.add(index)
    try:
        with process or contextlib.nullcontext(candidate) as asked:
            passed, detail = check_case(asked, opened, index)
    except CandidateFault as error:
        decided = error.decided
        rejects = error.raised or process is not None
        if not rejects or is_fault(decided.reason) or decided.status not in REJECTING:
            raise
        opened.unworn.add(index)
        return None, f"it takes the sizes of the problem's file alone: {decided.reason}"
    followed = "its file's constants followed the sizes; " if process is not None else ""
    return passed, followed + detail


def _check_grown(
    candidate: CandidateProcess, opened: OpenProblem, index: int
) -> tuple[bool | None, str]:
    """Check a kernel on a size that its problem does not state; it need not take that.

    It does if it comes near the answer. Then an error is one of its arithmetic.
    """
    opened.unworn.add(index)
    try:
        with candidate.uncounted(), opened.draw(index, 1, writable_inputs=True) as batch:
            (code,) = make_calls(candidate, opened, batch)
            candidate.deliver(0)
            check = opened.check(batch, 0, code)
    except CandidateFault as error:
        if not error.raised:
            raise
        return None, f"it takes the sizes of its cases alone: {error.decided.reason}"
    passed, detail = verdict_of_call(code, check)
    if passed is False and code == 0 and check.changed_input is None and check.off > NEAR:
        return None, "it takes the sizes of its cases alone: its answer is another on this one"
    return passed, detail


def _check_variations(candidate: CandidateProcess, opened: OpenProblem, index: int) -> Evidence:
    """Check as many kinds of values, in random order, as VARIED_S allows: at least one."""
    began, tried = time.perf_counter(), 0
    before = opened.overflows
    kinds = opened.unchecked(index)
    name = opened.problem.cases[index].name
    for values in opened.rng.sample(kinds, len(kinds)):
        if tried and time.perf_counter() - began > VARIED_S:
            break
        with candidate.uncounted():  # a census is of the case's own values
            passed, detail = check_case(candidate, opened, index, [values])
        tried += 1
        if passed is None:
            raise fault("refused", f"the kernel declines the timed case {name} by its values")
        if not passed:
            raise fault("wrong", f"case {name} with values of a hidden case: {detail}")
    detail = f"{tried} of {len(kinds)} kinds of hidden cases' values at its sizes"
    overflows = opened.overflows - before
    if overflows:
        detail += f"; with {overflows} the reference overflows, so nothing is compared"
    return Evidence(check=f"correct on {name}, varied", passed=True, detail=detail)


def check_case(
    candidate: CandidateProcess,
    opened: OpenProblem,
    index: int,
    values: Sequence[int] = (),
    *,
    seeds: Sequence[int] = (),
) -> tuple[bool | None, str]:
    """Make one call on a case; return whether it is right (None if it declined), and why.

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
) -> Iterator[Callable[[], tuple[bool | None, str]]]:
    """Begin the call of `check_case`; yield what waits for it and returns what that does."""
    with opened.draw(index, 1, writable_inputs=True, values=values, seeds=seeds) as batch:
        wait = begin_calls(candidate, opened, batch)

        def finish() -> tuple[bool | None, str]:
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
    """Begin all calls of a batch, untimed; return what waits for them and returns their codes.

    Both raise CandidateFault, as `make_calls` does.
    """
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
) -> tuple[bool | None, str]:
    """Compare the answers of a call that was made; return as `verdict_of_call`.

    With `again`, the right answers are kept for other kernels' calls on the same values.
    """
    with _naming(batch, opened):
        candidate.deliver(call)
    return verdict_of_call(code, opened.check(batch, call, code, again=again))


@contextlib.contextmanager
def _naming(batch: DrawnBatch, opened: OpenProblem) -> Iterator[None]:
    """Name the case in a candidate's fault."""
    try:
        yield
    except CandidateFault as error:
        if error.decided.status == "unmeasured":
            raise
        raise error.on(f"case {opened.shown(batch.case)}") from error


def verdict_of_call(code: int, check: CallCheck) -> tuple[bool | None, str]:
    """Return whether a call was right, given its code (None: it declined), and why."""
    if check.changed_input is not None:
        return False, f"input {check.changed_input} was changed"
    if code > 0:
        if check.written:
            return False, f"it declined (code {code}) but wrote to its outputs"
        return None, f"declined (code {code}): torch would compute it"
    if code < 0:
        return False, f"it returned {code}: an entry returns 0, or a positive code to decline"
    return check.passed, check.detail
