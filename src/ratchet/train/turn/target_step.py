"""The step as a GPU runs it that is not here: its facts, its situation, its call sites.

A built-in workload has a GPU's batch there, and is looked at on tensors without values; any other
has the batch that it has here, and is looked at here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from ratchet.base.devices import catalogue
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.train.graph.scope import CapturedSite
from ratchet.train.levers import Situation
from ratchet.train.recipe.candidate import Candidate, with_config
from ratchet.train.recipe.describe import StepFacts
from ratchet.train.turn.loop import describe, situation_of
from ratchet.train.turn.prove_kernels import sites_of
from ratchet.train.turn.shapes_arm import FACTORY
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.names import known


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetStep:
    """A turn's step on the largest GPU of the catalogue that runs a target's code."""

    target: str
    device: CatalogueDevice | None
    facts: StepFacts
    situation: Situation
    sites: tuple[CapturedSite, ...]
    """In the arithmetic that a turn would try first on a GPU."""
    candidate: Candidate
    """The step in that arithmetic."""

    @property
    def device_name(self) -> str:
        return self.target if self.device is None else self.device.name


def step_on(turn: Turn, target: str) -> TargetStep:
    """Return the turn's step on a target."""
    device = device_of(target)
    if turn.settings.workload in known():
        facts, sites = _without_values(turn)
    else:
        facts, sites = describe(turn), lambda step: sites_of(turn, step, with_config(written, {}))
    facts = msgspec.structs.replace(facts, device=target)
    situation = _situation_on(target, device, situation_of(turn, facts))
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
        candidate=candidate,
    )
    _warn_of_memory(turn, step)
    return step


def device_of(target: str) -> CatalogueDevice | None:
    """Return the largest device of the catalogue that runs a target's code."""
    found = catalogue.load().of_target(target)
    return max(found, key=lambda one: one.number("compute_units") or 0, default=None)


def _without_values(turn: Turn) -> tuple[StepFacts, Callable[[Candidate], list[CapturedSite]]]:
    """Return a built-in step's facts at a GPU's sizes, and what finds its call sites there."""
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

    return turn.memo("workload", "on a GPU", StepFacts, facts), sites


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


def _warn_of_memory(turn: Turn, step: TargetStep) -> None:
    needed, has = step.facts.peak_memory_bytes, step.situation.memory_bytes
    if step.device is not None and needed > has:
        turn.warn(
            f"the step as written needs at least {needed / 2**30:.0f} GiB, and {step.device_name} "
            f"has {has / 2**30:.0f} GiB: give a smaller --batch-size"
        )
