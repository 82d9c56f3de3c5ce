"""Find kernels for the regions of a workload's own graphs: in the ledger, then from the authors.

A region is known by its key, so a kernel that was written for any workload serves every other one
with the same region. Each is judged on this workload's problem before it is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from ratchet.base.errors import ArmFailure, DeadlinePassed
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import language_for
from ratchet.judge.problems.problem import Problem
from ratchet.judge.steps.arms import ArmProcess
from ratchet.train.graph.regions import REGION, region_name
from ratchet.train.levers import Lever, region_lever
from ratchet.train.recipe.candidate import Candidate
from ratchet.train.recipe.describe import ArmFacts
from ratchet.train.recipe.installed import InstalledKernel, RegionKernel
from ratchet.train.turn.headroom import SMALL_REGION_SHARE
from ratchet.train.turn.prove_kernels import NO_TIME, KernelTrials, ProvenKernels
from ratchet.train.turn.schedule import MEASURING, NO_ROOM, REGIONS
from ratchet.train.turn.screen import unused_regions
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.config import AROUND_GRAPHS
from ratchet.write.workload_writing import SHORTEST_S, Asked, write_all
from ratchet.write.write import Follow
from ratchet.write.writing_book import WritingBook
from ratchet.write.writing_result import WritingRequest

OF_A_REGION = re.compile(r"_[0-9a-f]{8}$")
"""End of the name of a region's problem: the start of its key."""
MOST_WRITTEN = 10
"""Regions that the authors write for in one turn."""
CANDIDATES = 5
"""Kernels that the search screens for one region. Its first schedules are seldom beaten by much, so
the time is better spent on further regions: the step decides, not the region alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadRegion:
    """A region of the step, as a turn needs it."""

    key: str
    problem: Problem
    gain_s: float
    """Seconds of a step that can still be won on it."""
    likely_s: float
    """The part of it that is likely won."""
    count: int = 1
    """Its calls in one step."""

    @property
    def lever(self) -> Lever:
        """Return the lever that installs its kernel."""
        return region_lever(self.problem.name, region_name(self.key))


@dataclass(kw_only=True)
class RegionTrials:
    """The regions of one turn's steps, and what is known of kernels for them."""

    turn: Turn

    def recall(self, kernels: ProvenKernels, steps: Sequence[Candidate]) -> ProvenKernels:
        """Add what the ledger has for the regions of these steps, judged where it was not."""
        if not self._may_install() or not any(map(OF_A_REGION.search, self._proven_problems())):
            return kernels
        for step in steps:
            try:
                regions = self.regions_of(step)
            except ArmFailure as error:
                self._leave_out("kernels for the step's own regions", error)
                return kernels
            kernels = self._added(kernels, step, regions)
        return kernels

    def may_write(self, best: Candidate) -> bool:
        """Return True if kernels for the regions of this step could be installed."""
        return self._may_install() and best.config.compile_mode is not None

    def write(self, kernels: ProvenKernels, best: Candidate, step_time_s: float) -> ProvenKernels:
        """Have the authors write for the regions of a step with the most to win, and add those.

        What the budget has no room for is left out, with the reason in the result.
        """
        turn, what = self.turn, REGIONS.what
        try:
            regions = self.regions_of(best)
        except ArmFailure as error:
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

    def _leave_out(self, what: str, error: ArmFailure) -> None:
        """Note why no regions are known: no time was left, or the process that looks died."""
        late = isinstance(error, DeadlinePassed)
        self.turn.leave_out(what, NO_TIME if late else str(error), for_want_of_budget=late)

    def _may_install(self) -> bool:
        """Return True if a kernel could be installed here at all."""
        turn = self.turn
        return turn.settings.try_lever is None and not turn.without_kernels

    def _proven_problems(self) -> Mapping[str, Sequence[str]]:
        return self.turn.ledger.proven_problems(self.turn.fingerprint)

    def regions_of(self, step: Candidate, *, batch_size: int | None = None) -> list[WorkloadRegion]:
        """Return the regions of a step with its library kernels; raise DeadlinePassed."""
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
        kernels: ProvenKernels,
        step: Candidate,
        regions: Iterable[WorkloadRegion],
        reasons: Mapping[str, str] | None = None,
    ) -> ProvenKernels:
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
            proven={**kernels.proven, precision: proven},
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
