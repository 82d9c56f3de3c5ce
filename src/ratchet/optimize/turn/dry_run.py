"""The changes that a turn would try, without trying them; on a GPU that is not here, emulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

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
from ratchet.optimize.turn.prove_kernels import NO_TIME, sites_of
from ratchet.optimize.turn.result import Change
from ratchet.optimize.turn.search import chosen_levers
from ratchet.optimize.turn.selection import applicable
from ratchet.optimize.turn.settings import Settings, check_settings
from ratchet.optimize.turn.state import Listener, Turn
from ratchet.problems.problem import Problem
from ratchet.problems.suites.shipped import SHAPES

_SHOWN: Final = ("name", "summary", "expected", "source", "changes_arithmetic")


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetKernel:
    """A library kernel's entry that a step would run on a target, judged by emulation."""

    library: str
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

    def to_json(self) -> dict[str, Any]:
        """Return all of it as one JSON object."""
        workload = self.workload.model_dump(mode="json")
        return {
            "workload": workload,
            "written": workload["written"],
            "levers": [{name: getattr(one, name) for name in _SHOWN} for one in self.levers],
            "skipped": [{"name": change.name, "reason": change.reason} for change in self.skipped],
            "target": self.target,
            "kernels": [asdict(one) for one in self.kernels],
        }


def dry_run(
    settings: Settings,
    listener: Listener = lambda event, details: None,
    *,
    target: str | None = None,
) -> DryRun:
    """Return what `optimize` would try, here or on an AMD GPU that is not here.

    With a `target`, such as `gfx942`, the step's call sites are found on this machine, and every
    Triton kernel that they would run is compiled for the target and executed by the emulator.
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
        kernels = () if target is None else _judged(turn, situation, target, levers)
        return DryRun(
            workload=facts,
            levers=tuple(levers),
            skipped=tuple(skipped),
            target=target,
            kernels=kernels,
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


def _step_on_gpu(turn: Turn, situation: Situation) -> Candidate:
    """Return the step in the arithmetic that the turn would try first on a GPU."""
    config = situation.written
    if config.precision == "fp32" and not turn.settings.keep_precision:
        config = config.model_copy(update={"precision": "bf16_master"})
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
    terms = Terms(target=target, time_limit_s=turn.schedule.verdict_s)
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
