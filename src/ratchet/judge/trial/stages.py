"""The trial of one kernel, as stages: open, check, time, conclude.

Each stage returns what the next one needs, or raises CandidateFault with the answer. It notes what
it finds in the trial's record.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ratchet.base.errors import OutOfTime
from ratchet.base.process import Clock
from ratchet.judge.integrity.census import facts, judge_census, judge_own, read_census
from ratchet.judge.integrity.own_work import CodePlaces, places_of, watch_for
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.kernels.kernel_file import is_extension
from ratchet.judge.problems.problem import MORE_TIME, Case, Problem
from ratchet.judge.problems.problem_file import at_own_sizes
from ratchet.judge.revision import revision
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.isolation import arm_environment, isolation_name
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.targets import Build, References, small_cases, targets
from ratchet.judge.terms import LANGUAGES, PROFILED
from ratchet.judge.trial import plan
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.compiling import Library, NextLibrary
from ratchet.judge.trial.decide import conclude, with_less_gain, without_gain
from ratchet.judge.trial.kernel_checks import REJECTING, check_cases
from ratchet.judge.trial.launches import Launches, SharedCompilations
from ratchet.judge.trial.looks import check_clocks, count_on_device, see_alone, time_until_answered
from ratchet.judge.trial.many_calls import check_together, check_wear, told_of_wear, why_no_gain
from ratchet.judge.trial.open_problem import OpenProblem, Record, Rivalry, described_cases
from ratchet.judge.trial.reference import ReferenceProcess, Rivals
from ratchet.judge.trial.sample import CaseTiming, compare_more, see_order, watch_case
from ratchet.judge.trial.sources import followed, runnable
from ratchet.judge.verdict import (
    CandidateFault,
    Decided,
    Verdict,
    fault,
)

LEFT_TO_EXPLAIN_S = 5.0  # With less time left, the judge does not find out why a model is wrong
KEPT_OLD_WEIGHTS = (
    "weights change between calls; this kernel kept old ones (--frozen-weights judges it with "
    "those of its constructor)"
)
FEWEST_CALLS = 2
"""The fewest calls of a batch for a kernel that returns its outputs. Those of all calls are kept
until the batch ends, so a kernel cannot return the same buffer twice."""


LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """One way to run the kernel: as it is, interpreted, or emulated."""

    problem: Problem
    source: Kernel
    called: Kernel  # The source as its worker calls it
    record: Record
    is_native: bool = False  # True if it runs as it is
    machine: int | None = None  # The sealed library that emulates it
    build: Build | None = None  # Compiles the extensions that it orders while it is emulated


@dataclass(kw_only=True)
class KernelTrial:
    kernel: Kernel
    problem: Problem
    threads: int
    clock: Clock
    secret: int
    against_compile: bool
    ahead: NextLibrary
    then: Kernel | None  # The kernel that is judged next
    shared: SharedCompilations
    among: int  # Verdicts that together are falsely `proven` no more often than one alone
    profiled: Sequence[str]
    target: str | None  # A GPU whose machine code is emulated
    references: References | None  # The bounds that an emulated kernel's are compared with
    accelerator: Accelerator | None = None
    zygote: CandidateZygote | None = None
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        self.isolation = isolation_name()
        self._asked = self.problem  # The problem that the verdict is about
        self._judged = self.problem  # The problem with the cases on which it is judged
        self._unplaced: list[str] = []
        self._is_right = False  # True once every output was checked
        for one in self.problem.notes:
            self.record.note("sizes", one)

    @property
    def _whose(self) -> Kernel:
        """The kernel as its own work is judged: emulated Python launches kernels."""
        if self.target is not None and self.kernel.language == "torch":
            return replace(self.kernel, language="hip")
        return self.kernel

    @property
    def _is_native(self) -> bool:
        """True if the kernel runs as it is: not emulated, and not interpreted."""
        needs_gpu = self.kernel.language == "triton" and self.accelerator is None
        return self.target is None and not needs_gpu

    @property
    def _device(self) -> str | None:
        return None if self.accelerator is None else self.accelerator.torch_name

    def use(self, accelerator: Accelerator | None, zygote: CandidateZygote | None) -> None:
        """Judge on this GPU, or on the machine's cores without one; fork from the zygote."""
        self.accelerator, self.zygote = accelerator, zygote
        if accelerator is not None:
            self.isolation = isolation_name(accelerator)
            for one in accelerator.warnings:
                self.record.note("the GPU", one, passed=None)

    def run(self, reference: ReferenceProcess) -> Decided:
        """Run the stages; return the answer of the last, or raise that of an earlier one.

        A size that the judge chose convicts nobody: a kernel that fails on a shrunk problem is
        judged once more, at the problem's own sizes.
        """
        try:
            return self._run(reference)
        except CandidateFault as error:
            found = error.decided
            compiles = found.status != "refused" or self.kernel.language in WITH_TORCH
            if not (self._shrunk and found.status in REJECTING and compiles):
                raise
        return self._run_at_own_sizes(found, reference)

    def _run_at_own_sizes(self, found: Decided, reference: ReferenceProcess) -> Decided:
        """Return the answer at the sizes of the problem's file, after one at other sizes."""
        failed = f"{found.reason} (at sizes that the judge chose: {self._shrunk}"
        self.problem = self._judged = at_own_sizes(
            self._asked,
            describe=reference.describe,
            time_limit_s=max(LEFT_TO_EXPLAIN_S, self.clock.left_s),
            emulated=self.target is not None,
        )
        if self.problem.fault:
            why = f"{failed}; the problem's own do not fit here: {self.problem.fault})"
            raise fault("unmeasured", why)
        self.record, self._unplaced, self._is_right = Record(), [], False
        self.record.note("sizes", f"{failed}; judged at the problem's own)", passed=None)
        LOG.debug("judged at the problem's own sizes")
        try:
            decided = self._run(reference)
        except CandidateFault as error:
            if error.decided.status not in ("unmeasured", "timed_out"):
                raise
            why = f"{failed}; at the problem's own: {error.decided.reason})"
            raise fault("unmeasured", why) from error
        except OutOfTime as error:
            if self._is_right:
                raise
            why = (
                f"{failed}; no time was left for the problem's own: {error}; raise the time limit)"
            )
            raise fault("unmeasured", why) from error
        fails = "it fails at the smaller sizes that the judge chose"
        if self._is_native:
            return Decided.untimed(f"{fails}; --scale 1 times it at the problem's own")
        why = f"judged at the problem's own sizes, since {fails}"
        return replace(decided, reason=f"{decided.reason}; {why}")

    @property
    def _shrunk(self) -> str:
        """The sizes that the judge chose in the place of the file's, in words; empty without."""
        form = self.problem.model
        return "" if form is None else ", ".join(one.words() for one in form.shrunk)

    def _run(self, reference: ReferenceProcess) -> Decided:
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
        if not self._is_native:
            return self._interpret(reference)
        run = self._run_of(self.kernel, self.problem, is_native=True)
        begun = self.ahead.take(self.kernel, self.then, threads=self.threads, clock=self.clock)
        with contextlib.closing(begun) as library:
            opened = self._open(reference, run)
            LOG.debug("the problem is open")
            try:
                return self._decide(opened, run, library)
            except CandidateFault as error:
                found = error
        raise self._explained(found, reference, run)

    def _run_of(
        self,
        source: Kernel,
        problem: Problem,
        *,
        is_native: bool = False,
        machine: int | None = None,
        build: Build | None = None,
    ) -> _Run:
        is_hip = self.kernel.language == "hip"
        return _Run(
            problem=problem,
            source=source,
            called=source if is_hip else runnable(source, problem, self._device),
            record=self.record,
            is_native=is_native,
            machine=machine,
            build=build,
        )

    def _explained(
        self, found: CandidateFault, reference: ReferenceProcess, run: _Run
    ) -> CandidateFault:
        """Return the answer on a wrong model with what its state explains."""
        if found.decided.status != "wrong" or self._shrunk:  # it is judged at other sizes next
            return found
        words = []
        with contextlib.suppress(OutOfTime):  # the answer stands without a reason
            if self._is_right_if_frozen(reference, run):
                words.append(KEPT_OLD_WEIGHTS)
        if self._unplaced:
            words.append(f"its model has no {', '.join(self._unplaced)} of the problem's shape")
        return fault("wrong", "; ".join([*words, found.decided.reason]))

    def _is_right_if_frozen(self, reference: ReferenceProcess, run: _Run) -> bool:
        """Return whether a wrong model is right on all of its cases once its weights are frozen.

        A failure of this further trial says nothing. It opens another problem, and comes last.
        """
        form = run.problem.model
        if (
            form is None
            or form.frozen
            or not form.state
            or self.kernel.language not in WITH_TORCH
            or self.clock.left_s < LEFT_TO_EXPLAIN_S
        ):
            return False
        problem = replace(run.problem, model=replace(form, frozen=True))
        called = runnable(run.source, problem, self._device)
        frozen = replace(run, problem=problem, called=called, record=Record())
        try:
            opened = self._open(reference, frozen)
            with contextlib.closing(self._launches(opened, frozen)) as launches:
                self._check(launches.load(run.machine), opened, frozen, launches, None)
        except CandidateFault:
            return False
        return True

    def _decide(self, opened: OpenProblem, run: _Run, library: Library) -> Decided:
        """Return the answer by the judge's clock, which a GPU's must agree with."""
        rivalry = self._rivalry(opened)
        with contextlib.closing(rivalry.rivals):
            concluded, timings = self._compete(rivalry, run, library)
            if self.accelerator is not None:
                check_clocks(timings, rivalry, won=concluded.status == "proven")
        return concluded

    def _rivalry(self, opened: OpenProblem) -> Rivalry:
        return Rivalry(
            opened=opened,
            rivals=Rivals(opened.problem, opened.reference, self.clock, self.accelerator),
            record=self.record,
            least_calls=FEWEST_CALLS if self.kernel.language in WITH_TORCH else 1,
            among=self.among,
        )

    def _compete(
        self, rivalry: Rivalry, run: _Run, library: Library
    ) -> tuple[Decided, list[CaseTiming]]:
        """Return the answer by the judge's clock and its samples."""
        opened = rivalry.opened
        with contextlib.ExitStack() as stack:
            launches = stack.enter_context(contextlib.closing(self._launches(opened, run)))
            if opened.timed:
                rivalry.rivals.get_ready()  # while the compiler works
            candidate = launches.load(library.fetch())
            LOG.debug("the kernel is loaded")
            self._unplaced = candidate.unplaced
            if launches.built is not None:
                detail = "once, by its first process; those after it have a copy"
                self.record.note("extensions", detail)
            # Thread samples cannot show whose kernel runs on a GPU: there the census decides alone.
            looked_at = replace(self.problem, task="any") if self.accelerator else self.problem
            places = stack.enter_context(places_of(looked_at, self.kernel, library.fetch()))
            candidate = self._check(candidate, opened, run, launches, places)
            LOG.debug("its outputs are right")
            if self.accelerator is not None:
                self._count(candidate, launches, opened)
            self._is_right = True
            if self.against_compile and opened.timed:
                why = rivalry.rivals.compile(limit_s=opened.compile_limit_s)
                detail = f"not timed: {why}" if why else "compiled before the clock started"
                self.record.note("torch.compile as a rival", detail, passed=not why)
            LOG.debug("its work is counted")
            timings = self._time(launches, rivalry, places)
            LOG.debug("it is timed")
            if not opened.timed:
                self._watch_untimed(candidate, rivalry, places)
            return self._conclude(timings, launches, rivalry), timings

    def out_of_time(self, error: OutOfTime) -> Decided:
        """Return the answer if the time limit ended a step: what is known by then."""
        why = f"the time limit of {self.clock.limit_s:.3g} s is over ({error}); {MORE_TIME}"
        if self._is_right:
            return Decided.untimed(why)
        return Decided("unmeasured", f"not every output could be checked: {why}")

    def _interpret(self, reference: ReferenceProcess) -> Decided:
        """Check every case in Triton's interpreter."""
        elsewhere = targets()
        with elsewhere.runs(elsewhere.INTERPRETER):
            kernel = elsewhere.interpreted(followed(self.kernel, self.problem))
            self._check_small(reference, kernel)
        return Decided("correct", elsewhere.RIGHT)

    def _emulate(self, reference: ReferenceProcess, target: str) -> Decided:
        """Check every case as the machine code of a GPU that is not here."""
        elsewhere, record = targets(), self.record
        build = elsewhere.builder_for(self.kernel, target, self.clock)
        with elsewhere.runs(f"emulated {target}"), elsewhere.sealed_machine(target) as machine:
            sized = followed(self.kernel, self.problem)
            kernel = elsewhere.emulated(sized, target, self.clock)
            self._check_small(reference, kernel, machine, build)
        right = elsewhere.right_on(target, record.emulated, self.kernel.source, record.evidence)
        if self.references is not None and record.emulated:
            record.emulated = self.references.compared(record.emulated, self._judged, self.clock)
            record.evidence += elsewhere.said(record.emulated)
        return right

    def _check_small(
        self,
        reference: ReferenceProcess,
        kernel: Kernel,
        machine: int | None = None,
        build: Build | None = None,
    ) -> None:
        """Check a kernel on the small cases, elsewhere than on what it is written for."""
        self._judged = small_cases(self.problem)
        run = self._run_of(kernel, self._judged, machine=machine, build=build)
        opened = self._open(reference, run)
        try:
            self._answer_untimed(opened, run)
        except CandidateFault as error:
            raise self._explained(error, reference, run) from error

    def _answer_untimed(self, opened: OpenProblem, run: _Run) -> None:
        with (
            places_of(run.problem, self._whose, run.machine) as places,
            contextlib.closing(self._launches(opened, run)) as launches,
        ):
            candidate = launches.load(run.machine)
            self._unplaced = candidate.unplaced
            with self._emulated_work_is_short():
                candidate = self._check(candidate, opened, run, launches, places)
            with self._emulated_work_is_short():
                self._watch_untimed(candidate, self._rivalry(opened), places)

    @contextlib.contextmanager
    def _emulated_work_is_short(self) -> Iterator[None]:
        """Note that thread samples were too few: the census of emulated work decides alone."""
        try:
            yield
        except CandidateFault as error:
            why = error.decided
            if self.target is None or why.status != "unmeasured":
                raise
            self.record.note("own work, looks", why.reason, passed=None)

    def _open(self, reference: ReferenceProcess, run: _Run) -> OpenProblem:
        """Hand the problem to the reference worker, which judges it first."""
        is_emulated = self.target is not None
        cases = described_cases(
            run.problem,
            reference,
            threads=self.threads,
            seed=layout_seed(self.secret),
            limit_s=self.clock.reference_limit_s,
            accelerator=self.accelerator,
            is_timed=not is_emulated,
            record=run.record,
        )
        rng = random.Random(self.secret)
        return OpenProblem(
            run.problem,
            reference,
            cases,
            rng,
            self.clock,
            self.accelerator,
            is_emulated=is_emulated,
        )

    def _launches(self, opened: OpenProblem, run: _Run) -> Launches:
        """Start the candidate's processes: one to be checked, and those to be timed."""
        start = partial(
            CandidateProcess,
            threads=self.threads,
            memory_bytes=opened.memory_bytes(run.called),
            clock=self.clock,
            accelerator=self.accelerator,
            zygote=self.zygote,
            build=run.build,
        )
        return Launches(
            run.called,
            start,
            timed=plan.LAUNCHES if opened.timed and run.is_native else 0,
            forks=self.zygote is not None and self.zygote.able,
            accelerator=self.accelerator,
            compilations=self.shared.of(self.kernel, opened, run.record),
        )

    def _check(
        self,
        candidate: CandidateProcess,
        opened: OpenProblem,
        run: _Run,
        launches: Launches,
        places: CodePlaces | None,
    ) -> CandidateProcess:
        """Check every case; count what a Python kernel calls if it must do the work itself."""
        record, is_own = run.record, places is not None and self.kernel.language != "cpp"
        candidate.censuses = [] if is_own or self.target is not None else None
        other = partial(self._with_sizes_of, run, launches) if run.is_native else None
        checked = check_cases(candidate, opened, record, launches.renew, other)
        candidate = checked.process
        check_together(candidate, opened, record)
        if run.is_native:
            check_wear(candidate, opened, record, checked)
        if candidate.censuses is None:
            return candidate
        told = [read_census(layout, census) for layout, census in candidate.censuses]
        candidate.censuses = None
        if is_own:
            found, why = judge_census(run.problem, self._whose, told)
            record.evidence += found
            if why:
                raise fault("cheating", why)
        if self.target is not None:
            record.emulated = targets().estimates(run.problem, self.target, told)
        return candidate

    def _with_sizes_of(
        self, run: _Run, launches: Launches, case: Case
    ) -> contextlib.AbstractContextManager[CandidateProcess] | None:
        """Return what starts a kernel whose own constants follow a case's sizes, if it has any."""
        other = runnable(self.kernel, run.problem, self._device, case)
        return None if other == run.called else launches.other(other)

    def _count(self, checked: CandidateProcess, launches: Launches, opened: OpenProblem) -> None:
        """Count what a batch does on a GPU, while the process that was checked is stopped."""
        launches.share_compiled(checked)
        checked.pause()
        with launches.counting() as process:
            found = count_on_device(process, opened)
        self.record.evidence += facts(found)
        if opened.problem.task == "own":
            own, why = judge_own(found, opened.problem, self.kernel)
            self.record.evidence.append(own)
            if why:
                raise fault("cheating", why)

    def _watch_untimed(
        self, candidate: CandidateProcess, rivalry: Rivalry, places: CodePlaces | None
    ) -> None:
        """See whose code works on the first case, if no case is timed."""
        watch = watch_for(places, rivalry.opened.problem, self._whose)
        if watch is not None:
            watch_case(0, rivalry, candidate, watch)

    def _time(
        self, launches: Launches, rivalry: Rivalry, places: CodePlaces | None
    ) -> list[CaseTiming]:
        timings = []
        self.ahead.pause()
        for index in rivalry.opened.timed:
            timings.append(self._time_case(index, launches, rivalry, places))
            self.record.samples += timings[-1].as_json()
        launches.rest()
        return timings

    def _conclude(self, timings: list[CaseTiming], launches: Launches, rivalry: Rivalry) -> Decided:
        """Decide from the samples.

        A compiled kernel's gain counts if its calls come in order; one in Python if it remains
        where each call is alone.
        """
        by_dispatch = self.kernel.language == "torch" and self.accelerator is None
        concluded = conclude(timings, rivalry, by_dispatch=by_dispatch)
        if concluded.status != "proven":
            return concluded
        if why := why_no_gain(self.record.evidence):
            return without_gain(concluded, why)
        if self.accelerator is not None:
            return concluded
        for timing in timings:
            compare_more(timing, rivalry, launches.launch_new)
        if self.kernel.language == "cpp":
            unordered = self._see_order(launches, rivalry, timings)
            return without_gain(concluded, unordered) if unordered else concluded
        with launches.launch(0) as process:
            share, detail = see_alone(timings, rivalry, process)
        self.record.note("one by one", detail, passed=share > 0)
        if not share:
            return without_gain(concluded, detail)
        return concluded if share == 1 else with_less_gain(concluded, share, detail)

    def _time_case(
        self, index: int, launches: Launches, rivalry: Rivalry, places: CodePlaces | None
    ) -> CaseTiming:
        """Time a case, in processes that are as new as the reference's.

        The one that was checked has seen all cases on its heap: it was up to a tenth faster or
        slower.
        """
        watch = watch_for(places, self.problem, self.kernel)
        try:
            return time_until_answered(index, rivalry, launches.launch_new, watch)
        except CandidateFault as error:
            if error.decided.not_timed and watch is not None:  # no thread samples were taken
                with launches.launch(0) as process:
                    watch_case(index, rivalry, process, watch)
            raise

    def _see_order(self, launches: Launches, rivalry: Rivalry, timings: list[CaseTiming]) -> str:
        """Return why calls may have been computed together, or ""."""
        for timing in timings:
            with launches.launch(0) as process:
                seen = see_order(timing, rivalry, process)
            if not seen:
                return (
                    f"it runs too shortly on {timing.name} to see whether its calls come one after "
                    "another; give the problem a larger case"
                )
        return ""

    def verdict(self, decided: Decided) -> Verdict:
        model, tiers = self._judged.model, self._judged.tiers
        return Verdict(
            status=decided.status,
            reason=decided.reason + self._said_of_problem(decided),
            not_timed=decided.not_timed,
            evidence=self.record.evidence,
            speedup=decided.speedup,
            static=self._profile(),
            emulated=self.record.emulated,
            isolation=self.isolation,
            kernel_hash=self.kernel.hash,
            problem_hash=self._asked.hash,
            samples=self.record.samples,
            environment={
                "judge": revision(self.target),
                "threads": self.threads,
                "language": self.kernel.language,
                **({"device": self.accelerator.name} if self.accelerator else {}),
                **({"weights": "frozen"} if model is not None and model.frozen else {}),
                **({"tier": ", ".join(tiers)} if model is None and tiers else {}),
                **arm_environment(self.threads),
            },
        )

    def _said_of_problem(self, decided: Decided) -> str:
        """Return what a reason adds: what calls showed, frozen weights, sizes that were shrunk."""
        form, is_right = self._judged.model, decided.status in ("proven", "correct")
        worn = told_of_wear(self.record.evidence) if is_right else []
        frozen = is_right and form is not None and form.frozen
        told = [*worn, *(["with frozen weights: those that its constructor drew"] * frozen)]
        if told:
            return f" ({'; '.join(told)})"
        if form is None or decided.status in ("unmeasured", "cheating"):
            return ""
        shrunk = f" (the problem was shrunk: {self._shrunk}; --scale 1 keeps its sizes)"
        return shrunk if self._shrunk else ""

    def _profile(self) -> dict[str, object] | None:
        """Return the static profile of a GPU's kernel, if it is asked for, whatever its status."""
        if not self.profiled or self.kernel.language not in PROFILED or not self._judged.cases:
            return None
        if self.kernel.language == "hip" and is_extension(self.kernel.source):
            return None  # its kernels are compiled together with its host code
        return targets().profile_in_verdict(self.kernel, self.problem, self.profiled, self.clock)


def layout_seed(secret: int) -> int:
    """Return the seed of the tensors' places, which a candidate sees, from that of their values.

    With one generator for both, the places would reveal the values.
    """
    digest = hashlib.sha256(b"layout %d" % secret).digest()
    return int.from_bytes(digest[:6], "big")
