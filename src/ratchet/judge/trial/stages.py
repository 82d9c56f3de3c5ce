"""The trial of one kernel, as stages: open, check, time, conclude.

Each stage returns what the next one needs, or raises CandidateFault with the answer. It adds what
it finds to the trial's evidence, all of which the verdict keeps.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ratchet.base.errors import OutOfTime
from ratchet.base.process import Clock
from ratchet.judge.integrity.census import facts, judge_census, judge_own, read_census
from ratchet.judge.integrity.own_work import CodePlaces, places_of, watch_for
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.kernels.kernel_file import is_extension
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.revision import revision
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.isolation import arm_environment, isolation_name
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.targets import References, small_cases, targets
from ratchet.judge.terms import LANGUAGES, PROFILED
from ratchet.judge.trial import plan
from ratchet.judge.trial.candidate import Build, CandidateProcess
from ratchet.judge.trial.compiling import Library, NextLibrary
from ratchet.judge.trial.decide import conclude, with_less_gain, without_gain
from ratchet.judge.trial.kernel_checks import check_cases
from ratchet.judge.trial.launches import Launches, SharedCompilations
from ratchet.judge.trial.looks import check_clocks, count_on_device, see_alone, time_until_answered
from ratchet.judge.trial.many_calls import check_together, check_wear, told_of_wear, why_no_gain
from ratchet.judge.trial.open_problem import OpenProblem, described_cases
from ratchet.judge.trial.reference import ReferenceProcess
from ratchet.judge.trial.sample import CaseTiming, compare_more, see_order, watch_case
from ratchet.judge.trial.sources import followed, runnable
from ratchet.judge.verdict import (
    CandidateFault,
    Decided,
    EmulatedCase,
    Evidence,
    TimedSample,
    Verdict,
    fault,
)

LEFT_TO_EXPLAIN_S = 5.0
"""Time that is left, at least, to find out why a model is wrong."""
KEPT_OLD_WEIGHTS = (
    "weights change between calls; this kernel kept old ones (--frozen-weights judges it with "
    "those of its constructor)"
)
FEWEST_CALLS = 2
"""Calls of a batch if the kernel returns its outputs: kept together, they cannot be one buffer."""


LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class KernelTrial:
    """The trial of one kernel on one problem, and its evidence so far."""

    kernel: Kernel
    problem: Problem
    threads: int
    clock: Clock
    secret: int
    against_compile: bool
    ahead: NextLibrary
    then: Kernel | None
    """The kernel that is judged next."""
    shared: SharedCompilations
    among: int
    """Verdicts that together are falsely `proven` no more often than one alone."""
    profiled: Sequence[str]
    target: str | None
    """A GPU whose machine code is emulated."""
    references: References | None
    """The bounds that an emulated kernel's are compared with."""
    evidence: list[Evidence] = field(default_factory=list)
    samples: list[TimedSample] = field(default_factory=list)
    emulated: list[EmulatedCase] = field(default_factory=list)
    build: Build | None = None
    """Compiles the extensions that an emulated kernel orders."""
    accelerator: Accelerator | None = None
    zygote: CandidateZygote | None = None

    def __post_init__(self) -> None:
        self.isolation = isolation_name()
        self._runnable = runnable(self.kernel, self.problem)
        self._given = self.problem
        self._is_native = False
        """True if it runs as it is, neither interpreted nor emulated."""
        self._launched: Launches | None = None
        self._unplaced: list[str] = []
        self._is_right = False
        """True once every output was checked."""
        notes = self.problem.notes
        self.evidence += [Evidence(check="sizes", passed=True, detail=one) for one in notes]

    @property
    def _has_tiers(self) -> bool:
        return self.problem.model is None and bool(self.problem.tiers)

    @property
    def _is_frozen(self) -> bool:
        return self.problem.model is not None and self.problem.model.frozen

    @property
    def _whose(self) -> Kernel:
        """The kernel as its own work is judged: emulated Python launches kernels."""
        if self.target is not None and self.kernel.language == "torch":
            return replace(self.kernel, language="hip")
        return self.kernel

    def use(self, accelerator: Accelerator | None, zygote: CandidateZygote | None) -> None:
        """Judge on this GPU, or on the machine's cores without one; fork from the zygote."""
        self.accelerator, self.zygote = accelerator, zygote
        if accelerator is not None:
            self.isolation = isolation_name(accelerator)
            said = accelerator.warnings
            self.evidence += [Evidence(check="the GPU", passed=None, detail=one) for one in said]
            self._runnable = runnable(self.kernel, self.problem, accelerator.torch_name)

    def run(self, reference: ReferenceProcess) -> Decided:
        """Run the stages; return the answer of the last, or raise that of an earlier one."""
        if self.problem.fault:
            raise fault("refused", f"the problem cannot be judged: {self.problem.fault}")
        if self.kernel.language not in LANGUAGES and self.target is None:
            raise fault(
                "unmeasured",
                f"{self.kernel.language.upper()} kernels are emulated, or inspected: "
                "give --target gfx942, or use ratchet inspect PROBLEM KERNEL",
            )
        if self.target is not None:
            return self._emulate(reference, self.target)
        if self.kernel.language == "triton" and self.accelerator is None:
            return self._interpret(reference)
        with self._library() as library:
            opened = self._open(reference)
            LOG.debug("the problem is open")
            try:
                with contextlib.closing(opened.rivals):
                    return self._decide(opened, library)
            except CandidateFault as error:
                found = error
        raise self._explained(found, reference)

    def _explained(
        self,
        found: CandidateFault,
        reference: ReferenceProcess,
        elsewhere: Kernel | None = None,
        library: int | None = None,
    ) -> CandidateFault:
        """Return the answer on a wrong model with what its state explains.

        `elsewhere` is the kernel as it is interpreted or emulated, and `library` what runs it.
        """
        if found.decided.status != "wrong":
            return found
        words = []
        with contextlib.suppress(OutOfTime):  # the answer stands without a reason
            if self._is_right_if_frozen(reference, elsewhere, library):
                words.append(KEPT_OLD_WEIGHTS)
        if self._unplaced:
            words.append(f"its model has no {', '.join(self._unplaced)} of the problem's shape")
        return fault("wrong", "; ".join([*words, found.decided.reason]))

    def _decide(self, opened: OpenProblem, library: Library) -> Decided:
        """Return the answer by the judge's clock, which a GPU's must agree with."""
        concluded, timings = self._judge(opened, library)
        if self.accelerator is not None:
            check_clocks(timings, opened, won=concluded.status == "proven")
        return concluded

    def _is_right_if_frozen(
        self, reference: ReferenceProcess, elsewhere: Kernel | None, library: int | None
    ) -> bool:
        """Return whether a wrong model is right on all of its cases once its weights are frozen.

        A failure of this further trial says nothing. It opens another problem, and comes last.
        """
        form = self.problem.model
        if (
            form is None
            or form.frozen
            or not form.state
            or self.kernel.language not in WITH_TORCH
            or self.clock.left_s < LEFT_TO_EXPLAIN_S
        ):
            return False
        frozen = replace(form, frozen=True)
        problem = replace(self.problem, model=frozen)
        trial = replace(self, problem=problem, evidence=[], samples=[], emulated=[])
        trial.use(self.accelerator, self.zygote)
        trial._is_native = elsewhere is None
        if elsewhere is not None:
            trial._runnable = runnable(elsewhere, problem)
        try:
            opened = trial._open(reference)
            with trial._launches(opened) as launches:
                trial._check(launches.load(library), opened, None)
        except CandidateFault:
            return False
        return True

    def _judge(self, opened: OpenProblem, library: Library) -> tuple[Decided, list[CaseTiming]]:
        """Return the answer by the judge's clock and its samples.

        The kernel's processes have ended by then.
        """
        self._is_native = True
        opened.least_calls = FEWEST_CALLS if self.kernel.language in WITH_TORCH else 1
        with contextlib.ExitStack() as stack:
            launches = stack.enter_context(self._launches(opened))
            candidate = launches.load(library.fetch())
            LOG.debug("the kernel is loaded")
            self._unplaced = candidate.unplaced
            if launches.built is not None:
                detail = "once, by its first process; those after it have a copy"
                self.evidence.append(Evidence(check="extensions", passed=True, detail=detail))
            # Thread samples cannot show whose kernel runs on a GPU: there the census decides alone.
            looked_at = replace(self.problem, task="any") if self.accelerator else self.problem
            places = stack.enter_context(places_of(looked_at, self.kernel, library.fetch()))
            self._check(candidate, opened, places)
            LOG.debug("its outputs are right")
            if self.accelerator is not None:
                self._count(candidate, launches, opened)
            self._is_right = True
            if self.against_compile and opened.timed:
                self.evidence.append(opened.compile_rival())
            LOG.debug("its work is counted")
            timings = self._time(launches, opened, places)
            LOG.debug("it is timed")
            if not opened.timed:
                self._watch_untimed(candidate, opened, places)
            return self._conclude(timings, launches, opened), timings

    def out_of_time(self, error: OutOfTime) -> Decided:
        """Return the answer if the time limit ended a step: what is known by then."""
        why = f"the time limit of {self.clock.limit_s:.3g} s is over ({error}); raise it"
        if self._is_right:
            return Decided.untimed(why)
        return Decided("unmeasured", f"not every output could be checked: {why}")

    def _interpret(self, reference: ReferenceProcess) -> Decided:
        """Check every case in Triton's interpreter."""
        elsewhere = targets()
        with elsewhere.runs(elsewhere.INTERPRETER):
            kernel = elsewhere.interpreted(followed(self.kernel, self.problem))
            self._check_small(reference, kernel, None)
        return Decided("correct", elsewhere.RIGHT)

    def _emulate(self, reference: ReferenceProcess, target: str) -> Decided:
        """Check every case as the machine code of a GPU that is not here."""
        elsewhere = targets()
        self.build = elsewhere.builder_for(self.kernel, target, self.clock)
        with elsewhere.runs(f"emulated {target}"), elsewhere.sealed_machine(target) as machine:
            sized = followed(self.kernel, self.problem)
            self._check_small(reference, elsewhere.emulated(sized, target, self.clock), machine)
        right = elsewhere.right_on(target, self.emulated, self.kernel.source, self.evidence)
        if self.references is not None and self.emulated:
            self.emulated = self.references.compared(self.emulated, self.problem, self.clock)
            self.evidence += targets().said(self.emulated)
        return right

    def _check_small(
        self, reference: ReferenceProcess, kernel: Kernel, library: int | None
    ) -> None:
        """Check a kernel on the small cases; `library` may hold what runs it."""
        self.problem = small_cases(self.problem)
        self._runnable = kernel if self.kernel.language == "hip" else runnable(kernel, self.problem)
        opened = self._open(reference)
        try:
            self._answer_untimed(opened, library)
        except CandidateFault as error:
            raise self._explained(error, reference, kernel, library) from error

    def _answer_untimed(self, opened: OpenProblem, library: int | None) -> None:
        with (
            places_of(self.problem, self._whose, library) as places,
            self._launches(opened) as launches,
        ):
            candidate = launches.load(library)
            self._unplaced = candidate.unplaced
            for stage in (self._check, self._watch_untimed):
                try:
                    stage(candidate, opened, places)
                except CandidateFault as error:
                    why = error.decided
                    if self.target is None or why.status != "unmeasured":
                        raise
                    # Emulated work is too short for thread samples: the census decides alone.
                    unseen = Evidence(check="own work, looks", passed=None, detail=why.reason)
                    self.evidence.append(unseen)

    def _open(self, reference: ReferenceProcess) -> OpenProblem:
        """Hand the problem to the reference worker, which judges it first."""
        cases = described_cases(
            self.problem,
            reference,
            threads=self.threads,
            seed=layout_seed(self.secret),
            limit_s=self.clock.reference_limit_s,
            accelerator=self.accelerator,
            is_timed=self.target is None,
            evidence=self.evidence,
        )
        rng = random.Random(self.secret)
        opened = OpenProblem(
            self.problem, reference, cases, rng, self.clock, self.accelerator, self.evidence
        )
        opened.among = self.among
        opened.is_emulated = self.target is not None
        return opened

    def _library(self) -> Library:
        """Start compiling, in a sandbox of its own, while the caller goes on."""
        return self.ahead.take(self.kernel, self.then, threads=self.threads, clock=self.clock)

    def _launches(self, opened: OpenProblem) -> Launches:
        """Start the candidate's processes: one to be checked, and those to be timed."""
        is_timed = any(case.timed for case in self.problem.cases)
        timed_here = is_timed and self._is_native
        start = partial(
            CandidateProcess,
            threads=self.threads,
            memory_bytes=opened.memory_bytes(self._runnable),
            clock=self.clock,
            accelerator=self.accelerator,
            zygote=self.zygote,
            build=self.build,
        )
        self._launched = Launches(
            self._runnable,
            start,
            timed=plan.LAUNCHES if timed_here else 0,
            forks=self.zygote is not None and self.zygote.able,
            accelerator=self.accelerator,
            compilations=self.shared.of(self.kernel, opened),
        )
        return self._launched

    def _check(
        self, candidate: CandidateProcess, opened: OpenProblem, places: CodePlaces | None
    ) -> None:
        """Check every case; count what a Python kernel calls if it must do the work itself."""
        is_own = places is not None and self.kernel.language != "cpp"
        counted = is_own or self.target is not None
        candidate.censuses = [] if counted else None
        check_cases(candidate, opened, self._with_sizes_of)
        check_together(candidate, opened)
        if self._is_native:
            check_wear(candidate, opened)
        if candidate.censuses is not None:
            told = [read_census(layout, census) for layout, census in candidate.censuses]
            candidate.censuses = None
            if is_own:
                judge_census(self.problem, self._whose, told, self.evidence)
            if self.target is not None:
                self.emulated = targets().estimates(self.problem, self.target, told)

    def _with_sizes_of(
        self, case: Case
    ) -> contextlib.AbstractContextManager[CandidateProcess] | None:
        """Return what starts a kernel whose own constants follow a case's sizes, if it has any."""
        if not self._is_native or self._launched is None:
            return None
        device = None if self.accelerator is None else self.accelerator.torch_name
        other = runnable(self.kernel, self.problem, device, case)
        return None if other == self._runnable else self._launched.other(other)

    def _count(self, checked: CandidateProcess, launches: Launches, opened: OpenProblem) -> None:
        """Count what a batch does on a GPU, while the process that was checked is stopped."""
        launches.share_compiled(checked)
        checked.pause()
        with launches.counting() as process:
            found = count_on_device(process, opened)
        self.evidence += facts(found)
        if opened.problem.task == "own":
            judge_own(found, opened.problem, self.kernel, self.evidence)

    def _watch_untimed(
        self, candidate: CandidateProcess, opened: OpenProblem, places: CodePlaces | None
    ) -> None:
        """See whose code works on the first case, if no case is timed."""
        watch = watch_for(places, self.problem, self._whose)
        if watch is not None:
            watch_case(0, opened, candidate, watch)

    def _time(
        self, launches: Launches, opened: OpenProblem, places: CodePlaces | None
    ) -> list[CaseTiming]:
        timings = []
        self.ahead.pause()
        for index in opened.timed:
            timings.append(self._time_case(index, launches, opened, places))
            self.samples += timings[-1].as_json()
        launches.rest()
        return timings

    def _conclude(
        self, timings: list[CaseTiming], launches: Launches, opened: OpenProblem
    ) -> Decided:
        """Decide from the samples.

        A compiled kernel's gain counts if its calls come in order; one in Python if it remains
        where each call is alone.
        """
        by_dispatch = self.kernel.language == "torch" and self.accelerator is None
        concluded = conclude(timings, opened, by_dispatch=by_dispatch)
        if concluded.status == "proven" and (why := why_no_gain(self.evidence)):
            return without_gain(concluded, why)
        if concluded.status == "proven" and self.accelerator is None:
            for timing in timings:
                compare_more(timing, opened, launches.launch_new)
        if concluded.status == "proven" and self.kernel.language == "cpp":
            unordered = self._see_order(launches, opened, timings)
            return without_gain(concluded, unordered) if unordered else concluded
        if concluded.status == "proven" and self.accelerator is None:
            with launches.launch(0) as process:
                seen, share = see_alone(timings, opened, process)
            self.evidence.append(seen)
            if not seen.passed:
                return without_gain(concluded, seen.detail)
            return concluded if share == 1 else with_less_gain(concluded, share, seen.detail)
        return concluded

    def _time_case(
        self, index: int, launches: Launches, opened: OpenProblem, places: CodePlaces | None
    ) -> CaseTiming:
        """Time a case, in processes that are as new as the reference's.

        The one that was checked has seen all cases on its heap: it was up to a tenth faster or
        slower.
        """
        watch = watch_for(places, self.problem, self.kernel)
        try:
            return time_until_answered(index, opened, launches.launch_new, watch)
        except CandidateFault as error:
            if error.decided.not_timed and watch is not None:  # no thread samples were taken
                with launches.launch(0) as process:
                    watch_case(index, opened, process, watch)
            raise

    def _see_order(self, launches: Launches, opened: OpenProblem, timings: list[CaseTiming]) -> str:
        """Return why calls may have been computed together, or ""."""
        for timing in timings:
            with launches.launch(0) as process:
                seen = see_order(timing, opened, process)
            if not seen:
                return (
                    f"it runs too shortly on {timing.name} to see whether its calls come one after "
                    "another; give the problem a larger case"
                )
        return ""

    def verdict(self, decided: Decided) -> Verdict:
        """Return the verdict, with the evidence of all stages."""
        return Verdict(
            status=decided.status,
            reason=decided.reason + self._said_of_problem(decided),
            not_timed=decided.not_timed,
            evidence=self.evidence,
            speedup=decided.speedup,
            static=self._profile(),
            emulated=self.emulated,
            isolation=self.isolation,
            kernel_hash=self.kernel.hash,
            problem_hash=self._given.hash,
            samples=self.samples,
            environment={
                "judge": revision(self.target),
                "threads": self.threads,
                "language": self.kernel.language,
                **({"device": self.accelerator.name} if self.accelerator else {}),
                **({"weights": "frozen"} if self._is_frozen else {}),
                **({"tier": ", ".join(self.problem.tiers)} if self._has_tiers else {}),
                **arm_environment(self.threads),
            },
        )

    def _said_of_problem(self, decided: Decided) -> str:
        """Return what a reason adds: what calls showed, frozen weights, sizes that were shrunk."""
        form, is_right = self.problem.model, decided.status in ("proven", "correct")
        worn = told_of_wear(self.evidence) if is_right else []
        frozen = is_right and self._is_frozen
        told = [*worn, *(["with frozen weights: those that its constructor drew"] * frozen)]
        if told:
            return f" ({'; '.join(told)})"
        if form is None or decided.status in ("unmeasured", "cheating"):
            return ""
        changes = ", ".join(one.words() for one in form.shrunk)
        shrunk = f" (the problem was shrunk: {changes}; --scale 1 keeps its sizes)"
        return shrunk if changes else ""

    def _profile(self) -> dict[str, object] | None:
        """Return the static profile of a GPU's kernel, if it is asked for, whatever its status."""
        if not self.profiled or self.kernel.language not in PROFILED or not self.problem.cases:
            return None
        if self.kernel.language == "hip" and is_extension(self.kernel.source):
            return None  # its kernels are compiled together with its host code
        return targets().profile_in_verdict(self.kernel, self._given, self.profiled, self.clock)


def layout_seed(secret: int) -> int:
    """Return the seed of the tensors' places, which a candidate sees, from that of their values.

    With one generator for both, the places would reveal the values.
    """
    digest = hashlib.sha256(b"layout %d" % secret).digest()
    return int.from_bytes(digest[:6], "big")
