"""One verdict on one kernel: gate, compile, correctness, paired timing; everything fails closed."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from types import TracebackType
from typing import Any, NoReturn, cast

from ratchet.errors import CompilerMissing, RatchetError
from ratchet.judge import kernel_timing
from ratchet.judge.building import Ahead, Library
from ratchet.judge.candidate_process import (
    CandidateProcess,
    Clock,
    Decided,
    ReferenceFault,
    ReferenceProcess,
)
from ratchet.judge.code_places import CodePlaces
from ratchet.judge.group_sequential import time_until_answered
from ratchet.judge.interpreted import REASON, interpreted, small_cases, without_blame
from ratchet.judge.isolation import arm_environment, isolation_name
from ratchet.judge.kernel_checks import OpenProblem, check_cases
from ratchet.judge.kernel_timing import CaseTiming, watch_case
from ratchet.judge.launches import Launches
from ratchet.judge.library_ops import judge_census, read_census
from ratchet.judge.model_answer import runnable
from ratchet.judge.own_work import places_of, watch_for
from ratchet.judge.speed import conclude
from ratchet.judge.verdict import Evidence, Speedup, Status, TimedSample, Verdict
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.problem import Problem

LOG = logging.getLogger(__name__)
LANGUAGES = ("cpp", "torch", "triton")
PROFILED = ("triton", "hip")
MARGIN_BYTES = 4 << 30
"""Address space beyond the tensors: the interpreter, threads' stacks, OpenMP."""


class KernelJudge:
    """Judges kernels one after another, keeping the reference worker (trusted code) between them.

    Candidates' processes are never reused. `threads` are the cores both sides may use; by default
    all that this process may. The worker dies with the thread that made it.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._reference: ReferenceProcess | None = None
        self._ahead = Ahead()

    def __enter__(self) -> KernelJudge:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the reference worker, and what was compiled ahead."""
        self._ahead.close()
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def judge(
        self,
        kernel: Kernel,
        problem: Problem,
        *,
        time_limit_s: float = 60.0,
        seed: int | None = None,
        against_compile: bool = False,
        then: Kernel | None = None,
    ) -> Verdict:
        """The verdict on `kernel` for `problem`, within about `time_limit_s` seconds.

        `seed` is for tests: without one the values are drawn from the system's entropy. Raises
        only CompilerMissing and KernelError for a problem whose module cannot be found. With
        `against_compile`, torch.compile of the reference is timed in the same rounds. `then` is
        the kernel that will be judged next: its compiler may work beside this kernel's, and
        stands still while anything is timed.
        """
        secret = secrets.randbits(48) if seed is None else seed
        trial = _Trial(kernel, problem, self.threads, Clock.of(time_limit_s), secret)
        trial.against_compile = against_compile
        trial.ahead, trial.then = self._ahead, then
        try:
            trial.run(self._worker())
        except Decided as decided:
            trial.status, trial.reason = decided.status, decided.reason
        except CompilerMissing:
            raise
        except (RatchetError, OSError) as error:
            trial.unmeasured(error)
            self.close()
        except BaseException:  # also Ctrl-C: the reference worker's state is not known any more
            self.close()
            raise
        self._ahead.resume()
        trial.profile()
        return trial.verdict()

    @property
    def reference_pid(self) -> int | None:
        """The process id of the reference worker, while there is one."""
        return None if self._reference is None else self._reference.pid

    def _worker(self) -> ReferenceProcess:
        if self._reference is None or not self._reference.alive:
            self._reference = ReferenceProcess(threads=self.threads)
        return self._reference


def judge_kernel(
    kernel: Kernel,
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    threads: int | None = None,
    seed: int | None = None,
) -> Verdict:
    """One verdict, with a reference worker of its own; see KernelJudge.judge."""
    with KernelJudge(threads=threads) as judge:
        return judge.judge(kernel, problem, time_limit_s=time_limit_s, seed=seed)


class _Trial:
    """What is known so far about one kernel on one problem."""

    def __init__(
        self, kernel: Kernel, problem: Problem, threads: int, clock: Clock, secret: int
    ) -> None:
        self.kernel = kernel
        self.problem = problem
        self.threads = threads
        self.clock = clock
        self.secret = secret
        self.status: Status = "unmeasured"
        self.reason = "the trial did not come to an end"
        self.evidence: list[Evidence] = []
        self.speedup = Speedup()
        self.samples: list[TimedSample] = []
        self.isolation = isolation_name()
        self._problem_hash = problem.hash
        self._runnable = runnable(kernel, problem)
        self._given = problem
        self.static: dict[str, Any] | None = None
        self.against_compile = False
        self.ahead, self.then = Ahead(), cast("Kernel | None", None)
        self.evidence += [Evidence(check="sizes", passed=True, detail=one) for one in problem.notes]

    def run(self, reference: ReferenceProcess) -> None:
        """Go through every stage; a clear answer leaves as Decided."""
        if self.problem.fault:
            raise Decided("refused", f"the problem cannot be judged: {self.problem.fault}")
        if self.kernel.language not in LANGUAGES:
            raise Decided(
                "unmeasured",
                f"kernels in {self.kernel.language} need a GPU, and none is judged yet",
            )
        if self.kernel.language == "triton":
            self._interpret(reference)
        with contextlib.ExitStack() as stack:
            library = stack.enter_context(self._library())
            opened = self._open(reference)
            launches = stack.enter_context(
                self._launches(opened, kernel_timing.LAUNCHES if opened.timed else 1)
            )
            candidate = launches.load(library.fetch())
            places = stack.enter_context(places_of(self.problem, self.kernel, library.fetch()))
            self._check(candidate, opened, places)
            if self.against_compile and opened.timed:
                opened.compile_rival(self.evidence)
            timings = self._time(launches, opened, places)
            if not opened.timed:
                self._watch_untimed(candidate, opened, places)
        self.status, self.reason, self.speedup = conclude(timings, opened, self.evidence)

    def _interpret(self, reference: ReferenceProcess) -> NoReturn:
        """Every case in Triton's interpreter; nothing is timed where there is no GPU."""
        self.problem = small_cases(self.problem)
        self._runnable = runnable(interpreted(self.kernel), self.problem)
        opened = self._open(reference)
        with (
            without_blame(),
            places_of(self.problem, self.kernel, None) as places,
            self._launches(opened, 1) as launches,
        ):
            candidate = launches.load(None)
            self._check(candidate, opened, places)
            self._watch_untimed(candidate, opened, places)
        raise Decided("correct", REASON)

    def _open(self, reference: ReferenceProcess) -> OpenProblem:
        """Hand the problem to the reference worker, which judges it first."""
        try:
            reply = reference.ask(
                timeout_s=self.clock.left_s,
                do="open",
                problem=self.problem.as_json(),
                threads=self.threads,
                seed=layout_seed(self.secret),
            )
        except ReferenceFault as error:
            raise Decided("refused", f"the problem cannot be judged: {error}") from error
        trivial = reply["gate"]
        self.evidence.append(
            Evidence(
                check="problem gate",
                passed=not trivial,
                detail=f"passes though trivial: {', '.join(trivial)}" if trivial else "",
            )
        )
        if trivial:
            raise Decided("refused", f"the problem accepts {', '.join(trivial)}: tighten it")
        return OpenProblem.of(self.problem, reference, reply["cases"], self.secret, self.clock)

    def _library(self) -> Library:
        """Compile in a sandbox of its own, beside what the caller does meanwhile."""
        return self.ahead.take(self.kernel, self.then, threads=self.threads, clock=self.clock)

    def _launches(self, opened: OpenProblem, count: int) -> Launches:
        return Launches(
            self._runnable,
            count=count,
            threads=self.threads,
            memory_bytes=opened.memory_bytes(self._runnable) + MARGIN_BYTES,
            clock=self.clock,
        )

    def _check(
        self, candidate: CandidateProcess, opened: OpenProblem, places: CodePlaces | None
    ) -> None:
        """Every case; a Python kernel that must do the work itself also tells what it called."""
        if places is None or self.kernel.language == "cpp":
            check_cases(candidate, opened, self.evidence)
            return
        candidate.censuses = []
        check_cases(candidate, opened, self.evidence)
        told = [read_census(layout, census) for layout, census in candidate.censuses]
        candidate.censuses = None
        judge_census(self.problem, self.kernel, told, self.evidence)

    def _watch_untimed(
        self, candidate: CandidateProcess, opened: OpenProblem, places: CodePlaces | None
    ) -> None:
        """Whose code works on the first case, where none is timed."""
        watch = watch_for(places, self.problem, self.kernel)
        if watch is not None:
            watch_case(0, opened, candidate, watch)
            watch.conclude(self.evidence)

    def _time(
        self, launches: Launches, opened: OpenProblem, places: CodePlaces | None
    ) -> list[CaseTiming]:
        """Time every timed case: the first launch is the process that gave the right answers."""
        timings = []
        self.ahead.pause()
        for index in opened.timed:
            watch = watch_for(places, self.problem, self.kernel)
            timing = time_until_answered(index, opened, launches.launch, self.evidence, watch)
            timings.append(timing)
            self.samples += timing.as_json()
        launches.rest()
        return timings

    def profile(self) -> None:
        """What the kernel compiles to for AMD targets, where it is a GPU's: for any status."""
        if self.kernel.language in PROFILED and self.problem.cases:
            from ratchet.judge.static_profile.inspection import profile_in_verdict

            self.static = profile_in_verdict(self.kernel, self._given, self.clock)

    def unmeasured(self, error: Exception) -> None:
        """A fault of the judge: never a win, and it says what happened."""
        LOG.warning("the judge could not finish: %s", error)
        self.status = "unmeasured"
        self.reason = f"the judge could not do its work: {error}"
        if self.clock.over:
            self.reason = f"the time limit of {self.clock.limit_s:.3g} s was too short: raise it"

    def verdict(self) -> Verdict:
        """The verdict as it now stands."""
        return Verdict(
            status=self.status,
            reason=self.reason,
            evidence=self.evidence,
            speedup=self.speedup,
            static=self.static,
            isolation=self.isolation,
            kernel_hash=self.kernel.hash,
            problem_hash=self._problem_hash,
            samples=self.samples,
            environment={
                "threads": self.threads,
                "language": self.kernel.language,
                **arm_environment(self.threads),
            },
        )


def layout_seed(secret: int) -> int:
    """The seed of where tensors lie, which a candidate sees, from that of their values.

    One generator for both would let the places give the values away.
    """
    digest = hashlib.sha256(b"layout %d" % secret).digest()
    return int.from_bytes(digest[:6], "big")
