"""One verdict on one kernel: gate, compile, correctness, paired timing; everything fails closed."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import time
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn, cast

from ratchet.errors import CompilerMissing, RatchetError
from ratchet.judge import device_clock, kernel_timing
from ratchet.judge.accelerator import Accelerator, may_use_gpu
from ratchet.judge.building import Ahead, Library
from ratchet.judge.candidate_languages import LANGUAGES, WITH_TORCH
from ratchet.judge.candidate_process import (
    CandidateProcess,
    Clock,
    Decided,
    NotTimed,
    ReferenceFault,
    ReferenceProcess,
)
from ratchet.judge.code_places import CodePlaces
from ratchet.judge.device_work import census_on_device
from ratchet.judge.group_sequential import time_until_answered
from ratchet.judge.interpreted import REASON, interpreted, small_cases, without_blame
from ratchet.judge.isolation import arm_environment, bubblewrap, isolation_name
from ratchet.judge.kernel_checks import OpenProblem, check_cases
from ratchet.judge.kernel_timing import CaseTiming, see_order, time_alone, watch_case
from ratchet.judge.launches import Launches
from ratchet.judge.library_ops import judge_census, read_census
from ratchet.judge.model_answer import runnable
from ratchet.judge.own_work import places_of, watch_for
from ratchet.judge.revision import revision
from ratchet.judge.shared_compilations import SharedCompilations
from ratchet.judge.speed import conclude, without_gain
from ratchet.judge.timed_arms import CANDIDATE, REFERENCE, TWIN
from ratchet.judge.verdict import Evidence, Speedup, Status, TimedSample, Verdict
from ratchet.judge.zygote import CandidateZygote
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.problem import Problem
from ratchet.measure.estimate import summarise

LOG = logging.getLogger(__name__)
PROFILED = ("triton", "hip")
FIND_TIMEOUT_S = 120.0
"""The first use of a GPU loads its libraries."""
MARGIN_BYTES = 4 << 30
"""Address space beyond the tensors: the interpreter, threads' stacks, OpenMP."""


class KernelJudge:
    """Judges kernels one after another, keeping its trusted processes between them.

    These are the reference worker, and the zygote from which candidates in Python are forked.
    Candidates' processes are never reused. `threads` are the cores both sides may use; by default
    all that this process may. The worker dies with the thread that made it.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._reference: ReferenceProcess | None = None
        self._ahead = Ahead()
        self._compilations = SharedCompilations()
        self._zygote: CandidateZygote | None = None

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
        """End the reference worker and the zygote, and what was compiled ahead."""
        self._ahead.close()
        self._compilations.close()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def judge(
        self,
        kernel: Kernel,
        problem: Problem,
        *,
        time_limit_s: float = 60.0,
        spent_s: float = 0.0,
        seed: int | None = None,
        against_compile: bool = False,
        then: Kernel | None = None,
        device: str | Accelerator = "auto",
    ) -> Verdict:
        """The verdict on `kernel` for `problem`, within about `time_limit_s` seconds.

        The limit decides how much is measured: a kernel that was right when it ran out is
        `correct`, and not timed. Each step has a limit of its own, of work. `spent_s` seconds are
        gone: reading the problem's file counts. `seed` is for tests: without one the values are
        drawn from the system's entropy. Raises only CompilerMissing and KernelError for a problem
        whose module cannot be found. With `against_compile`,
        torch.compile of the reference is timed in the same rounds. `then` is the kernel that will
        be judged next: its compiler may work beside this kernel's, and stands still while anything
        is timed. `device` is `cpu`, `cuda` or `cuda:N` (ROCm too); `auto` takes a GPU for a kernel
        in Triton, where there is one.
        """
        secret = secrets.randbits(48) if seed is None else seed
        clock = Clock(deadline=time.monotonic() + time_limit_s - spent_s, limit_s=time_limit_s)
        trial = _Trial(kernel, problem, self.threads, clock, secret)
        trial.against_compile = against_compile
        trial.ahead, trial.then = self._ahead, then
        trial.shared = self._compilations
        try:
            trial.use(self._accelerator(kernel, device))
            trial.zygote = self._zygote_for(kernel, trial.accelerator)
            trial.run(self._worker())
        except Decided as decided:
            trial.status, trial.reason = decided.status, decided.reason
            trial.not_timed = decided.why if isinstance(decided, NotTimed) else ""
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

    def _accelerator(self, kernel: Kernel, asked: str | Accelerator) -> Accelerator | None:
        """The GPU to judge on, or None for the machine's cores. Decided where it cannot be used."""
        if isinstance(asked, Accelerator):
            return asked
        if kernel.language not in LANGUAGES:
            return None  # the trial says so
        if asked not in ("auto", "cpu") and kernel.language not in WITH_TORCH:
            raise Decided(
                "refused",
                f"a kernel in {kernel.language} does not run on {asked}: use --device cpu",
            )
        if not may_use_gpu(kernel, asked):
            return None
        found = self._worker().ask(timeout_s=FIND_TIMEOUT_S, do="find gpu", name=asked)
        if "missing" in found and asked == "auto":
            return None
        if "described" not in found:
            why = found.get("refused") or found.get("missing")
            raise Decided("unmeasured", f"nothing can be measured on {asked}: {why}")
        return Accelerator.of(found)

    def _zygote_for(
        self, kernel: Kernel, accelerator: Accelerator | None
    ) -> CandidateZygote | None:
        """Where a candidate's processes are forked from; None where each starts anew."""
        if kernel.language not in WITH_TORCH or accelerator is not None or bubblewrap() is None:
            return None
        if self._zygote is not None and self._zygote.has_ended and self._zygote.able:
            self._zygote.close()
            self._zygote = None
        if self._zygote is None:
            self._zygote = CandidateZygote(threads=self.threads)
        return self._zygote

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
        self.not_timed = ""
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
        self.accelerator: Accelerator | None = None
        self.shared = SharedCompilations()
        self.zygote: CandidateZygote | None = None
        self.evidence += [Evidence(check="sizes", passed=True, detail=one) for one in problem.notes]

    @property
    def _has_tiers(self) -> bool:
        return self.problem.model is None and bool(self.problem.tiers)

    def use(self, accelerator: Accelerator | None) -> None:
        """Judge on a GPU, or, without one, on the machine's cores."""
        self.accelerator = accelerator
        if accelerator is not None:
            self.isolation = isolation_name(accelerator)
            self._runnable = runnable(self.kernel, self.problem, accelerator.torch_name)

    def run(self, reference: ReferenceProcess) -> None:
        """Go through every stage; a clear answer leaves as Decided."""
        if self.problem.fault:
            raise Decided("refused", f"the problem cannot be judged: {self.problem.fault}")
        if self.kernel.language not in LANGUAGES:
            raise Decided(
                "unmeasured",
                f"{self.kernel.language.upper()} kernels are only inspected so far: "
                "ratchet inspect PROBLEM KERNEL",
            )
        if self.kernel.language == "triton" and self.accelerator is None:
            self._interpret(reference)
        with contextlib.ExitStack() as stack:
            library = stack.enter_context(self._library())
            opened = self._open(reference)
            stack.callback(opened.rivals.close)
            launches = stack.enter_context(self._launches(opened))
            candidate = launches.load(library.fetch())
            if launches.built is not None:
                detail = "once, by its first process; those after it have a copy"
                self.evidence.append(Evidence(check="extensions", passed=True, detail=detail))
            # No look from outside tells whose kernel runs on a GPU: there the census decides alone.
            looked_at = replace(self.problem, task="any") if self.accelerator else self.problem
            places = stack.enter_context(places_of(looked_at, self.kernel, library.fetch()))
            self._check(candidate, opened, places)
            if self.accelerator is not None:
                census_on_device(self.kernel, candidate, opened, self.evidence)
            if self.against_compile and opened.timed:
                opened.compile_rival(self.evidence)
            timings = self._time(launches, opened, places)
            if not opened.timed:
                self._watch_untimed(candidate, opened, places)
            by_dispatch = self.kernel.language == "torch" and self.accelerator is None
            concluded = conclude(timings, opened, self.evidence, by_dispatch=by_dispatch)
            if concluded[0] == "proven" and self.kernel.language == "cpp":
                unseen = self._see_order(launches, opened, timings)
                concluded = without_gain(concluded[2], unseen) if unseen else concluded
        if self.accelerator is not None:
            self._check_device(timings, opened, won=concluded[0] == "proven")
        self.status, self.reason, self.speedup = concluded

    def _interpret(self, reference: ReferenceProcess) -> NoReturn:
        """Every case in Triton's interpreter; nothing is timed where there is no GPU."""
        self.problem = small_cases(self.problem)
        self._runnable = runnable(interpreted(self.kernel), self.problem)
        opened = self._open(reference)
        with (
            without_blame(),
            places_of(self.problem, self.kernel, None) as places,
            self._launches(opened) as launches,
        ):
            candidate = launches.load(None)
            self._check(candidate, opened, places)
            self._watch_untimed(candidate, opened, places)
        raise Decided("correct", REASON)

    def _open(self, reference: ReferenceProcess) -> OpenProblem:
        """Hand the problem to the reference worker, which judges it first."""
        try:
            reply = reference.ask(
                timeout_s=self.clock.reference_s,
                do="open",
                problem=self.problem.as_json(),
                threads=self.threads,
                seed=layout_seed(self.secret),
                device=self.accelerator.as_json() if self.accelerator else None,
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
        cases = reply["cases"]
        return OpenProblem.of(
            self.problem, reference, cases, self.secret, self.clock, self.accelerator
        )

    def _check_device(self, timings: list[CaseTiming], opened: OpenProblem, *, won: bool) -> None:
        """Decided where a GPU's own clock, or the reference alone, tell another story.

        Whether the reference was slowed down only matters where the kernel would have won. Its
        processes are gone by now.
        """
        self.evidence.append(opened.flushes())
        doubts = []
        for timing in timings:
            found, doubt = opened.device_clock.compare(
                timing.case, timing.name, trusted=(REFERENCE, TWIN), candidate=CANDIDATE
            )
            self.evidence.append(found)
            doubts.append(doubt)
        if won and not any(doubts):
            for timing in timings:
                found, doubt = device_clock.undisturbed(
                    timing.name,
                    alone=time_alone(timing.case, opened),
                    beside_s=summarise(timing.samples, REFERENCE).median_s,
                    candidate_s=summarise(timing.samples, CANDIDATE).median_s,
                )
                self.evidence.append(found)
                doubts.append(doubt)
        if any(doubts):
            raise Decided("unmeasured", f"right, but {next(filter(None, doubts))}")

    def _library(self) -> Library:
        """Compile in a sandbox of its own, beside what the caller does meanwhile."""
        return self.ahead.take(self.kernel, self.then, threads=self.threads, clock=self.clock)

    def _launches(self, opened: OpenProblem) -> Launches:
        """The candidate's processes: one to be checked, and those of a look at a timed case."""
        is_timed = any(case.timed for case in self.problem.cases)
        timed_here = is_timed and not (self.kernel.language == "triton" and not self.accelerator)
        return Launches(
            self._runnable,
            timed=kernel_timing.LAUNCHES if timed_here else 0,
            threads=self.threads,
            memory_bytes=opened.memory_bytes(self._runnable) + MARGIN_BYTES,
            clock=self.clock,
            accelerator=self.accelerator,
            compilations=self.shared.of(self.kernel, opened, self.evidence),
            zygote=self.zygote,
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
        """Time every timed case, in processes that are as new as the reference's.

        The one that was checked has a heap of all cases: it was up to a tenth faster, or slower.
        """
        timings = []
        self.ahead.pause()
        for index in opened.timed:
            watch = watch_for(places, self.problem, self.kernel)
            try:
                timing = time_until_answered(
                    index, opened, launches.launch_new, self.evidence, watch
                )
            except NotTimed:
                if watch is not None:  # whose work it is was not seen beside the clock
                    with launches.launch(0) as process:
                        watch_case(index, opened, process, watch)
                    watch.conclude(self.evidence)
                raise
            timings.append(timing)
            self.samples += timing.as_json()
        launches.rest()
        return timings

    def _see_order(self, launches: Launches, opened: OpenProblem, timings: list[CaseTiming]) -> str:
        """Why it is not known that no calls were computed together; Decided where some were."""
        for timing in timings:
            with launches.launch(0) as process:
                seen = see_order(timing, opened, process)
            if not seen:
                return (
                    f"it runs too shortly on {timing.name} to see whether its calls come one after "
                    "another; give the problem a larger case"
                )
        return ""

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

    def verdict(self) -> Verdict:
        """The verdict as it now stands."""
        return Verdict(
            status=self.status,
            reason=self.reason,
            not_timed=self.not_timed,
            evidence=self.evidence,
            speedup=self.speedup,
            static=self.static,
            isolation=self.isolation,
            kernel_hash=self.kernel.hash,
            problem_hash=self._problem_hash,
            samples=self.samples,
            environment={
                "judge": revision(),
                "threads": self.threads,
                "language": self.kernel.language,
                **({"device": self.accelerator.name} if self.accelerator else {}),
                **({"tier": ", ".join(self.problem.tiers)} if self._has_tiers else {}),
                **arm_environment(self.threads),
            },
        )


def layout_seed(secret: int) -> int:
    """The seed of where tensors lie, which a candidate sees, from that of their values.

    One generator for both would let the places give the values away.
    """
    digest = hashlib.sha256(b"layout %d" % secret).digest()
    return int.from_bytes(digest[:6], "big")
