"""Judge each kernel, before it is installed, on the problems that the workload actually runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from ratchet.base.errors import DeadlinePassed
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY, why_no_kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.steps.arms import ArmProcess
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.train.graph.capture import CapturedSite, problems_for
from ratchet.train.levers import Lever
from ratchet.train.recipe.candidate import Candidate
from ratchet.train.recipe.installed import AnyKernel, InstalledKernel
from ratchet.train.turn.optimize_result import KernelVerdict
from ratchet.train.turn.schedule import MOST_VERDICT_S
from ratchet.train.turn.state import Turn

NO_TIME = "the budget ended before it was judged"
NO_SITE = "the step has no call site for it"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenKernels:
    """The kernels that may be installed in each precision, and the verdict on every kernel."""

    proven: dict[str, dict[str, tuple[AnyKernel, ...]]]
    """Precision of the step -> library kernel, or region -> its proven entries."""
    refused: dict[str, dict[str, str]]
    """Precision of the step -> library kernel -> the reason why it may not be installed."""
    verdicts: tuple[KernelVerdict, ...]
    regions: dict[str, tuple[Lever, ...]] = field(default_factory=dict)
    """Precision of the step -> the levers of its own regions for which kernels were judged."""
    worth: dict[str, float] = field(default_factory=dict)
    """Upper bound of the seconds of a step that a region's lever can win, by name."""

    def of(self, precision: str) -> dict[str, tuple[AnyKernel, ...]]:
        return self.proven.get(precision, {})

    def left_out(self, precision: str) -> list[str]:
        """Return the library kernels that the budget had no room to judge."""
        return [name for name, why in self.refused.get(precision, {}).items() if why == NO_TIME]

    def joined(self, more: ProvenKernels) -> ProvenKernels:
        """Return both; for a precision that both know, `more` is what counts."""
        said = {(one.kernel, one.problem): one for one in (*self.verdicts, *more.verdicts)}
        return ProvenKernels(
            proven={**self.proven, **more.proven},
            refused={**self.refused, **more.refused},
            verdicts=tuple(said.values()),
            regions={**self.regions, **more.regions},
            worth={**self.worth, **more.worth},
        )

    def why_not(self, precision: str) -> dict[str, str]:
        return self.refused.get(precision, dict.fromkeys(LIBRARY, "not judged in this precision"))


def prove_kernels(
    turn: Turn,
    step: Candidate,
    written: Candidate,
    wanted: Sequence[str],
    too_small: Mapping[str, str],
    *,
    timed: bool,
) -> ProvenKernels:
    """Judge the wanted library kernels on the call sites of a step.

    Kernels are judged in the order of `wanted`, until the turn's stage ends. Those in `too_small`
    are skipped for the reason given there. If it is not `timed`, a kernel that was proven elsewhere
    need only be right, because the timing of the whole step decides.
    """
    precision = step.config.precision
    if turn.without_kernels:
        return _none(precision, turn.without_kernels)
    trials = KernelTrials(turn=turn, wanted=tuple(name for name in wanted if name not in too_small))
    trials.refused[precision] = {name: too_small[name] for name in wanted if name in too_small}
    try:
        trials.judge_wanted(precision, _problems(turn, step, written), timed=timed)
    except DeadlinePassed:
        trials.refused[precision] |= dict.fromkeys(trials.wanted, NO_TIME)
    said = tuple(trials.verdicts)
    return ProvenKernels(proven=trials.proven, refused=trials.refused, verdicts=said)


def _none(precision: str, reason: str) -> ProvenKernels:
    refused = {precision: dict.fromkeys(LIBRARY, reason)}
    return ProvenKernels(proven={}, refused=refused, verdicts=())


def sites_of(turn: Turn, candidate: Candidate, written: Candidate) -> list[CapturedSite]:
    """Return the call sites of a candidate's step; the arm of the step as written finds them."""

    def compute() -> list[CapturedSite]:
        turn.schedule.check("look for call sites")
        # The graphs are traced in any case, and an arm that compiles nothing is ready sooner.
        precision = candidate.config.precision
        turn.tell("looking", title=f"call sites, {precision}")
        if turn.arms.is_live(written):
            found = turn.arms.live(written).call("sites", precision=precision)
            turn.arms.drop(written)  # it has imported the compiler, and is timed no more
        else:
            with ArmProcess(turn.arms.spec(written)) as arm:
                found = arm.call("sites", precision=precision)
        return [CapturedSite.from_json(site) for site in found]

    return turn.memo("sites", candidate.key(), list[CapturedSite], compute)


def _problems(turn: Turn, candidate: Candidate, written: Candidate) -> dict[str, list[Problem]]:
    """Return the problems of a step by the name of the library kernel that answers them."""
    problems: dict[str, list[Problem]] = defaultdict(list)
    for library, problem in problems_for(sites_of(turn, candidate, written)):
        problems[library].append(problem)
    return problems


def _undecided(entries: str) -> str:
    return f"{entries}: right, but not proven faster here"


@dataclass(kw_only=True)
class KernelTrials:
    """Judges one library kernel after another, until the stage's share of the budget is spent."""

    turn: Turn
    wanted: tuple[str, ...]
    proven: dict[str, dict[str, tuple[AnyKernel, ...]]] = field(default_factory=dict)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    verdicts: list[KernelVerdict] = field(default_factory=list)
    _then: dict[str, Kernel] = field(default_factory=dict)
    """By a kernel's hash, the one that is judged next: its compiler starts meanwhile."""

    def judge_wanted(
        self, precision: str, problems: dict[str, list[Problem]], *, timed: bool
    ) -> None:
        """Judge all wanted library kernels in one precision."""
        proven = self.proven.setdefault(precision, {})
        refused = self.refused.setdefault(precision, {})
        target = self.turn.device.target
        order = [
            kernel
            for name in self.wanted
            for kernel in LIBRARY[name].kernels(target)
            if any(problem.name == kernel.entry for problem in problems.get(name, ()))
        ]
        self._then = {one.hash: after for one, after in pairwise(order)}
        with Court(self.turn.ledger) as court:
            for name in self.wanted:
                kernels = LIBRARY[name].kernels(target)
                if name not in problems or not kernels:
                    no_site = "" if name in problems else NO_SITE
                    refused[name] = no_site or str(why_no_kernel(name, target))
                    continue
                reason = self._judge_one(court, name, kernels, problems[name], timed)
                called = {problem.name for problem in problems[name]}
                entries = [kernel for kernel in kernels if court.is_proven(kernel)]
                # A call site whose kernel is missing would run plain torch code, unfused.
                missing = [k.entry for k in kernels if k.entry in called and k not in entries]
                alternatives = LIBRARY[name].alternatives
                if any(kernel.entry in alternatives for kernel in entries):
                    missing = [entry for entry in missing if entry not in alternatives]
                if reason or missing or not entries:
                    refused[name] = reason or _undecided(", ".join(missing) or name)
                else:
                    proven[name] = tuple(self._installed(name, kernel) for kernel in entries)

    def _judge_one(
        self,
        court: Court,
        library: str,
        kernels: tuple[Kernel, ...],
        problems: list[Problem],
        timed: bool,
    ) -> str:
        """Judge one library kernel's entries; return the objection to installing it, or "".

        One entry that is not proven ends it: the others alone are not installed. Of alternatives,
        the first that is proven is enough.
        """
        alternatives, answered, objection = LIBRARY[library].alternatives, False, ""
        called = {problem.name for problem in problems}
        for kernel in kernels:
            if kernel.entry not in called:
                continue
            is_one = kernel.entry in alternatives
            if (is_one and answered) or (not timed and not court.is_proven(kernel)):
                continue
            objection = self._judge_entry(court, library, kernel, problems, timed)
            answered = answered or (is_one and not objection)
            if objection and not is_one:
                return objection
        return "" if answered else objection

    def _judge_entry(
        self, court: Court, library: str, kernel: Kernel, problems: list[Problem], timed: bool
    ) -> str:
        """Judge one entry at its call sites; return the objection to installing it, or ""."""
        for problem in problems:
            if problem.name != kernel.entry:
                continue
            asked = problem if timed else problem.untimed()
            judged = self.known_or_judged(court, kernel, asked)
            if timed and judged is not None and not court.is_proven(kernel):
                judged = self._asked_again(court, judged)
            if judged is None:
                return NO_TIME
            self.note(judged, library=library, kernel=kernel.entry)
            if judged.verdict.status not in ("proven", "correct"):
                return f"{kernel.entry}: {judged.verdict.status}, {judged.verdict.reason}"
            if timed and not court.is_proven(kernel):
                return _undecided(kernel.entry)
        return ""

    def note(self, judged: JudgedKernel, *, library: str, kernel: str) -> None:
        """Add a verdict to those that the turn's result lists."""
        found, problem = msgspec.structs.asdict(judged.verdict), judged.problem.name
        self.verdicts.append(
            KernelVerdict(**found, library=library, kernel=kernel, problem=problem)
        )

    def _asked_again(self, court: Court, judged: JudgedKernel) -> JudgedKernel:
        """Judge a right kernel of undecided speed once more, if its first verdict is this turn's.

        The rest of a library kernel is of no use without it. One that is clearly slower is not
        asked again.
        """
        ratio = judged.verdict.speedup.vs_reference
        if ratio is not None and ratio.high < 1.0:
            return judged
        kernel, problem = judged.kernel, judged.problem
        place = f"{kernel.hash}:{problem.hash}"
        if judged.verdict.status != "correct" or not self.turn.is_own("judged", place):
            return judged
        return (self._judged(court, kernel, problem) if self._has_time() else None) or judged

    def known_or_judged(
        self, court: Court, kernel: Kernel, problem: Problem
    ) -> JudgedKernel | None:
        """Return the ledger's verdict or a new one; None if there is no time for one."""
        turn, place = self.turn, f"{kernel.hash}:{problem.hash}"
        own, time_left = turn.is_own("judged", place), self._has_time()
        known = court.known(kernel, problem, self._terms(MOST_VERDICT_S))
        if known is None and (own or not time_left):
            # A kernel left unmeasured on a busy machine may be measured in another turn.
            known = court.last(kernel, problem)
        if known is not None:
            turn.recalled += not own
            turn.known("judged", place)
            return known
        return self._judged(court, kernel, problem) if time_left else None

    def _terms(self, limit_s: float) -> Terms:
        """Return the terms of a verdict on the turn's device; the first GPU needs no name."""
        device = self.turn.device
        return Terms(time_limit_s=limit_s, device=device.torch_name if device.index else "auto")

    def _has_time(self) -> bool:
        return self.turn.schedule.may_judge(self.turn.costs.verdict_s)

    def _judged(self, court: Court, kernel: Kernel, problem: Problem) -> JudgedKernel | None:
        """Judge it now; None if the stage ended before a verdict."""
        turn, place = self.turn, f"{kernel.hash}:{problem.hash}"
        turn.tell("judging", kernel=kernel.entry)
        limit_s, began_s = turn.schedule.verdict_s, turn.schedule.elapsed_s
        terms = self._terms(limit_s)
        judged = court.judge(kernel, problem, terms, fresh=True, then=self._then.get(kernel.hash))
        turn.costs.verdict_s = turn.schedule.elapsed_s - began_s
        verdict = judged.verdict
        if limit_s < MOST_VERDICT_S and verdict.status in ("timed_out", "unmeasured"):
            return None
        turn.memo("judged", place, str, lambda: verdict.status)
        turn.tell("judged", kernel=kernel.entry, status=verdict.status, reason=verdict.reason)
        return judged

    def _installed(self, library: str, kernel: Kernel) -> InstalledKernel:
        isa = self.turn.device.target
        return InstalledKernel(library=library, entry=kernel.entry, hash=kernel.hash, isa=isa)
