"""Check that a kernel is right: every case once, with new values, read while it stands still."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ratchet.base.errors import JudgeError
from ratchet.base.process.channel import close_descriptors
from ratchet.base.process.child import ChildFailure
from ratchet.base.process.time_limits import Clock
from ratchet.judge.integrity.outputs import Read, Spot
from ratchet.judge.options import WITH_TORCH
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.stage_result import Decided, Ok, as_stage
from ratchet.judge.trial.device_clock import DeviceClock
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.processes.reference import ReferenceFault, ReferenceProcess
from ratchet.judge.trial.processes.rivals import COMPILED, RivalProcess, Rivals
from ratchet.judge.verdict import Evidence
from ratchet.kernels.kernel import Kernel
from ratchet.problems.problem import Problem

SLOWEST_FACTOR = 100.0
"""A kernel this many times slower than the reference is given up."""
SLOWEST_FLOOR_S = 10.0
WORK_S = 120.0
"""A process that was at work for longer than this over all of the cases, and than the time limit,
is given up."""
TORCH_BYTES = 32 << 30
"""Address space that torch takes."""
VARIED_S = 0.3
"""What checking a timed case with values of hidden ones may take."""
COMPILE_LIMIT_S, COMPILE_SHARE, COMPILE_LEAST_S = 60.0, 0.5, 5.0
"""torch.compile of the reference takes at most this long, and this share of the time left; it is
tried for the last of these at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseFacts:
    """The reference worker's measurements of one case."""

    name: str
    time_s: float
    """One warm call of the reference, by the worker's own clock: for planning only."""
    flops: float
    bytes: float
    """Bytes of inputs and outputs: the least that can be moved."""

    def limit_s(self, calls: int) -> float:
        """Return the seconds that a candidate may be at work on this many calls."""
        return SLOWEST_FLOOR_S + SLOWEST_FACTOR * calls * self.time_s


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnBatch:
    """A batch in shared memory, as the judge holds it: places and descriptors, no answers."""

    number: int
    case: int
    layout: dict[str, Any]
    memories: list[int]
    values: Sequence[str] = ()
    """Whose values each call has, where they are not the case's own."""
    read: Read | None = None
    """Who reads its outputs, where the judge cannot: the reference worker, on a GPU."""


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
    ) -> None:
        self.problem = problem
        self.accelerator = accelerator
        self.device_clock = DeviceClock()
        """What a GPU's own clock said beside the judge's."""
        self._flushed: dict[str, Any] = {}
        self.reference = reference
        self.cases = list(cases)
        self.rng = rng
        self.clock = clock
        self.check_time_s = dict.fromkeys(range(len(self.cases)), 0.0)
        """How long the last comparison of each case took."""
        self._variations = {
            index: problem.varied(case) for index, case in enumerate(problem.cases) if case.timed
        }
        self.overflows = 0
        """Calls that were not compared, as the reference overflows with such values."""
        self.rivals = Rivals(problem, reference, clock, accelerator)
        """Starts of the reference that are timed."""
        self.lasting: dict[str, RivalProcess] = {}
        """Those of the whole verdict, by the name of their arm."""
        self._batches = 0
        self.least_calls = 1
        """Calls of a timed batch at least, where they are not too large or too slow."""
        self.among = 1
        """Verdicts that share one chance of a false answer."""

    @staticmethod
    def of(
        problem: Problem,
        reference: ReferenceProcess,
        described: Sequence[dict[str, Any]],
        secret: int,
        clock: Clock,
        accelerator: Accelerator | None = None,
    ) -> OpenProblem:
        """Read what the reference worker answered when it opened the problem."""
        facts = [
            CaseFacts(name=case.name, **given)
            for case, given in zip(problem.cases, described, strict=True)
        ]
        rng = random.Random(secret)
        return OpenProblem(problem, reference, facts, rng, clock, accelerator)

    @property
    def timed(self) -> list[int]:
        """The cases on which speed is judged."""
        return [index for index, case in enumerate(self.problem.cases) if case.timed]

    def variations(self, case: int) -> int:
        """Return how many kinds of values besides its own a timed case may be given."""
        return len(self._variations.get(case, ()))

    def unchecked(self, case: int) -> list[int]:
        """Return those of these kinds that no hidden case has already, sizes and all."""
        hidden = [one.inputs for one in self.problem.cases if one.hidden]
        found = self._variations.get(case, ())
        return [kind for kind, varied in enumerate(found) if varied.inputs not in hidden]

    def memory_bytes(self, kernel: Kernel) -> int:
        """Address space for the largest case, some copies of it, and torch where it is needed."""
        largest = max(case.bytes for case in self.cases)
        return int(8 * largest) + (TORCH_BYTES if kernel.language in WITH_TORCH else (1 << 30))

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
    ) -> Iterator[DrawnBatch]:
        """Fresh values for some calls of a case, given back at the end.

        `distinct`: how many draws there are, which the calls take in turn; one for each by default.
        `values`: from which of the case's variations (`Problem.varied`) each call's are drawn.
        `seeds`: those of a round, whose arms all compute on the same values, each in its memory.
        """
        drawn = seeds or [self.rng.getrandbits(48) for _ in range(min(calls, distinct or calls))]
        self._batches += 1
        number = self._batches
        reply, memories = self.reference.ask_for_memory(
            timeout_s=self.clock.reference_s,
            do="draw",
            batch=number,
            case=case,
            seeds=[drawn[call % len(drawn)] for call in range(calls)],
            round=bool(seeds),
            writable_inputs=writable_inputs,
            values=list(values),
        )
        try:
            read = partial(self._read, number) if self.accelerator else None
            layout = reply["layout"]
            named = [self._variations[case][kind].name for kind in values]
            yield DrawnBatch(
                number=number,
                case=case,
                layout=layout,
                memories=memories,
                values=named,
                read=read,
            )
        finally:
            close_descriptors(memories)
            if self.reference.alive:
                self.reference.ask(timeout_s=30.0, do="release", batch=number)

    def _read(self, number: int, spots: Sequence[Spot]) -> list[bytes]:
        """Return what stands at places of a batch in a GPU's memory."""
        try:
            reply = self.reference.ask(
                timeout_s=self.clock.reference_s, do="places", batch=number, spots=list(spots)
            )
        except ChildFailure as error:  # it is not the candidate's process that failed
            raise JudgeError(f"the reference worker {error}") from error
        return [bytes.fromhex(one) for one in reply["found"]]

    def flush(self) -> None:
        """Empty a GPU's caches before a batch; on cores every batch's memory is new to them."""
        if self.accelerator is not None:
            self._flushed = self.reference.ask(timeout_s=self.clock.reference_s, do="flush")

    def flushes(self) -> Evidence:
        """Return the evidence of what was done to a GPU's caches before every batch."""
        size = f"{self._flushed.get('flushed_bytes', 0)} bytes written before every batch"
        reset = "reset" if self._flushed.get("persisting_reset") else "not known to this driver"
        return Evidence(check="caches", passed=True, detail=f"{size}; persisting lines {reset}")

    @contextlib.contextmanager
    def reference_rests(self) -> Iterator[None]:
        """While the candidate runs the reference worker stands still.

        On a GPU it waits instead, for it must read the outputs at once: it has nothing to do there.
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
        """Have the reference compiled, for all launches, and say whether it could be."""
        check, threads = "torch.compile as a rival", self.reference.threads
        limit_s = self._compile_limit_s
        try:
            started = self.rivals.start(threads=threads, compiled=True, limit_s=limit_s)
        except ReferenceFault as error:
            return Evidence(check=check, passed=False, detail=f"not timed: {error}")
        self.lasting[COMPILED] = started
        return Evidence(check=check, passed=True, detail="compiled before the clock started")

    def compile_into(self, folder: Path) -> None:
        """Have the reference worker compile the reference for every case and keep it in a folder.

        Raises ReferenceFault where it cannot.
        """
        self.reference.ask(
            timeout_s=self.clock.reference_s,
            do="compile into",
            folder=str(folder),
            limit_s=self._compile_limit_s,
        )

    @property
    def _compile_limit_s(self) -> float:
        return max(COMPILE_LEAST_S, min(COMPILE_LIMIT_S, COMPILE_SHARE * self.clock.left_s))

    def check(
        self, batch: DrawnBatch, call: int, code: int, *, again: bool = False
    ) -> dict[str, Any]:
        """Compare the outputs of a call that returned `code`; the candidate must stand still.

        With `again`, the right answers are kept for other arms' calls on the same values.
        """
        began = time.perf_counter()
        reply = self.reference.ask(
            timeout_s=self.clock.reference_s,
            do="check",
            batch=batch.number,
            call=call,
            code=code,
            again=again,
        )
        self.check_time_s[batch.case] = time.perf_counter() - began
        self.overflows += bool(reply.get("overflows"))
        return reply


def check_cases(candidate: CandidateProcess, opened: OpenProblem) -> Ok[None] | Decided:
    """Check every case of the problem; none may be wrong, and no timed one declined.

    A timed case is also given values of the hidden ones: a kernel may not take its inputs' sizes
    for a sign of their values.
    """
    return as_stage(partial(_check_all, candidate, opened))


def _check_all(
    candidate: CandidateProcess, opened: OpenProblem, evidence: list[Evidence]
) -> Decided | None:
    declined = 0
    for index, case in enumerate(opened.problem.cases):
        passed, detail = _check_case(candidate, opened, index)
        evidence.append(Evidence(check=f"correct on {case.name}", passed=passed, detail=detail))
        if passed is None:
            declined += 1
            if case.timed:
                return Decided("refused", f"the kernel declines the timed case {case.name}")
        elif not passed:
            return Decided("wrong", f"case {case.name}: {detail}")
        elif opened.unchecked(index):
            varied = _check_variations(candidate, opened, index)
            if isinstance(varied, Decided):
                return varied
            evidence.append(varied)
        if candidate.worked_s > max(WORK_S, opened.clock.limit_s):
            return Decided(
                "timed_out",
                f"the candidate's process was at work for {candidate.worked_s:.0f} s by case "
                f"{index + 1} of {len(opened.problem.cases)}; raise the time limit",
            )
    if declined == len(opened.problem.cases):
        return Decided("refused", "the kernel declines every case")
    return None


def _check_variations(
    candidate: CandidateProcess, opened: OpenProblem, index: int
) -> Evidence | Decided:
    """Check as many kinds of values, in random order, as VARIED_S allows: one at least."""
    began, tried = time.perf_counter(), 0
    before = opened.overflows
    kinds = opened.unchecked(index)
    censuses, candidate.censuses = candidate.censuses, None  # which is of the case's own values
    name = opened.problem.cases[index].name
    for values in opened.rng.sample(kinds, len(kinds)):
        if tried and time.perf_counter() - began > VARIED_S:
            break
        passed, detail = _check_case(candidate, opened, index, [values])
        tried += 1
        if passed is None:
            return Decided("refused", f"the kernel declines the timed case {name} by its values")
        if not passed:
            return Decided("wrong", f"case {name} with values of a hidden case: {detail}")
    candidate.censuses = censuses
    detail = f"{tried} of {len(kinds)} kinds of hidden cases' values at its sizes"
    overflows = opened.overflows - before
    if overflows:
        detail += f"; with {overflows} the reference overflows, so nothing is compared"
    return Evidence(check=f"correct on {name}, varied", passed=True, detail=detail)


def _check_case(
    candidate: CandidateProcess, opened: OpenProblem, index: int, values: Sequence[int] = ()
) -> tuple[bool | None, str]:
    """Return whether the kernel is right on a case, and why; None if it declined cleanly."""
    with opened.draw(index, 1, writable_inputs=True, values=values) as batch:
        candidate.resume()
        candidate.prepare(batch.layout, batch.memories, batch.read)
        limit_s = opened.cases[index].limit_s(1)
        _, _, (code,) = candidate.go(batch.memories, 1, limit_s=limit_s)
        candidate.deliver(0)
        check = opened.check(batch, 0, code)
    return verdict_of_call(code, check)


def verdict_of_call(code: int, check: dict[str, Any]) -> tuple[bool | None, str]:
    """The meaning of one call's code and of what was found in memory after it."""
    if check["changed_input"] is not None:
        return False, f"input {check['changed_input']} was changed"
    if code > 0:
        if check["written"]:
            return False, f"it declined (code {code}) but wrote to its outputs"
        return None, f"declined (code {code}): torch would compute it"
    if code < 0:
        return False, f"it returned {code}: an entry returns 0, or a positive code to decline"
    return bool(check["passed"]), str(check["detail"])
