"""Screen with a problem that is held open from one screening to the next."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.trial.kernel_checks import CaseFacts, OpenProblem, described_cases
from ratchet.judge.trial.processes.compile_pool import CompilePool
from ratchet.judge.trial.processes.compiling import Toolchain
from ratchet.judge.trial.processes.reference import ReferenceProcess
from ratchet.judge.trial.screening.entrant import STEP_S, QuickFacts
from ratchet.judge.trial.screening.groups import ScreeningRun
from ratchet.judge.verdict import CandidateFault, Decided

OPENING_S = max(120.0, STEP_S)


@dataclass(frozen=True, slots=True)
class HeldProblem:
    """The problem that the reference worker holds open, from one screening to the next."""

    key: tuple[Problem, str, ReferenceProcess, str]
    """The problem, its hash (the text of its module counts), the worker that holds it, and its GPU;
    "" for the cores."""
    cases: Sequence[CaseFacts]


class Screener:
    """Keeps a problem open from one screening to the next."""

    def __init__(self, tools: Toolchain, *, threads: int) -> None:
        self._threads = threads
        self._tools = tools
        self._held: HeldProblem | None = None

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
        with CompilePool(compiled, tools=self._tools, threads=self._threads) as pool:
            try:
                opened = self._open(run, worker(), secret)
            except CandidateFault as error:
                run.decide_all(error.decided)
                return
            try:
                run.run(opened, pool, zygote_of)
            finally:
                opened.rivals.close()

    def _open(self, run: ScreeningRun, reference: ReferenceProcess, secret: int) -> OpenProblem:
        """Return the problem with the secrets of one screening; open it unless it is held."""
        device = "" if run.accelerator is None else run.accelerator.key
        wanted = (run.problem, run.problem_hash, reference, device)
        if self._held is None or wanted != self._held.key:
            self._held = None
            found = described_cases(
                run.problem,
                reference,
                threads=self._threads,
                seed=secrets.randbits(48),
                timeout_s=OPENING_S,
                accelerator=run.accelerator,
                kind=QuickFacts,
                evidence=[],
            )
            self._held = HeldProblem(wanted, found)
        return opened_quickly(self._held, run.clock, secret, run.accelerator)


def opened_quickly(
    held: HeldProblem, clock: Clock, secret: int, accelerator: Accelerator | None = None
) -> OpenProblem:
    """Return a problem that is held open, with the secrets of one screening."""
    problem, _, reference, _ = held.key
    return OpenProblem(problem, reference, held.cases, random.Random(secret), clock, accelerator)
