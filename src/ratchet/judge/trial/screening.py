"""Screening: quick estimates of which kernels are worth a verdict, never a proof.

Candidates are started, checked and timed, group by group (`screening_rounds`). Each runs in a
sandbox of its own, as for a verdict, and is stopped while another runs. A failure costs the others
nothing. docs/reference/judge.md ("Screening") says what a verdict does beyond. The problem is held
open from one screening to the next.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from statistics import geometric_mean
from typing import Final

from ratchet.base.process.channel import close_descriptors
from ratchet.base.process.memory import free_bytes
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.problems.free_memory import MEMORY_SHARE
from ratchet.judge.problems.problem import MORE_TIME, Problem
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.shared_memory import BATCH_PART, Handing
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.targets import small_cases, targets
from ratchet.judge.terms import LANGUAGES
from ratchet.judge.trial.arms import REFERENCE
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.compiling import CompilePool, Toolchain
from ratchet.judge.trial.kernel_checks import begun_case, make_calls
from ratchet.judge.trial.many_calls import first_wrong, works_at_rest
from ratchet.judge.trial.open_problem import (
    CaseFacts,
    OpenProblem,
    Record,
    Rivalry,
    described_cases,
)
from ratchet.judge.trial.plan import calls_per_batch
from ratchet.judge.trial.reference import ReferenceProcess, Rivals
from ratchet.judge.trial.screening_rounds import (
    BEST,
    FIRST_CALL_S,
    GPU_SHARE,
    STEP_S,
    Entrant,
    QuickClock,
    QuickFacts,
    ScreenedArm,
    time_together,
)
from ratchet.judge.trial.sources import runnable, uses_extensions
from ratchet.judge.verdict import CandidateFault, Decided, Screening, fault

LOG = logging.getLogger(__name__)
GROUP: Final = 8
"""Candidates timed together: more share the reference's turns, fewer run closer to it in time."""
KEPT_BATCHES: Final = 4
"""Memory of a candidate's process, in batches: its last two, their results, and some room."""
CONTEXT_BYTES: Final = 1 << 30
"""Memory of a GPU that a process takes before its first tensor: about half of this on an H100."""
GPU_MEMORY_SHARE: Final = 0.8  # The part of a GPU's free memory that all processes may take
MORE_CASES: Final = 2  # Untimed cases checked besides the timed ones, drawn anew for each screening
HELD, HELD_ON_GPU, HELD_COMPARED = 16, 4, 4
HELD_S, HELD_BYTES = 0.05, 32 << 20
"""Calls on a timed case whose results are held together, within the reference's seconds for them
and the bytes of their tensors, and how many of them are compared."""
REST_LOOK_S: Final = 0.01  # Seconds of a look at a process that was timed and has no order
BUDGET_S: Final = 2.0
"""A group's rounds begin within this time; only the first ones may begin later."""
CORES_PART, GPU_PART, INTERPRETED_PART = PARTS = ("cores", "gpu", "interpreted")
INTERPRETED: Final = (
    "right on the cases that were drawn, in Triton's interpreter; there is no GPU to time it on"
)


class ScreeningRun:
    """A screening of kernels on the same cases of a problem."""

    def __init__(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        best: Kernel | None,
        *,
        threads: int,
        clock: QuickClock,
        accelerator: Accelerator | None = None,
    ) -> None:
        self.problem = problem
        self.accelerator = accelerator
        self.problem_hash = problem.hash
        self._threads = threads
        self.clock = clock
        self._entrants = [self._entrant(one, str(at)) for at, one in enumerate(kernels)]
        self._best = None if best is None else self._entrant(best, BEST)
        self._check_s: dict[int, float] = {}

    def _entrant(self, kernel: Kernel, name: str) -> Entrant:
        device = None if self.accelerator is None else self.accelerator.torch_name
        entrant = Entrant(kernel, name, kernel, on_gpu=device is not None)
        with entrant.on_trial():
            if kernel.language not in LANGUAGES:
                why = f"{kernel.language} kernels are not screened: judge it instead"
                raise fault("unmeasured", why)
            if kernel.language == "torch" and uses_extensions(kernel):
                why = "it builds an extension, which takes long: judge it instead"
                raise fault("unmeasured", why)
            interpreted = entrant.is_interpreted
            called = targets().interpreted(kernel) if interpreted else kernel
            entrant.runnable = runnable(called, self.problem, device)
        return entrant

    @property
    def _all(self) -> list[Entrant]:
        """The best so far, then the candidates."""
        return [*([] if self._best is None else [self._best]), *self._entrants]

    @property
    def is_over(self) -> bool:
        return all(entrant.is_out for entrant in self._entrants)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels that still have to be screened, the best so far first."""
        return [one.kernel for one in self._all if not one.is_out]

    def decide(self, at: int, decided: Decided) -> None:
        """Give the kernel of that number an answer."""
        self._entrants[at].decide(decided)

    def decide_all(self, decided: Decided) -> None:
        for entrant in self._entrants:
            if not entrant.is_out:
                entrant.decide(decided)

    def answers(self) -> tuple[Screening, ...]:
        return tuple(entrant.answer() for entrant in self._entrants)

    def close(self) -> None:
        for entrant in self._all:
            entrant.end()

    def run(
        self,
        rivalry: Rivalry,
        pool: CompilePool,
        zygote_of: Callable[[Kernel], CandidateZygote | None],
    ) -> None:
        """Screen the candidates group by group, compiled ones first.

        On a GPU as many as there are cores load and make their first calls at the same time, before
        one of them is timed: Triton compiles then. All of them are stopped when the clock runs.
        """
        opened, lasting = rivalry.opened, rivalry.rivals.lasting
        memory_bytes = {one.kernel.language: opened.memory_bytes(one.runnable) for one in self._all}

        def start(entrant: Entrant) -> None:
            library = pool.fetch(entrant.kernel) if entrant.kernel.language == "cpp" else None
            try:
                entrant.process = CandidateProcess(
                    entrant.runnable,
                    threads=self._threads,
                    memory_bytes=memory_bytes[entrant.kernel.language],
                    clock=self.clock,
                    accelerator=self.accelerator,
                    zygote=zygote_of(entrant.kernel),
                )
                entrant.process.first_call_limit_s = FIRST_CALL_S
                entrant.process.begin_load(entrant.runnable, library)
            finally:
                close_descriptors([] if library is None else [library])

        if self.accelerator is not None:  # it opens the GPU while the first candidates do
            lasting[REFERENCE] = rivalry.rivals.begin(threads=opened.reference.threads)
        cases = self._drawn_cases(opened)
        size = group_size(opened.cases, self.accelerator)
        groups = self._groups(size)
        at_once = groups_at_once(size, opened.cases, self._threads, self.accelerator)
        for first in range(0, len(groups), at_once):
            if self._out_of_time():
                return
            best = [self._best] if self._best is not None and not self._best.is_out else []
            loaded = groups[first : first + at_once]
            together = [*best, *itertools.chain(*loaded)]
            try:
                self._load(together, start)
                if self.accelerator is not None and first == 0:
                    lasting[REFERENCE].await_load()
                LOG.debug("%s kernels are loaded", len(together))
                self._check(together, cases, opened, pool)
                LOG.debug("they are checked")
                pool.pause()
                for at, group in enumerate(loaded, start=first):
                    if at > first and self._out_of_time():
                        return
                    share_s = self.clock.left_s / (len(groups) - at)
                    budget_s = min(BUDGET_S, share_s) / max(1, len(opened.timed))
                    self._time([*best, *group], rivalry, budget_s)
                    LOG.debug("%s of them are timed", len(group))
                    for entrant in group:  # whose memory the next ones get
                        entrant.end()
                pool.resume()
            finally:
                for entrant in together:
                    entrant.end()

    def _out_of_time(self) -> bool:
        """Return whether the time is over; then all that have no answer get one."""
        if self.clock.over:
            limit = f"the time limit of {self.clock.limit_s:.3g} s"
            self.decide_all(Decided("unmeasured", f"{limit} ran out first; {MORE_TIME}"))
        return self.clock.over

    def _load(self, entrants: Sequence[Entrant], start: Callable[[Entrant], None]) -> None:
        for part in self._at_once(entrants):
            for entrant in part:
                with entrant.on_trial():
                    start(entrant)
            for entrant in part:
                with entrant.on_trial():
                    if entrant.process is not None:
                        entrant.process.await_load(entrant.runnable)
                        entrant.process.pause()

    def _at_once(self, group: Sequence[Entrant]) -> list[Sequence[Entrant]]:
        """Part a group by who works at the same time: one by one on cores, all on a GPU."""
        return [[one] for one in group] if self.accelerator is None else [group]

    def _groups(self, size: int) -> list[list[Entrant]]:
        """Group candidates by how their outputs are handled: the reference's are handled alike."""
        groups = []
        for with_torch in (False, True):
            left = [
                one
                for one in self._entrants
                if not one.is_out and (one.kernel.language in WITH_TORCH) == with_torch
            ]
            groups += [left[first : first + size] for first in range(0, len(left), size)]
        return groups

    def _drawn_cases(self, opened: OpenProblem) -> list[tuple[int, list[int]]]:
        """Draw secret cases and their values: timed ones, one of them varied, and others."""
        found: list[tuple[int, list[int]]] = [(index, []) for index in opened.timed]
        for index in opened.timed:
            kinds = opened.unchecked(index)
            if kinds:
                found.append((index, [opened.rng.choice(kinds)]))
                break
        others = [
            at
            for at, case in enumerate(opened.problem.cases)
            if at not in opened.timed and not case.grown and not opened.has_other_sizes(at)
        ]
        found += [(at, []) for at in opened.rng.sample(others, min(MORE_CASES, len(others)))]
        opened.rng.shuffle(found)
        return found

    def _check(
        self,
        group: Sequence[Entrant],
        cases: Sequence[tuple[int, list[int]]],
        opened: OpenProblem,
        pool: CompilePool,
    ) -> None:
        """Check every candidate on each case; all get the same values."""
        declined = {entrant.name: 0 for entrant in group}
        for case, values in cases:
            seeds = [opened.rng.getrandbits(48)]
            for part in self._at_once([one for one in group if not one.is_out]):
                for name, passed in self._call_once(part, case, values, seeds, opened):
                    declined[name] += passed is None
                pool.look()
        for index in opened.timed[:1]:
            self._hold_together([one for one in group if not one.is_out], index, opened)
        for entrant in group:
            with entrant.on_trial():
                if not entrant.is_out and declined[entrant.name] == len(cases):
                    raise fault("refused", "the kernel declines every case that was drawn")
            if not entrant.is_out:
                count = len(opened.problem.cases)
                entrant.evidence.append(
                    f"right on {len(cases) - declined[entrant.name]} calls with secret values, of "
                    f"{len({case for case, _ in cases})} of the problem's {count} cases"
                )

    def _hold_together(self, group: Sequence[Entrant], index: int, opened: OpenProblem) -> None:
        """Compare a few of several calls on a timed case, whose results are all there."""
        facts, rng = opened.cases[index], opened.rng
        most = HELD if self.accelerator is None else HELD_ON_GPU
        fitting = min(HELD_S / max(1e-6, facts.time_s), HELD_BYTES / max(1.0, facts.bytes))
        wanted = max(2, min(most, int(fitting)))
        seeds = [rng.getrandbits(48) for _ in range(wanted)]
        order = sorted(rng.sample(range(wanted), wanted), key=lambda call: call == 0)
        same = {order[0] - 1, order[0]}  # a call and the one before it get the same tensors
        handing = [Handing.UNTOLD if call in same else Handing.OWN for call in range(wanted)]
        for entrant in group:
            process = entrant.process
            if entrant.is_interpreted or process is None:
                continue

            def run(calls: int, process: CandidateProcess = process) -> str:
                compared = [call for call in order if call < calls][:HELD_COMPARED]
                drawn = opened.draw(
                    index,
                    calls,
                    writable_inputs=False,
                    seeds=seeds[:calls],
                    handing=handing[:calls],
                )
                with drawn as batch:
                    codes = make_calls(process, opened, batch)
                    return first_wrong(process, opened, batch, codes, compared, again=True)

            with entrant.on_trial():
                if detail := opened.with_fewer_calls(wanted, run):
                    name = opened.problem.cases[index].name
                    raise fault("wrong", f"several calls on {name}, held together: {detail}")

    def _call_once(
        self,
        group: Sequence[Entrant],
        case: int,
        values: list[int],
        seeds: list[int],
        opened: OpenProblem,
    ) -> Iterator[tuple[str, bool | None]]:
        """Let all make a call at once; yield the name and True of the right, None if it declined.

        Those that are wrong or fail are out.
        """
        asked = opened.problem.cases[case]
        with contextlib.ExitStack() as held:
            begun = []
            for entrant in group:
                with entrant.on_trial():
                    assert entrant.process is not None
                    finish = begun_case(entrant.process, opened, case, values, seeds=seeds)
                    begun.append((entrant, held.enter_context(finish)))
            for entrant, finished in begun:
                with entrant.on_trial():
                    passed, detail, _ = finished()
                    check_s = opened.check_time_s[case]
                    self._check_s[case] = max(self._check_s.get(case, 0.0), check_s)
                    if passed is False:
                        raise fault("wrong", f"case {asked.name}: {detail}")
                    if passed is None and asked.timed:
                        raise fault("refused", f"the kernel declines the timed case {asked.name}")
                    yield entrant.name, passed

    def _time(self, group: Sequence[Entrant], rivalry: Rivalry, budget_s: float) -> None:
        """Time the candidates that are right, and answer them."""
        opened, by_name = rivalry.opened, {entrant.name: entrant for entrant in group}
        for case in opened.timed:
            arms = [
                ScreenedArm(one.name, one.process, rivalry, case, one.decide)
                for one in group
                if not one.is_out and one.process is not None
            ]
            check_s = self._check_s.get(case, 0.0)
            found = time_together(case, rivalry, arms, check_s=check_s, budget_s=budget_s)
            for name, timed in found.items():
                by_name[name].timings.append(timed)
                by_name[name].evidence += [timed.smaller] if timed.smaller else []
        for entrant in group:
            if not entrant.is_out and entrant.process is not None:
                with entrant.on_trial():
                    entrant.process.pause()  # raises a fault if it ran while it was stopped
                    on_cores = self.accelerator is None
                    if on_cores and (works := works_at_rest(entrant.process, REST_LOOK_S)):
                        raise fault("unmeasured", f"right, but {works}: no verdict would prove it")
            if not entrant.is_out and entrant.name != BEST:
                self._conclude(entrant, opened)

    def _conclude(self, entrant: Entrant, opened: OpenProblem) -> None:
        if entrant.is_interpreted:
            entrant.decide(Decided("unmeasured", INTERPRETED))
        elif not opened.timed:
            why = "right on the cases that were drawn; no case of the problem is timed"
            entrant.decide(Decided("unmeasured", why))
        elif len(entrant.timings) < len(opened.timed):
            why = f"the time limit left too few rounds; {MORE_TIME}"
            entrant.decide(Decided("unmeasured", why))
        else:
            ratio = geometric_mean(one.ratio for one in entrant.timings)
            rounds = min(one.rounds for one in entrant.timings)
            entrant.status = "screened"
            entrant.reason = f"about {ratio:.2f}x the reference's speed, in {rounds} rounds"
            entrant.evidence.append(entrant.reason)
            if self._best is not None and self._best.is_out:
                entrant.evidence.append(f"the best so far was not timed: {self._best.reason}")


class ScreeningParts:
    """The runs of a screening: on the cores, on a GPU, and interpreted.

    Kernels in Triton without a GPU have small cases and are not timed.
    """

    def __init__(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        best: Kernel | None,
        *,
        threads: int,
        clock: QuickClock,
        place: Callable[[Kernel], Accelerator | Decided | None] = lambda _: None,
    ) -> None:
        """`place` tells a kernel's GPU, None for the cores, or why it has no place."""
        places = [place(one) for one in kernels]
        found = next((one for one in places if isinstance(one, Accelerator)), None)
        self._parts = [_part(one, kernel) for one, kernel in zip(places, kernels, strict=True)]
        part_of_best = None if best is None else _part(place(best), best)
        small = problem
        if INTERPRETED_PART in self._parts:
            small = small_cases(problem).untimed()
        self.runs = tuple(
            ScreeningRun(
                small if part == INTERPRETED_PART else problem,
                [one for one, own in zip(kernels, self._parts, strict=True) if own == part],
                best if part == part_of_best and part != INTERPRETED_PART else None,
                threads=threads,
                clock=clock,
                accelerator=found if part == GPU_PART else None,
            )
            for part in PARTS
        )
        for part, run in zip(PARTS, self.runs, strict=True):
            own = [one for one, at in zip(places, self._parts, strict=True) if at == part]
            for at, one in enumerate(own):
                if isinstance(one, Decided):
                    run.decide(at, one)

    def decide_all(self, decided: Decided) -> None:
        for run in self.runs:
            run.decide_all(decided)

    def answers(self) -> tuple[Screening, ...]:
        found = {part: iter(run.answers()) for part, run in zip(PARTS, self.runs, strict=True)}
        return tuple(next(found[part]) for part in self._parts)

    def close(self) -> None:
        for run in self.runs:
            run.close()


def _part(place: Accelerator | Decided | None, kernel: Kernel) -> str:
    """Return the run in which a kernel of that place is screened."""
    if isinstance(place, Accelerator):
        return GPU_PART
    return INTERPRETED_PART if place is None and kernel.language == "triton" else CORES_PART


def group_size(cases: Sequence[CaseFacts], accelerator: Accelerator | None = None) -> int:
    """Return how many candidates fit in memory together: at least one, at most GROUP.

    A process keeps the tensors of its last batches until it gets others. On a GPU it keeps those of
    the last one and its results, beside what the driver takes.
    """
    if accelerator is not None:
        timed_bytes = _timed_bytes(cases, accelerator)
        return max(1, min(GROUP, int(_room_bytes(accelerator) / timed_bytes) - 1))  # the reference
    batch_bytes = max(calls_per_batch(case.time_s, case.bytes) * case.bytes for case in cases)
    fitting = int(MEMORY_SHARE * free_bytes() / (KEPT_BATCHES * max(batch_bytes, 1.0)))
    return max(1, min(GROUP, fitting))


def groups_at_once(
    size: int, cases: Sequence[CaseFacts], cores: int, accelerator: Accelerator | None
) -> int:
    """Return how many groups of that size load and are checked before the first is timed.

    On a GPU a candidate that waits holds the tensors of one call and its results, so more of them
    fit than can be timed together; no more than there are cores, which compile.
    """
    if accelerator is None:
        return 1
    left_bytes = _room_bytes(accelerator) - (size + 1) * _timed_bytes(cases, accelerator)
    waiting = left_bytes / (2 * max(case.bytes for case in cases) + CONTEXT_BYTES)
    return 1 + max(0, min(int(waiting), cores - size)) // size


def _room_bytes(accelerator: Accelerator) -> float:
    """Return the memory of a GPU that all processes may take."""
    return GPU_MEMORY_SHARE * BATCH_PART * accelerator.batch_bytes


def _timed_bytes(cases: Sequence[CaseFacts], accelerator: Accelerator) -> float:
    """Return what a process takes of a GPU's memory while it is timed."""
    largest = max(case.bytes for case in cases)
    return 2 * max(largest, accelerator.batch_bytes / GPU_SHARE) + CONTEXT_BYTES


OPENING_S = max(120.0, STEP_S)


class Screener:
    """Keeps a problem open from one screening to the next."""

    def __init__(self, tools: Toolchain, *, threads: int) -> None:
        self._threads = threads
        self._tools = tools
        self._held: tuple[tuple[object, ...], Sequence[CaseFacts]] | None = None
        """The problem that the reference worker holds open, and its cases."""

    def forget_problem(self) -> None:
        """Open the problem anew the next time: the reference worker holds another by then."""
        self._held = None

    def run(
        self,
        run: ScreeningRun,
        worker: Callable[[], ReferenceProcess],
        secret: int,
    ) -> None:
        """Screen all candidates; raises what a fault of the judge raises."""
        fault = run.problem.fault
        if fault:
            run.decide_all(Decided("refused", f"the problem cannot be judged: {fault}"))
        if run.is_over:
            return

        def zygote_of(kernel: Kernel) -> CandidateZygote | None:
            return self._tools.kernels(kernel.language, run.accelerator)

        for one in run.kernels:
            zygote_of(one)  # it starts while the problem is opened
        compiled = [one for one in run.kernels if one.language == "cpp"]
        pool = CompilePool(compiled, tools=self._tools, threads=self._threads)
        with contextlib.closing(pool):
            try:
                rivalry = self._open(run, worker(), secret)
            except CandidateFault as error:
                run.decide_all(error.decided)
                return
            with contextlib.closing(rivalry.rivals):
                run.run(rivalry, pool, zygote_of)

    def _open(self, run: ScreeningRun, reference: ReferenceProcess, secret: int) -> Rivalry:
        """Return the problem with the secrets of one screening; open it unless it is held."""
        device = "" if run.accelerator is None else run.accelerator.key
        # The hash counts the text of the problem's module too.
        key = (run.problem, run.problem_hash, reference, device)
        if self._held is None or self._held[0] != key:
            self._held = None
            cases = described_cases(
                run.problem,
                reference,
                threads=self._threads,
                seed=secrets.randbits(48),
                limit_s=OPENING_S,
                accelerator=run.accelerator,
                kind=QuickFacts,
                record=Record(),
            )
            self._held = key, cases
        given = (run.clock, run.accelerator)
        return Rivalry(
            opened=OpenProblem(
                run.problem, reference, self._held[1], random.Random(secret), *given
            ),
            rivals=Rivals(run.problem, reference, *given),
            record=Record(),
        )
