"""The changes that a turn would try, without trying them; on a GPU that is not here, emulated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import msgspec

from ratchet.amd.profile.sampled import UNPLAYED, Sampler
from ratchet.base.devices import catalogue
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.devices.ceilings import Roofline
from ratchet.base.errors import KernelError, RatchetError
from ratchet.base.process import Clock
from ratchet.base.serialise import document_of
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.references import LeastWork, least_work
from ratchet.judge.problems.suites.shipped import SHAPES
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import EmulatedCase, PredictedTime
from ratchet.train.graph.capture import kernels_of, shapes_of_each
from ratchet.train.graph.scope import CapturedSite
from ratchet.train.levers import PREFIX, Lever, Situation
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.recipe.facts import StepFacts
from ratchet.train.turn.arm import SHAPES_FACTORY as FACTORY
from ratchet.train.turn.judge_kernels import CANDIDATES, NO_SITE, NO_TIME, RegionTrials, sites_of
from ratchet.train.turn.loop import describe, opened, situation_of
from ratchet.train.turn.optimize_result import Change
from ratchet.train.turn.predicted_step import (
    PredictedStep,
    ProductTimes,
    TargetKernel,
    TargetSite,
    predicted_step,
)
from ratchet.train.turn.schedule import NO_ROOM
from ratchet.train.turn.search import chosen_levers
from ratchet.train.turn.selection import applicable
from ratchet.train.turn.settings import Settings, check_settings
from ratchet.train.turn.state import Listener, Turn
from ratchet.train.workloads.fake import StepProduct
from ratchet.train.workloads.names import fixes_batch_size, known
from ratchet.write.write import SHORTEST_S, Asked, Follow, write_all
from ratchet.write.writing_result import WritingRequest, WritingResult

# The step as a GPU runs it that is not here: its facts, its situation, its call sites.
#
# A built-in workload has a GPU's batch there, and is looked at on tensors without values; any
# other has the batch that it has here, and is looked at here.


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetStep:
    """A turn's step on the largest GPU of the catalogue that runs a target's code."""

    target: str
    device: CatalogueDevice | None
    facts: StepFacts
    situation: Situation
    sites: tuple[CapturedSite, ...]  # In the arithmetic that a turn would try first on a GPU
    products: tuple[StepProduct, ...]  # Of a built-in step
    candidate: Candidate  # The step in that arithmetic

    @property
    def device_name(self) -> str:
        return self.target if self.device is None else self.device.name


def step_on(turn: Turn, target: str) -> TargetStep:
    device = device_of(target)
    products: list[StepProduct] = []
    if turn.settings.workload in known():
        facts, sites, products = _without_values(turn)
    else:
        facts, sites = describe(turn), lambda step: sites_of(turn, step, with_config(written, {}))
    facts = msgspec.structs.replace(facts, device=target)
    situation = _situation_on(target, device, situation_of(turn.device, turn.ceilings, facts))
    written = situation.written
    config = written
    if config.precision == "fp32" and not turn.settings.keep_precision:
        config = msgspec.structs.replace(config, precision="bf16_master")
    candidate = with_config(config, {})
    step = TargetStep(
        target=target,
        device=device,
        facts=facts,
        situation=situation,
        sites=tuple(sites(candidate)),
        products=tuple(products),
        candidate=candidate,
    )
    needed, has = step.facts.peak_memory_bytes, step.situation.memory_bytes
    if step.device is not None and needed > has:
        turn.warn(
            f"the step as written needs at least {needed / 2**30:.0f} GiB, and {step.device_name} "
            f"has {has / 2**30:.0f} GiB: give a smaller --batch-size"
        )
    return step


def device_of(target: str) -> CatalogueDevice | None:
    """Return the largest device of the catalogue that runs a target's code."""
    found = catalogue.load().of_target(target)
    return max(found, key=lambda one: one.number("compute_units") or 0, default=None)


def _without_values(
    turn: Turn,
) -> tuple[StepFacts, Callable[[Candidate], list[CapturedSite]], list[StepProduct]]:
    """Return a built-in step's facts at a GPU's sizes, what finds its sites there, its products."""
    given = {"workload": turn.settings.workload, "options": turn.settings.options}
    spec = ArmSpec(
        name="shapes",
        title="the step's shapes",
        factory=FACTORY,
        arguments=given,
        deadline_s=turn.schedule.deadline_s,
    )

    def asked(call: str, **arguments: object) -> object:
        turn.schedule.check("look at the step")
        with ArmProcess(spec) as arm:
            return arm.call(call, **arguments)

    def facts() -> StepFacts:
        turn.tell("looking", title="the step at a GPU's sizes")
        return msgspec.convert(asked("workload"), StepFacts)

    def sites(step: Candidate) -> list[CapturedSite]:
        def compute() -> list[CapturedSite]:
            precision = step.config.precision
            turn.tell("looking", title=f"call sites, {precision}")
            return msgspec.convert(asked("sites", precision=precision), list[CapturedSite])

        return turn.memo("sites", f"{step.key()}:on a GPU", list[CapturedSite], compute)

    def products() -> list[StepProduct]:
        return msgspec.convert(asked("products"), list[StepProduct])

    return (
        turn.memo("workload", "on a GPU", StepFacts, facts),
        sites,
        turn.memo("products", "on a GPU", list[StepProduct], products),
    )


def _situation_on(target: str, device: CatalogueDevice | None, here: Situation) -> Situation:
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


# Lower bounds on the calls of a step's kernels on a GPU that is not here, by its paper figures.
#
# A call reads its inputs once, writes its outputs once and does the operations of its products;
# the bound is the larger of those bytes over the memory's bandwidth and those operations over the
# peak of their dtype. It leaves out latency, launches, caches, and arithmetic that is no product.

PEAKS: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("matrix_bf16",),
    "fp16": ("matrix_fp16",),
    "fp32": ("matrix_fp32", "vector_fp32"),
}
"""The catalogue's rates that a dtype's products may reach."""
OTHER_BATCH: Final = "hidden batch 3"  # A region's case at another batch than the captured one


def sites_of_entries(
    sites: Sequence[CapturedSite], device: CatalogueDevice | None
) -> dict[str, list[tuple[TargetSite, Problem, Case]]]:
    """Return the calls of each entry of the library's kernels that a step makes at these sites.

    Each has the problem at its sizes, and the case that they are.
    """
    found: dict[str, list[tuple[TargetSite, Problem, Case]]] = {}
    for site, shapes in shapes_of_each(sites):
        if site.pattern == "adamw":  # a verdict is at a few of the shapes, a step updates all
            shapes = replace(shapes, parameters=tuple(site.shapes.values()))
        for problem in LIBRARY[site.pattern].problems(shapes):
            # A norm with a residual has entries of its own.
            ops = [
                one
                for one in (site.pattern, f"add_{site.pattern}")
                if problem.name.startswith(f"{one}_")
            ]
            if not ops or site.kernel in ops:
                case = next(one for one in problem.cases if one.timed)
                work = _work_of(problem, case)
                if work is not None:
                    work = replace(work, flops=work.flops * _seen(site))
                one = TargetSite(shapes=site.shapes, calls=site.count)
                sized = bounded(one, work, device), problem, case
                found.setdefault(problem.name, []).append(sized)
    return found


def _seen(site: CapturedSite) -> float:
    """Return the share of a reference's products that a kernel must compute: a mask hides some."""
    if not site.scalars.get("causal"):
        return 1.0
    queries, keys = site.shapes["q"][-2], site.shapes["k"][-2]
    return (keys + 1) / (2 * keys) if queries == keys else 1.0


def bounded(site: TargetSite, work: LeastWork | None, device: CatalogueDevice | None) -> TargetSite:
    if work is None:
        return site
    site = replace(site, flops=work.flops, size_bytes=work.size_bytes)
    if device is None or (roof := _roof(device, work.dtype)) is None:
        return site
    return replace(
        site,
        bound_s=roof.time_bound_s(work.flops, work.size_bytes),
        bound_by=roof.bound(work.flops, work.size_bytes),
    )


def _roof(device: CatalogueDevice, dtype: str) -> Roofline | None:
    """Return what the catalogue says of a device; None if it lacks a figure."""
    peaks = [found for one in PEAKS[dtype] if (found := device.peak_flops_per_s(one))]
    bandwidth = device.memory_bytes_per_s()
    if not peaks or not bandwidth:
        return None
    return Roofline(flops_per_s=max(peaks), bytes_per_s=bandwidth)


def region_site(
    problem: Problem, calls: int, case: Case, device: CatalogueDevice | None
) -> TargetSite:
    """Return a region's calls at a case's sizes."""
    shapes = {f"input {place}": one.shape for place, one in enumerate(case.inputs)}
    work = _work_of(problem, case)
    return bounded(TargetSite(shapes=shapes, calls=calls), work, device)


def at_batch(problem: Problem, captured: int, wanted: int) -> Case | None:
    """Return the case at another batch, along the line through the captured one and a hidden one.

    None if the region has no case at another batch.
    """
    other = next((one for one in problem.cases if one.name == OTHER_BATCH), None)
    if other is None:
        return None
    step = int(OTHER_BATCH.rpartition(" ")[2]) - captured

    def sizes(one: TensorSpec, beside: TensorSpec) -> Iterator[int]:
        for size, more in zip(one.shape, beside.shape, strict=True):
            yield size + (more - size) * (wanted - captured) // step

    first = problem.cases[0]
    pairs = zip(first.inputs, other.inputs, strict=True)
    inputs = tuple(replace(one, shape=tuple(sizes(one, beside))) for one, beside in pairs)
    return replace(first, name=f"batch {wanted}", inputs=inputs)


def _work_of(problem: Problem, case: Case) -> LeastWork | None:
    """Return the work of a call; None if the reference needs values to tell."""
    try:
        return least_work(problem, case.inputs, case.scalars)
    except (RuntimeError, TypeError, NotImplementedError, RatchetError):
        return None


MOST_REGIONS: Final = 2  # Regions of the step that kernels are written for
OF_CORES: Final = "_for_cpu"
"""In the name of an op that no GPU's graph has: the cores' own attention."""
REGION_BATCH: Final = 2
"""The batch that regions are captured at. A size of one is a constant to torch's tracing: a kernel
for it would fit no other batch."""
REGION_S: Final = 120.0  # Seconds of writing for one of them
UNWRITTEN: Final = "no kernel was written for the step's own regions"
_SHOWN: Final = ("name", "summary", "expected", "source", "changes_arithmetic")


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """The changes that would be tried, with the reason for each that would not."""

    workload: StepFacts
    levers: tuple[Lever, ...]
    skipped: tuple[Change, ...]
    target: str | None = None
    device: str = ""  # The largest device of the catalogue that runs the target's code
    arithmetic: str = ""
    """The precision of the step whose call sites are listed: what a turn would try first."""
    sites: tuple[CapturedSite, ...] = ()
    """Call sites of the step on the target that a kernel of the library could take."""
    kernels: tuple[TargetKernel, ...] = ()
    predicted: PredictedStep | None = None
    warnings: tuple[str, ...] = ()  # Lines on things that were left out on the target, and why

    def to_json(self) -> dict[str, object]:
        workload = document_of(self.workload)
        return {
            "workload": workload,
            "written": workload["written"],
            "levers": [{name: getattr(one, name) for name in _SHOWN} for one in self.levers],
            "skipped": [{"name": change.name, "reason": change.reason} for change in self.skipped],
            "target": self.target,
            "device": self.device,
            "arithmetic": self.arithmetic,
            "sites": [asdict(one) for one in self.sites],
            "kernels": [one.to_json() for one in self.kernels],
            "predicted_step": None if self.predicted is None else self.predicted.to_json(),
            "warnings": list(self.warnings),
        }


def dry_run(
    settings: Settings,
    listener: Listener = lambda event, details: None,
    *,
    target: str | None = None,
    product_times: ProductTimes = lambda device, products: None,
) -> DryRun:
    """Return what `optimize` would try, here or on an AMD GPU that is not here.

    With a `target`, such as `gfx942`, the step's call sites are those of its batch on a GPU, with
    a lower bound for each kernel's calls. Every Triton kernel that they would run is compiled for
    the target and executed by the emulator, at small sizes, and its time at the step's sizes is
    predicted. `product_times` gives the time of the products that a library runs. The authors also
    write for the regions of the step's own graphs with the most to win.
    Raises a RatchetError for anything the user can fix.
    """
    check_settings(settings)
    with opened(settings, listener) as turn:
        there = None if target is None else step_on(turn, target)
        facts = describe(turn) if there is None else there.facts
        called = {one.pattern for one in there.sites} if there is not None else set(LIBRARY)
        levers, skipped = applicable(
            chosen_levers(settings),
            situation_of(turn.device, turn.ceilings, facts) if there is None else there.situation,
            refused_kernels={name: NO_SITE for name in LIBRARY if name not in called},
            keep_arithmetic=settings.keep_precision,
        )
        found = DryRun(workload=facts, levers=tuple(levers), skipped=tuple(skipped))
        if there is not None:
            clock = Clock.of(turn.schedule.left_s)
            with contextlib.closing(Sampler(there.target, clock)) as sampler:
                kernels = _judged(turn, there, sampler, levers)
                if settings.try_lever is None:
                    kernels += _written(turn, there, sampler)
            found = replace(
                found,
                target=target,
                device=there.device_name,
                arithmetic=there.candidate.config.precision,
                sites=_shown_sites(there, settings),
                kernels=kernels,
                predicted=None
                if settings.try_lever is not None
                else predicted_step(
                    kernels,
                    there.products,
                    product_times,
                    device=there.device_name,
                    precision=there.candidate.config.precision,
                ),
            )
        return replace(found, warnings=tuple(turn.warnings))


def _shown_sites(step: TargetStep, settings: Settings) -> tuple[CapturedSite, ...]:
    wanted = settings.try_lever or ""
    if not wanted.startswith(PREFIX):
        return step.sites
    return tuple(one for one in step.sites if wanted == f"{PREFIX}{one.pattern}")


def _judged(
    turn: Turn, step: TargetStep, sampler: Sampler, levers: Sequence[Lever]
) -> tuple[TargetKernel, ...]:
    """Judge the kernels of these levers for the step's call sites by the target's machine code."""
    wanted = {one.name.removeprefix(PREFIX) for one in levers if one.name.startswith(PREFIX)}
    sites = [one for one in step.sites if one.pattern in wanted]
    calls = sites_of_entries(sites, step.device)
    found: list[TargetKernel] = []
    with Court(turn.ledger) as court:
        for name, shapes in kernels_of(sites):
            small = replace(SHAPES["ci"], dtype=shapes.dtype)
            problems = {one.name: one for one in LIBRARY[name].problems(small)}
            for kernel in LIBRARY[name].kernels(step.target):
                if kernel.entry in problems and kernel.entry in calls:
                    row = TargetKernel(
                        library=name,
                        entry=kernel.entry,
                        sites=tuple(one for one, _, _ in calls[kernel.entry]),
                        status="unmeasured",
                        reason=NO_TIME,
                        device=step.device_name,
                    )
                    row = _one(turn, court, kernel, problems[kernel.entry], step, row)
                    if row.status == "correct":
                        sized = tuple(
                            _predicted(turn, sampler, kernel, *one) for one in calls[kernel.entry]
                        )
                        row = replace(row, sites=sized)
                    found.append(row)
    return tuple(found)


def _predicted(
    turn: Turn, sampler: Sampler, kernel: Kernel, site: TargetSite, problem: Problem, case: Case
) -> TargetSite:
    """Return a site with the predicted time of one call, from the ledger or new."""

    def compute() -> PredictedTime:
        turn.tell("predicting", kernel=kernel.entry)
        call = sampler.call(kernel, problem, case)
        if call.predicted is None:  # not remembered: it may be for want of time or memory
            raise KernelError(call.dropped or UNPLAYED)
        return call.predicted

    if not turn.schedule.may_judge(0.0):
        return replace(site, no_prediction=NO_TIME)
    sizes = [one.shape for one in case.inputs]
    key = f"{kernel.hash}:{problem.hash}:{sizes}:{sampler.device}"
    try:
        return replace(site, predicted=turn.memo("predicted", key, PredictedTime, compute))
    except KernelError as error:
        return replace(site, no_prediction=str(error))


def _written(turn: Turn, step: TargetStep, sampler: Sampler) -> tuple[TargetKernel, ...]:
    """Write Triton for the regions of the step with the most to win, judged by machine code.

    The regions are those of a small batch: an emulator is a thousand times slower than a GPU.
    """
    batch_size = None if fixes_batch_size(turn.settings.workload) else REGION_BATCH
    try:
        regions = RegionTrials(turn=turn).regions_of(step.candidate, batch_size=batch_size)
    except RatchetError as error:
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
        target=step.target,
        candidates=CANDIDATES,
    )
    results: list[WritingResult] = []

    def follow(problem: Problem) -> Follow:
        turn.tell("writing", problem=problem.name)
        return lambda event, result: None

    with Court(turn.ledger) as court:
        written = write_all(
            turn.settings.title,
            [Asked(problem=one.problem, gain_s=one.gain_s) for one in chosen],
            request,
            court=court,
            follow=follow,
            done=results.append,
        )
    regions_of = {one.problem.hash: one for one in chosen}
    best = {one.problem_hash: one.best for one in results}
    size = step.facts.batch_size
    found = []
    for row in written.rows:
        region, one = regions_of[row.problem_hash], best.get(row.problem_hash)
        case: Case | None = region.problem.cases[0]
        if batch_size is not None and size is not None:
            case = at_batch(region.problem, batch_size, size)
        site = case and region_site(region.problem, region.count, case, step.device)
        if case and site and one is not None and row.status == "correct":
            kernel = Kernel(name=one.name, language="triton", source=one.source, entry=one.entry)
            site = _predicted(turn, sampler, kernel, site, region.problem, case)
        line = TargetKernel(
            library="region",
            entry=row.problem,
            sites=(site,) if site else (),
            status=row.status,
            reason=row.reason,
            device=step.device_name,
        )
        found.append(line if one is None else _with_estimate(line, one.verdict.emulated))
    return tuple(found)


def _with_estimate(row: TargetKernel, cases: Sequence[EmulatedCase]) -> TargetKernel:
    """Return a row with the bound and the estimate of its verdict's first case."""
    for case in cases[:1]:
        bounds = [one.time_s for one in case.bounds[:1]]
        row = replace(
            row,
            emulated_bound_s=bounds[0] if bounds else None,
            estimated_speedup=case.estimated_speedup,
        )
    return row


def _one(
    turn: Turn,
    court: Court,
    kernel: Kernel,
    problem: Problem,
    step: TargetStep,
    row: TargetKernel,
) -> TargetKernel:
    """Return a kernel's row with its verdict, from the ledger or new."""
    terms = Terms(target=step.target, time_limit_s=turn.schedule.verdict_s, compared=True)
    judged = court.known(kernel, problem, terms)
    if judged is None:
        if not turn.schedule.may_judge(0.0):
            return row
        turn.tell("judging", kernel=kernel.entry)
        judged = court.judge(kernel, problem, terms, fresh=True)
        status, reason = judged.verdict.status, judged.verdict.reason
        turn.tell("judged", kernel=kernel.entry, status=status, reason=reason)
    verdict = judged.verdict
    row = replace(row, status=verdict.status, reason=verdict.reason)
    return _with_estimate(row, verdict.emulated)
