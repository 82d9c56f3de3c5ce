"""The changes that a turn would try, without trying them; on a GPU that is not here, emulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Final

import msgspec

from ratchet.authors.workload_writing import SHORTEST_S, Asked, RegionRow, write_all
from ratchet.authors.write import Follow
from ratchet.authors.writing_result import WritingRequest, WritingResult, WrittenKernel
from ratchet.base.errors import ArmFailure
from ratchet.base.serialise import document_of
from ratchet.court.court import Court
from ratchet.court.terms import Terms
from ratchet.devices import catalogue
from ratchet.graph.capture import CapturedSite, kernels_of
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LIBRARY
from ratchet.optimize.levers import Lever, Situation
from ratchet.optimize.levers.kernels import PREFIX
from ratchet.optimize.step.candidate import Candidate, with_config
from ratchet.optimize.step.describe import StepFacts
from ratchet.optimize.turn.loop import describe, opened, situation_of
from ratchet.optimize.turn.optimize_result import Change
from ratchet.optimize.turn.prove_kernels import NO_TIME, sites_of
from ratchet.optimize.turn.prove_regions import CANDIDATES, RegionTrials
from ratchet.optimize.turn.schedule import NO_ROOM
from ratchet.optimize.turn.search import chosen_levers
from ratchet.optimize.turn.selection import applicable
from ratchet.optimize.turn.settings import Settings, check_settings
from ratchet.optimize.turn.state import Listener, Turn
from ratchet.problems.problem import Problem
from ratchet.problems.suites.shipped import SHAPES
from ratchet.workloads.names import fixes_batch_size

MOST_REGIONS: Final = 2
"""Regions of the step that kernels are written for."""
OF_CORES: Final = "_for_cpu"
"""In the name of an op that no GPU's graph has: the cores' own attention."""
REGION_BATCH: Final = 2
"""The batch that regions are captured at. A size of one is a constant to torch's tracing: a kernel
for it would fit no other batch."""
REGION_S: Final = 120.0
"""Seconds of writing for one of them."""
UNWRITTEN: Final = "no kernel was written for the step's own regions"
_SHOWN: Final = ("name", "summary", "expected", "source", "changes_arithmetic")


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetKernel:
    """A library kernel's entry that a step would run on a target, judged by emulation."""

    library: str
    """The kernel of the library, or `region` for a kernel written for the step's own graphs."""
    entry: str
    sites: int
    """Call sites of the library kernel in one step."""
    shapes: str
    """Sizes of the largest of them, by the op's argument."""
    status: str
    """The verdict's status, at the library's test sizes and the step's dtype."""
    reason: str
    device: str = ""
    """The largest device of the catalogue that runs the target's code."""
    bound_s: float | None = None
    """Lower bound on the time of one call there, at the test sizes; estimated, never measured."""
    estimated_speedup: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """The changes that would be tried, with the reason for each that would not."""

    workload: StepFacts
    levers: tuple[Lever, ...]
    skipped: tuple[Change, ...]
    target: str | None = None
    kernels: tuple[TargetKernel, ...] = ()
    warnings: tuple[str, ...] = ()
    """Lines on things that were left out on the target, and why."""

    def to_json(self) -> dict[str, object]:
        workload = document_of(self.workload)
        return {
            "workload": workload,
            "written": workload["written"],
            "levers": [{name: getattr(one, name) for name in _SHOWN} for one in self.levers],
            "skipped": [{"name": change.name, "reason": change.reason} for change in self.skipped],
            "target": self.target,
            "kernels": [asdict(one) for one in self.kernels],
            "warnings": list(self.warnings),
        }


def dry_run(
    settings: Settings,
    listener: Listener = lambda event, details: None,
    *,
    target: str | None = None,
) -> DryRun:
    """Return what `optimize` would try, here or on an AMD GPU that is not here.

    With a `target`, such as `gfx942`, the step's call sites are found on this machine, and every
    Triton kernel that they would run is compiled for the target and executed by the emulator. The
    authors also write for the regions of the step's own graphs with the most to win.
    Raises a RatchetError for anything the user can fix.
    """
    check_settings(settings)
    with opened(settings, listener) as turn:
        facts = describe(turn)
        situation = situation_of(turn, facts)
        if target is not None:
            situation = situation_on(target, situation)
        levers, skipped = applicable(
            chosen_levers(settings),
            situation,
            refused_kernels={},
            keep_arithmetic=settings.keep_precision,
        )
        kernels: tuple[TargetKernel, ...] = ()
        if target is not None:
            kernels = _judged(turn, situation, target, levers)
            if settings.try_lever is None:
                kernels += _written(turn, situation, target)
        return DryRun(
            workload=facts,
            levers=tuple(levers),
            skipped=tuple(skipped),
            target=target,
            kernels=kernels,
            warnings=tuple(turn.warnings),
        )


def situation_on(target: str, here: Situation) -> Situation:
    """Return the situation of the same step on the largest AMD GPU that runs a target's code."""
    device = _device(target)
    memory = device.number("memory") if device is not None else None
    return replace(
        here,
        device_kind="cuda",
        vendor="AMD",
        target=target,
        rocm=True,
        bf16_is_slow=None,
        memory_bytes=int(memory * 2**30) if memory else here.memory_bytes,
    )


def _device(target: str) -> catalogue.CatalogueDevice | None:
    fitting = [
        one
        for one in catalogue.load().devices.values()
        if (found := one.get("target")) and found.value == target
    ]
    return max(fitting, key=lambda one: one.number("compute_units") or 0, default=None)


def _judged(
    turn: Turn, situation: Situation, target: str, levers: Sequence[Lever]
) -> tuple[TargetKernel, ...]:
    """Judge the kernels of these levers for the step's call sites by the target's machine code."""
    wanted = {one.name.removeprefix(PREFIX) for one in levers if one.name.startswith(PREFIX)}
    written = with_config(situation.written, {})
    sites = sites_of(turn, _step_on_gpu(turn, situation), written)
    found: list[TargetKernel] = []
    with Court(turn.ledger) as court:
        for name, shapes in kernels_of([one for one in sites if one.pattern in wanted]):
            own = [site for site in sites if site.pattern == name]
            small = replace(SHAPES["ci"], dtype=shapes.dtype)
            problems = {one.name: one for one in LIBRARY[name].problems(small)}
            for kernel in LIBRARY[name].kernels(target):
                if (problem := problems.get(kernel.entry)) is not None:
                    found.append(_one(turn, court, target, kernel, problem, own))
    return tuple(found)


def _written(turn: Turn, situation: Situation, target: str) -> tuple[TargetKernel, ...]:
    """Write Triton for the regions of the step with the most to win, judged by machine code.

    The regions are those of a small batch: an emulator is a thousand times slower than a GPU.
    """
    step = _step_on_gpu(turn, situation)
    batch_size = None if fixes_batch_size(turn.settings.workload) else REGION_BATCH
    try:
        regions = RegionTrials(turn=turn).regions_of(step, batch_size=batch_size)
    except ArmFailure as error:
        turn.warn(f"{UNWRITTEN}: {error}")
        return ()
    there = [one for one in regions if OF_CORES not in one.problem.text]
    chosen = sorted(there, key=lambda one: -one.likely_s)[:MOST_REGIONS]
    left_s = turn.settings.budget_s - turn.schedule.elapsed_s  # nothing comes after it
    budget_s = min(REGION_S * len(chosen), left_s)
    if chosen and budget_s < SHORTEST_S:
        turn.warn(f"{UNWRITTEN}: {NO_ROOM}; raise --budget")
    if not chosen or budget_s < SHORTEST_S:
        return ()
    request = WritingRequest(
        budget_s=budget_s,
        seed=turn.settings.seed,
        authors=("search",),
        language="triton",
        device="cpu",
        target=target,
        candidates=CANDIDATES,
    )
    results: list[WritingResult] = []
    with Court(turn.ledger) as court:
        written = write_all(
            turn.settings.title,
            [Asked(problem=one.problem, gain_s=one.gain_s) for one in chosen],
            request,
            court=court,
            follow=lambda problem: _told(turn, problem),
            done=results.append,
        )
    problems = {one.problem.hash: one.problem for one in chosen}
    best = {one.problem_hash: one.best for one in results}
    return tuple(
        _region_row(row, problems[row.problem_hash], best.get(row.problem_hash))
        for row in written.rows
    )


def _told(turn: Turn, problem: Problem) -> Follow:
    turn.tell("writing", problem=problem.name)
    return lambda event, result: None


def _region_row(result: RegionRow, problem: Problem, best: WrittenKernel | None) -> TargetKernel:
    """Return the line of a region, with the best kernel that the authors wrote for it."""
    shapes = (str(list(one.shape)) for one in problem.cases[0].inputs)
    row = TargetKernel(
        library="region",
        entry=result.problem,
        sites=1,
        shapes=", ".join(islice(shapes, 3)),
        status=result.status,
        reason=result.reason,
    )
    for case in () if best is None else best.verdict.emulated[:1]:
        for bound in case.bounds[:1]:
            row = replace(row, device=bound.device, bound_s=bound.time_s)
        row = replace(row, estimated_speedup=case.estimated_speedup)
    return row


def _step_on_gpu(turn: Turn, situation: Situation) -> Candidate:
    """Return the step in the arithmetic that the turn would try first on a GPU."""
    config = situation.written
    if config.precision == "fp32" and not turn.settings.keep_precision:
        config = msgspec.structs.replace(config, precision="bf16_master")
    return with_config(config, {})


def _one(
    turn: Turn,
    court: Court,
    target: str,
    kernel: Kernel,
    problem: Problem,
    sites: list[CapturedSite],
) -> TargetKernel:
    largest = max(sites, key=lambda site: sum(map(len, site.shapes.values())))
    about = TargetKernel(
        library=sites[0].pattern,
        entry=kernel.entry,
        sites=sum(site.count for site in sites),
        shapes=", ".join(f"{k} {list(v)}" for k, v in list(largest.shapes.items())[:3]),
        status="unmeasured",
        reason=NO_TIME,
    )
    terms = Terms(target=target, time_limit_s=turn.schedule.verdict_s, compared=True)
    judged = court.known(kernel, problem, terms)
    if judged is None:
        if not turn.schedule.may_judge(0.0):
            return about
        turn.tell("judging", kernel=kernel.entry)
        judged = court.judge(kernel, problem, terms, fresh=True)
        status, reason = judged.verdict.status, judged.verdict.reason
        turn.tell("judged", kernel=kernel.entry, status=status, reason=reason)
    verdict = judged.verdict
    about = replace(about, status=verdict.status, reason=verdict.reason)
    for case in verdict.emulated[:1]:
        for bound in case.bounds[:1]:
            about = replace(about, device=bound.device, bound_s=bound.time_s)
        about = replace(about, estimated_speedup=case.estimated_speedup)
    return about
