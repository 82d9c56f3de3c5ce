"""One screening: candidates are started, checked and timed, group by group.

Each runs in a sandbox of its own, as for a verdict, and is stopped while another runs. A failure
costs the others nothing. docs/reference/judge.md ("Screening") says what a verdict does beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import geometric_mean
from typing import Final

from ratchet import lab
from ratchet.base.process.channel import close_descriptors
from ratchet.judge.options import LANGUAGES, WITH_TORCH
from ratchet.judge.sandbox.accelerator import may_use_gpu
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.stage_result import CandidateFault, Decided, fault
from ratchet.judge.trial.kernel_checks import CaseFacts, OpenProblem, check_case
from ratchet.judge.trial.processes.built_extensions import uses_extensions
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.processes.compile_pool import CompilePool
from ratchet.judge.trial.screening.entrant import FIRST_CALL_S, Entrant, QuickClock
from ratchet.judge.trial.screening.rounds import BEST, ScreenedArm, time_together
from ratchet.judge.trial.timing.plan import calls_per_batch
from ratchet.judge.verdict import Screening
from ratchet.judge.workers.candidate.model_answer import runnable
from ratchet.kernels.kernel import Kernel
from ratchet.problems.free_memory import MEMORY_SHARE, free_bytes
from ratchet.problems.problem import Problem

GROUP: Final = 8
"""Candidates timed together: more share the reference's turns, fewer run closer to it in time."""
KEPT_BATCHES: Final = 4
"""Memory of a candidate's process, in batches: its last two, their results, and some room."""
MORE_CASES: Final = 2
"""Untimed cases checked besides the timed ones, drawn anew for each screening."""
BUDGET_S: Final = 2.0
"""A group's rounds begin within this time; only the first ones may begin later."""
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
    ) -> None:
        self.problem = problem
        self.problem_hash = problem.hash
        self._threads = threads
        self.clock = clock
        self._entrants = [self._entrant(one, str(at)) for at, one in enumerate(kernels)]
        self._best = None if best is None else self._entrant(best, BEST)
        self._check_s: dict[int, float] = {}

    def _entrant(self, kernel: Kernel, name: str) -> Entrant:
        entrant = Entrant(kernel, name, kernel)
        with entrant.on_trial():
            _check_language(kernel)
            is_triton = kernel.language == "triton"
            called = lab.without_gpu.interpreted(kernel) if is_triton else kernel
            if isinstance(called, Decided):
                raise CandidateFault(called)
            entrant.runnable = runnable(called, self.problem)
        return entrant

    @property
    def _all(self) -> list[Entrant]:
        """The best so far, then the candidates."""
        return [*([] if self._best is None else [self._best]), *self._entrants]

    @property
    def is_over(self) -> bool:
        """True if every answer is known."""
        return all(entrant.is_out for entrant in self._entrants)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels that still have to be screened, the best so far first."""
        return [one.kernel for one in self._all if not one.is_out]

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
        opened: OpenProblem,
        pool: CompilePool,
        zygote_of: Callable[[Kernel], CandidateZygote | None],
    ) -> None:
        """Screen the candidates group by group, compiled ones first."""
        memory_bytes = {one.kernel.language: opened.memory_bytes(one.runnable) for one in self._all}

        def start(entrant: Entrant) -> None:
            library = pool.fetch(entrant.kernel) if entrant.kernel.language == "cpp" else None
            try:
                entrant.process = CandidateProcess(
                    entrant.runnable,
                    threads=self._threads,
                    memory_bytes=memory_bytes[entrant.kernel.language],
                    clock=self.clock,
                    zygote=zygote_of(entrant.kernel),
                )
                entrant.process.first_call_limit_s = FIRST_CALL_S
                entrant.process.load(entrant.runnable, library)
            finally:
                close_descriptors([] if library is None else [library])
            entrant.process.pause()

        cases = self._drawn_cases(opened)
        groups = self._groups(group_size(opened.cases))
        for at, group in enumerate(groups):
            if self.clock.over:
                limit = f"the time limit of {self.clock.limit_s:.3g} s"
                self.decide_all(Decided("unmeasured", f"{limit} ran out first; raise it"))
                return
            best = [self._best] if self._best is not None and not self._best.is_out else []
            together = [*best, *group]
            try:
                for entrant in together:
                    with entrant.on_trial():
                        start(entrant)
                self._check(together, cases, opened, pool)
                pool.pause()
                share_s = self.clock.left_s / (len(groups) - at)
                self._time(together, opened, min(BUDGET_S, share_s) / max(1, len(opened.timed)))
                pool.resume()
            finally:
                for entrant in together:
                    entrant.end()

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
            if at not in opened.timed and not case.grown
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
            for entrant in group:
                if entrant.is_out:
                    continue
                with entrant.on_trial():
                    passed = self._call_once(entrant, case, values, seeds, opened)
                    declined[entrant.name] += passed is None
                pool.look()
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

    def _call_once(
        self,
        entrant: Entrant,
        case: int,
        values: list[int],
        seeds: list[int],
        opened: OpenProblem,
    ) -> bool | None:
        """Return True if it is right, None if it declined; raises CandidateFault if it is wrong."""
        name = opened.problem.cases[case].name
        assert entrant.process is not None
        passed, detail = check_case(entrant.process, opened, case, values, seeds=seeds)
        self._check_s[case] = max(self._check_s.get(case, 0.0), opened.check_time_s[case])
        if passed is False:
            raise fault("wrong", f"case {name}: {detail}")
        if passed is None and opened.problem.cases[case].timed:
            raise fault("refused", f"the kernel declines the timed case {name}")
        return passed

    def _time(self, group: Sequence[Entrant], opened: OpenProblem, budget_s: float) -> None:
        """Time the candidates that are right, and answer them."""
        by_name = {entrant.name: entrant for entrant in group}

        def lose(name: str, decided: Decided) -> None:
            by_name[name].decide(decided)

        for case in opened.timed:
            arms = [
                ScreenedArm(one.name, one.process, opened, case)
                for one in group
                if not one.is_out and one.process is not None
            ]
            check_s = self._check_s.get(case, 0.0)
            found = time_together(case, opened, arms, lose, check_s=check_s, budget_s=budget_s)
            for name, timed in found.items():
                by_name[name].timings.append(timed)
        for entrant in group:
            if not entrant.is_out and entrant.process is not None:
                with entrant.on_trial():
                    entrant.process.pause()  # raises a fault if it ran while it was stopped
            if not entrant.is_out and entrant.name != BEST:
                self._conclude(entrant, opened)

    def _conclude(self, entrant: Entrant, opened: OpenProblem) -> None:
        if entrant.is_interpreted:
            entrant.decide(Decided("unmeasured", INTERPRETED))
        elif not opened.timed:
            why = "right on the cases that were drawn; no case of the problem is timed"
            entrant.decide(Decided("unmeasured", why))
        elif len(entrant.timings) < len(opened.timed):
            entrant.decide(Decided("unmeasured", "the time limit left too few rounds; raise it"))
        else:
            ratio = geometric_mean(one.ratio for one in entrant.timings)
            rounds = min(one.rounds for one in entrant.timings)
            entrant.status = "screened"
            entrant.reason = f"about {ratio:.2f}x the reference's speed, in {rounds} rounds"
            entrant.evidence.append(entrant.reason)
            if self._best is not None and self._best.is_out:
                entrant.evidence.append(f"the best so far was not timed: {self._best.reason}")


class ScreeningParts:
    """The two runs of a screening: kernels in Triton have small cases and are not timed."""

    def __init__(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        best: Kernel | None,
        *,
        threads: int,
        clock: QuickClock,
    ) -> None:
        self._interpreted = [kernel.language == "triton" for kernel in kernels]
        timed = [one for one in kernels if one.language != "triton"]
        others = [one for one in kernels if one.language == "triton"]
        untimed = lab.without_gpu.small_cases(problem).untimed() if others else problem
        self.runs = (
            ScreeningRun(problem, timed, best, threads=threads, clock=clock),
            ScreeningRun(untimed, others, None, threads=threads, clock=clock),
        )

    def decide_all(self, decided: Decided) -> None:
        for run in self.runs:
            run.decide_all(decided)

    def answers(self) -> tuple[Screening, ...]:
        timed, others = (iter(run.answers()) for run in self.runs)
        return tuple(next(others) if one else next(timed) for one in self._interpreted)

    def close(self) -> None:
        for run in self.runs:
            run.close()


def group_size(cases: Sequence[CaseFacts]) -> int:
    """Return how many candidates fit in memory together: at least one, at most GROUP.

    A process keeps the tensors of its last batches until it gets others.
    """
    batch_bytes = max(calls_per_batch(case.time_s, case.bytes) * case.bytes for case in cases)
    fitting = int(MEMORY_SHARE * free_bytes() / (KEPT_BATCHES * max(batch_bytes, 1.0)))
    return max(1, min(GROUP, fitting))


def _check_language(kernel: Kernel) -> None:
    """Raise CandidateFault if the language is not screened."""
    if kernel.language == "triton" and may_use_gpu(kernel, "auto"):
        raise fault("unmeasured", "screening does not use the GPU: judge it instead")
    if kernel.language not in LANGUAGES:
        raise fault("unmeasured", f"{kernel.language} kernels are not screened: judge it instead")
    if kernel.language == "torch" and uses_extensions(kernel):
        raise fault("unmeasured", "it builds an extension, which takes long: judge it instead")
