"""Judge kernels before they are installed, on the problems and regions that the workload runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec

from ratchet.base import Json
from ratchet.base.errors import ArmFailure, OutOfTime
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY, why_no_kernel
from ratchet.judge.kernels.library.sources import language_for
from ratchet.judge.problems.problem import Problem
from ratchet.judge.steps.arms import ArmProcess
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.train.graph.capture import CapturedSite, problems_for
from ratchet.train.graph.regions import REGION, region_name
from ratchet.train.levers import Lever, region_lever
from ratchet.train.recipe import Candidate
from ratchet.train.recipe.facts import ArmFacts
from ratchet.train.recipe.installed import AnyKernel, InstalledKernel, RegionKernel
from ratchet.train.turn.headroom import SMALL_REGION_SHARE
from ratchet.train.turn.optimize_result import KernelVerdict
from ratchet.train.turn.schedule import (
    AUTHORING,
    JUDGING,
    MEASURING,
    MOST_VERDICT_S,
    NO_ROOM,
    REGIONS,
    SITES,
)
from ratchet.train.turn.screen import unused_regions
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.config import AROUND_GRAPHS
from ratchet.write.write import SHORTEST_S, Asked, Follow, write_all
from ratchet.write.writing_book import WritingBook
from ratchet.write.writing_result import WritingRequest

NO_TIME = "the budget ended before it was judged"
NO_SITE = "the step has no call site for it"


@dataclass(frozen=True, kw_only=True, slots=True)
class UsableKernels:
    """The kernels that may be installed in each precision, and the verdict on every kernel."""

    usable: dict[str, dict[str, tuple[AnyKernel, ...]]]
    """Precision -> library kernel -> its right entries, or region -> its proven ones."""
    refused: dict[str, dict[str, str]]
    """Precision of the step -> library kernel -> the reason why it may not be installed."""
    verdicts: tuple[KernelVerdict, ...]
    regions: dict[str, tuple[Lever, ...]] = field(default_factory=dict)
    """Precision of the step -> the levers of its own regions for which kernels were judged."""
    worth: dict[str, float] = field(default_factory=dict)
    """Upper bound of the seconds of a step that a region's lever can win, by name."""

    def of(self, precision: str) -> dict[str, tuple[AnyKernel, ...]]:
        return self.usable.get(precision, {})

    def left_out(self, precision: str) -> list[str]:
        """Return the library kernels that the budget had no room to judge."""
        return [name for name, why in self.refused.get(precision, {}).items() if why == NO_TIME]

    def joined(self, more: UsableKernels) -> UsableKernels:
        """Return both; for a precision that both know, `more` is what counts."""
        said = {(one.kernel, one.problem): one for one in (*self.verdicts, *more.verdicts)}
        return UsableKernels(
            usable={**self.usable, **more.usable},
            refused={**self.refused, **more.refused},
            verdicts=tuple(said.values()),
            regions={**self.regions, **more.regions},
            worth={**self.worth, **more.worth},
        )

    def why_not(self, precision: str) -> dict[str, str]:
        return self.refused.get(precision, dict.fromkeys(LIBRARY, "not judged in this precision"))


def judge_kernels(
    turn: Turn,
    step: Candidate,
    written: Candidate,
    wanted: Sequence[str],
) -> UsableKernels:
    """Judge whether the wanted library kernels are right on the call sites of a step.

    How fast they are is decided in the step. They are judged in the order of `wanted`, until the
    turn's stage ends.
    """
    precision = step.config.precision
    if turn.without_kernels:
        reasons = dict.fromkeys(LIBRARY, turn.without_kernels)
        return UsableKernels(usable={}, refused={precision: reasons}, verdicts=())
    trials = KernelTrials(turn=turn, wanted=tuple(wanted))
    try:
        trials.judge_wanted(precision, _problems(turn, step, written))
    except OutOfTime:
        trials.refused[precision] = dict.fromkeys(trials.wanted, NO_TIME)
    said = tuple(trials.verdicts)
    return UsableKernels(usable=trials.usable, refused=trials.refused, verdicts=said)


def sites_of(turn: Turn, candidate: Candidate, written: Candidate) -> list[CapturedSite]:
    """Return the call sites of a candidate's step; the arm of the step as written finds them."""

    def compute() -> list[CapturedSite]:
        turn.schedule.check("look for call sites")
        # The graphs are traced in any case, and an arm that compiles nothing is ready sooner.
        precision = candidate.config.precision
        turn.tell("looking", title=f"call sites, {precision}")
        with turn.schedule.doing(SITES):
            return [CapturedSite.from_json(site) for site in found_in(precision)]

    def found_in(precision: str) -> list[Json]:
        if turn.arms.is_live(written):
            # It runs on as before: 0.99 to 1.04 times as fast as one that was not asked
            # (llama-8m, 40 pairs on two Zen 3 cores).
            found = turn.arms.live(written).call("sites", precision=precision)
        else:
            with ArmProcess(turn.arms.spec(written)) as arm:
                found = arm.call("sites", precision=precision)
        return msgspec.convert(found, list[Json])

    return turn.memo("sites", candidate.key(), list[CapturedSite], compute)


def _problems(turn: Turn, candidate: Candidate, written: Candidate) -> dict[str, list[Problem]]:
    """Return the problems of a step by the name of the library kernel that answers them."""
    problems: dict[str, list[Problem]] = defaultdict(list)
    for library, problem in problems_for(sites_of(turn, candidate, written)):
        problems[library].append(problem)
    return problems


@dataclass(kw_only=True)
class KernelTrials:
    """Judges one library kernel after another, until the stage's share of the budget is spent."""

    turn: Turn
    wanted: tuple[str, ...]
    usable: dict[str, dict[str, tuple[AnyKernel, ...]]] = field(default_factory=dict)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    verdicts: list[KernelVerdict] = field(default_factory=list)
    _then: dict[str, Kernel] = field(default_factory=dict)
    """By a kernel's hash, the one that is judged next: its compiler starts meanwhile."""

    def judge_wanted(self, precision: str, problems: dict[str, list[Problem]]) -> None:
        usable = self.usable.setdefault(precision, {})
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
                found = self._judge_one(court, name, kernels, problems[name])
                if isinstance(found, str):
                    refused[name] = found
                else:
                    usable[name] = tuple(self._installed(name, kernel) for kernel in found)

    def _judge_one(
        self,
        court: Court,
        library: str,
        kernels: tuple[Kernel, ...],
        problems: list[Problem],
    ) -> list[Kernel] | str:
        """Return the entries of a library kernel to install, or the objection to installing it.

        A call site whose entry is missing would run plain torch code, unfused: one entry that is
        not right ends it. Of alternatives, the first that is right is enough.
        """
        alternatives, objection = LIBRARY[library].alternatives, NO_SITE
        right: list[Kernel] = []
        called = {problem.name for problem in problems}
        for kernel in kernels:
            is_one = kernel.entry in alternatives
            answered = any(one.entry in alternatives for one in right)
            if kernel.entry not in called or (is_one and answered):
                continue
            objection = self._judge_entry(court, library, kernel, problems)
            if not objection:
                right.append(kernel)
            elif not is_one:
                return objection
        chosen = called & set(alternatives)
        if chosen and not any(one.entry in chosen for one in right):
            return objection
        return right or objection

    def _judge_entry(
        self, court: Court, library: str, kernel: Kernel, problems: list[Problem]
    ) -> str:
        """Judge one entry at its call sites; return the objection to installing it, or ""."""
        for problem in problems:
            if problem.name != kernel.entry:
                continue
            judged = self.known_or_judged(court, kernel, problem.untimed())
            if judged is None:
                return NO_TIME
            self.note(judged, library=library, kernel=kernel.entry)
            if judged.verdict.status not in ("proven", "correct"):
                return f"{kernel.entry}: {judged.verdict.status}, {judged.verdict.reason}"
        if not court.is_right(kernel):
            return f"{kernel.entry}: right here but disproven on another problem"
        return ""

    def note(self, judged: JudgedKernel, *, library: str, kernel: str) -> None:
        """Add a verdict to those that the turn's result lists."""
        found, problem = msgspec.structs.asdict(judged.verdict), judged.problem.name
        self.verdicts.append(
            KernelVerdict(**found, library=library, kernel=kernel, problem=problem)
        )

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
            turn.known("judged", place)
            return known
        return self._judged(court, kernel, problem) if time_left else None

    def _terms(self, limit_s: float) -> Terms:
        """Return the terms of a verdict on the turn's device; the first GPU needs no name."""
        device = self.turn.device
        return Terms(time_limit_s=limit_s, device=device.torch_name if device.index else "auto")

    def _has_time(self) -> bool:
        turn = self.turn
        return turn.schedule.may_judge(turn.costs.verdict_s, beside=turn.arms.are_busy)

    def _judged(self, court: Court, kernel: Kernel, problem: Problem) -> JudgedKernel | None:
        """Judge it now; None if the stage ended before a verdict."""
        turn, place = self.turn, f"{kernel.hash}:{problem.hash}"
        turn.tell("judging", kernel=kernel.entry)
        limit_s, began_s = turn.schedule.verdict_s, turn.schedule.elapsed_s
        terms = self._terms(limit_s)
        with turn.schedule.doing(JUDGING):
            then = self._then.get(kernel.hash)
            judged = court.judge(kernel, problem, terms, fresh=True, then=then)
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


# Find kernels for the regions of a workload's own graphs: in the ledger, then from the authors.
#
# A region is known by its key, so a kernel that was written for any workload serves every other
# one with the same region. Each is judged on this workload's problem before it is installed.

OF_A_REGION = re.compile(r"_[0-9a-f]{8}$")
"""End of the name of a region's problem: the start of its key."""
MOST_WRITTEN = 10  # Regions that the authors write for in one turn
CANDIDATES = 5
"""Kernels that the search screens for one region. Its first schedules are seldom beaten by much, so
the time is better spent on further regions: the step decides, not the region alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadRegion:
    """A region of the step, as a turn needs it."""

    key: str
    problem: Problem
    gain_s: float  # Seconds of a step that can still be won on it
    likely_s: float  # The part of it that is likely won
    count: int = 1  # Its calls in one step

    @property
    def lever(self) -> Lever:
        return region_lever(self.problem.name, region_name(self.key))


@dataclass(kw_only=True)
class RegionTrials:
    """The regions of one turn's steps, and what is known of kernels for them."""

    turn: Turn

    def recall(self, kernels: UsableKernels, steps: Sequence[Candidate]) -> UsableKernels:
        """Add what the ledger has for the regions of these steps, judged where it was not."""
        proven = self.turn.ledger.proven_problems(self.turn.fingerprint)
        if not self._may_install() or not any(map(OF_A_REGION.search, proven)):
            return kernels
        for step in steps:
            try:
                regions = self.regions_of(step)
            except (ArmFailure, OutOfTime) as error:
                self._leave_out("kernels for the step's own regions", error)
                return kernels
            kernels = self._added(kernels, step, regions)
        return kernels

    def may_write(self, best: Candidate) -> bool:
        """Return True if kernels for the regions of this step could be installed."""
        return self._may_install() and best.config.compile_mode is not None

    def write(self, kernels: UsableKernels, best: Candidate, step_time_s: float) -> UsableKernels:
        """Have the authors write for the regions of a step with the most to win, and add those.

        What the budget has no room for is left out, with the reason in the result.
        """
        turn, what = self.turn, REGIONS.what
        try:
            regions = self.regions_of(best)
        except (ArmFailure, OutOfTime) as error:
            self._leave_out(what, error)
            return kernels
        known = kernels.of(best.config.precision)
        chosen = [
            one
            for one in sorted(regions, key=lambda one: -one.likely_s)
            if region_name(one.key) not in known and one.gain_s > SMALL_REGION_SHARE * step_time_s
        ][:MOST_WRITTEN]
        budget_s = turn.schedule.writing_s
        if not chosen or budget_s < SHORTEST_S:
            none = f"no region has {SMALL_REGION_SHARE:.1%} of the step to win"
            reason = NO_ROOM if chosen else none
            turn.leave_out(what, reason, for_want_of_budget=bool(chosen))
            return kernels
        reasons = self._written(best, chosen, budget_s)
        return self._added(kernels, best, chosen, reasons)

    def _leave_out(self, what: str, error: ArmFailure | OutOfTime) -> None:
        """Note why no regions are known: no time was left, or the process that looks died."""
        late = isinstance(error, OutOfTime)
        self.turn.leave_out(what, NO_TIME if late else str(error), for_want_of_budget=late)

    def _may_install(self) -> bool:
        """Return True if a kernel could be installed here at all."""
        turn = self.turn
        return turn.settings.try_lever is None and not turn.without_kernels

    def regions_of(self, step: Candidate, *, batch_size: int | None = None) -> list[WorkloadRegion]:
        """Return the regions of a step with its library kernels; raise OutOfTime."""
        turn = self.turn
        config = msgspec.structs.replace(
            step.config,
            **AROUND_GRAPHS,
            compile_mode=step.config.compile_mode or "default",
            kernels=tuple(n for n in step.config.kernels if not n.startswith(REGION)),
        )
        library = (one for one in step.kernels if isinstance(one, InstalledKernel))
        installed = tuple(one for one in library if one.library in config.kernels)
        plain = Candidate(title=step.title, config=config, kernels=installed)
        key = plain.key() if batch_size is None else f"{plain.key()}:{batch_size}"

        def compute() -> list[WorkloadRegion]:
            turn.schedule.check("look for regions")
            turn.tell("looking", title=f"regions, {config.precision}")
            measuring_s = MEASURING.of(turn.schedule.left_s)
            with ArmProcess(turn.arms.spec(plain, batch_size=batch_size)) as arm:
                found = arm.call("regions", measuring_s=measuring_s)
            return msgspec.convert(found, list[WorkloadRegion])

        return turn.memo("regions", key, list[WorkloadRegion], compute)

    def _added(
        self,
        kernels: UsableKernels,
        step: Candidate,
        regions: Iterable[WorkloadRegion],
        reasons: Mapping[str, str] | None = None,
    ) -> UsableKernels:
        """Return `kernels` with those that are proven for the regions.

        `reasons` says by key what came of a region without one; others without one are not named.
        """
        reasons, precision = reasons or {}, step.config.precision
        proven = dict(kernels.of(precision))
        refused = dict(kernels.refused.get(precision, {}))
        levers = {one.name: one for one in kernels.regions.get(precision, ())}
        worth, verdicts = dict(kernels.worth), list(kernels.verdicts)
        trials = KernelTrials(turn=self.turn, wanted=())
        with Court(self.turn.ledger) as court:
            for region in regions:
                found, reason = self._proven(trials, court, region)
                reason = reason or reasons.get(region.key, "")
                if found is None and not reason:
                    continue
                name = region.problem.name
                levers[region.lever.name] = region.lever
                worth[region.lever.name] = region.gain_s
                refused.pop(name, None)
                if found is None:
                    refused[name] = reason
                else:
                    proven[region_name(region.key)] = (found,)
        return replace(
            kernels,
            usable={**kernels.usable, precision: proven},
            refused={**kernels.refused, precision: refused},
            regions={**kernels.regions, precision: tuple(levers.values())},
            worth=worth,
            verdicts=(*verdicts, *trials.verdicts),
        )

    def _proven(
        self, trials: KernelTrials, court: Court, region: WorkloadRegion
    ) -> tuple[RegionKernel | None, str]:
        """Return the region's proven kernel, or the reason why a known one is none here."""
        book = WritingBook(self.turn.ledger, self.turn.fingerprint)
        name, here = region.problem.name, region.problem.hash
        kernel = book.best_of_region(name, here, language=language_for(self.turn.device.target))
        if kernel is None:
            return None, ""
        judged = trials.known_or_judged(court, kernel, region.problem)
        if judged is None:
            return None, NO_TIME
        trials.note(judged, library="region", kernel=kernel.name)
        if judged.verdict.status == "proven" and court.is_proven(kernel):
            return _installed(region, kernel), ""
        return None, f"{judged.verdict.status}, {judged.verdict.reason}"

    def _written(
        self, best: Candidate, chosen: Sequence[WorkloadRegion], budget_s: float
    ) -> dict[str, str]:
        """Have the authors write for these regions; return by key what came of those without one.

        A turn that is killed finds in the ledger what was proven before.
        """
        turn = self.turn
        key = ":".join([best.graph_key(), *(one.problem.hash[:16] for one in chosen)])

        def compute() -> dict[str, str]:
            turn.arms.close()  # their memory and cores belong to the judge now
            with turn.schedule.doing(AUTHORING):
                return write()

        def write() -> dict[str, str]:
            request = WritingRequest(
                budget_s=budget_s,
                seed=turn.settings.seed,
                authors=("search",),
                language=language_for(turn.device.target),
                device=turn.device.torch_name,
                candidates=CANDIDATES,
            )
            with Court(turn.ledger) as court:
                written = write_all(
                    turn.settings.title,
                    [
                        Asked(problem=one.problem, gain_s=one.gain_s, likely_s=one.likely_s)
                        for one in chosen
                    ],
                    request,
                    court=court,
                    follow=self._follow,
                    done=lambda result: turn.tell(
                        "written", problem=result.problem, status=result.status
                    ),
                )
            if written.interrupted:
                raise KeyboardInterrupt
            return {row.problem_hash: f"{row.status}, {row.reason}" for row in written.rows}

        said = turn.memo("written", key, dict[str, str], compute)
        return {one.key: said.get(one.problem.hash, NO_TIME) for one in chosen}

    def _follow(self, problem: Problem) -> Follow:
        self.turn.tell("writing", problem=problem.name)
        return lambda event, result: None


def never_called(recipe: Candidate, told: ArmFacts) -> list[str]:
    """Return a warning for each region of a recipe whose kernel served no call in the final run.

    `told` describes the recipe's arm. Another change may have taken the region out of the graphs.
    """
    return [
        f"the kernel for region {name.removeprefix(REGION)[:8]} served no call of the recipe's step"
        for name in unused_regions(recipe, told)
    ]


def _installed(region: WorkloadRegion, kernel: Kernel) -> RegionKernel:
    return RegionKernel(
        region=region.key,
        hash=kernel.hash,
        kernel=kernel.as_json(),
        problem=region.problem.as_json(),
    )
