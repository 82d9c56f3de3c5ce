"""Screen with a problem that is held open from one screening to the next."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.base.process.time_limits import Clock
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.stage_result import CandidateFault, Decided, fault
from ratchet.judge.trial.kernel_checks import OpenProblem
from ratchet.judge.trial.processes.compile_pool import CompilePool
from ratchet.judge.trial.processes.compiling import Toolchain
from ratchet.judge.trial.processes.reference import ReferenceFault, ReferenceProcess
from ratchet.judge.trial.screening.entrant import STEP_S, QuickFacts
from ratchet.judge.trial.screening.run import ScreeningRun
from ratchet.kernels.kernel import Kernel
from ratchet.problems.problem import Problem


@dataclass(frozen=True, slots=True)
class HeldProblem:
    """The problem that the reference worker holds open, from one screening to the next."""

    key: tuple[Problem, str, ReferenceProcess]
    """The problem, its hash (the text of its module counts), and who holds it."""
    cases: Sequence[dict[str, Any]]
    """What the worker measured of each."""


class Screener:
    """Keeps a problem open from one screening to the next."""

    def __init__(self, tools: Toolchain, *, threads: int) -> None:
        self._threads = threads
        self._tools = tools
        self._held: HeldProblem | None = None

    def forget_problem(self) -> None:
        """Open it anew the next time: the reference worker holds another by then."""
        self._held = None

    def run(
        self,
        run: ScreeningRun,
        worker: Callable[[], ReferenceProcess],
        secret: int,
        zygote_of: Callable[[Kernel], CandidateZygote | None],
    ) -> None:
        """Screen all candidates; raises what a fault of the judge's own raises."""
        fault = run.problem.fault
        if fault:
            run.decide_all(Decided("refused", f"the problem cannot be judged: {fault}"))
        if run.is_over:
            return
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
        """The problem with the secrets of one screening; opened where it is not held."""
        wanted = (run.problem, run.problem_hash, reference)
        if self._held is None or wanted != self._held.key:
            self._held = None
            cases = hold_problem(run.problem, reference, threads=self._threads)
            self._held = HeldProblem(wanted, cases)
        return opened_quickly(self._held, run.clock, secret)


def hold_problem(
    problem: Problem, reference: ReferenceProcess, *, threads: int
) -> Sequence[dict[str, Any]]:
    """Have the reference worker open a problem; return what it measured of each case.

    It judges the problem first: CandidateFault if that is no good.
    """
    try:
        reply = reference.ask(
            timeout_s=max(120.0, STEP_S),
            do="open",
            problem=problem.as_json(),
            threads=threads,
            seed=secrets.randbits(48),
            device=None,
        )
    except ReferenceFault as error:
        raise fault("refused", f"the problem cannot be judged: {error}") from error
    if reply["gate"]:
        trivial = ", ".join(reply["gate"])
        raise fault("refused", f"the problem accepts {trivial}: tighten it")
    cases: Sequence[dict[str, Any]] = reply["cases"]
    return cases


def opened_quickly(held: HeldProblem, clock: Clock, secret: int) -> OpenProblem:
    """A problem that is held open, with the secrets of one screening."""
    problem, _, reference = held.key
    facts = [
        QuickFacts(name=case.name, **given)
        for case, given in zip(problem.cases, held.cases, strict=True)
    ]
    return OpenProblem(problem, reference, facts, random.Random(secret), clock)
