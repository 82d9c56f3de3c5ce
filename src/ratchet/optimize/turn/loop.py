"""Run one optimization turn: describe, search, keep, write."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet import __version__
from ratchet.base.errors import DeadlinePassed, DeviceError, RatchetError
from ratchet.devices import ceilings as device_ceilings
from ratchet.devices.ceilings import Ceilings
from ratchet.devices.fingerprint import software
from ratchet.devices.probe import Device, probe
from ratchet.judge.steps.arms import ArmProcess
from ratchet.judge.trial.readiness import why_no_kernels
from ratchet.ledger import Ledger
from ratchet.measure.samples import Sample
from ratchet.optimize.levers import Lever, Situation
from ratchet.optimize.levers.base import why_bf16_is_slow
from ratchet.optimize.recipe.recipe import Recipe
from ratchet.optimize.step.candidate import with_config
from ratchet.optimize.turn.climb import applicable
from ratchet.optimize.turn.compose import compose, make_folder, make_recipe
from ratchet.optimize.turn.keep import keep
from ratchet.optimize.turn.prove_regions import never_called
from ratchet.optimize.turn.result import Change, OptimizeResult
from ratchet.optimize.turn.search import Search, chosen_levers
from ratchet.optimize.turn.settings import Settings, check_settings
from ratchet.optimize.turn.state import Listener, Turn
from ratchet.optimize.turn.steer import Steering
from ratchet.workloads.config import StepConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a turn, and the recipe that the user gets."""

    result: OptimizeResult
    recipe: Recipe
    samples: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The changes that would be tried, for `--dry-run`."""

    workload: dict[str, Any]
    written: StepConfig
    levers: tuple[Lever, ...]
    skipped: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as one JSON object."""
        return {
            "workload": self.workload,
            "written": self.written.model_dump(mode="json"),
            "levers": [
                {
                    "name": lever.name,
                    "summary": lever.summary,
                    "expected": lever.expected,
                    "source": lever.source,
                    "changes_arithmetic": lever.changes_arithmetic,
                }
                for lever in self.levers
            ],
            "skipped": [{"name": change.name, "reason": change.reason} for change in self.skipped],
        }


def optimize(settings: Settings, listener: Listener = lambda event, details: None) -> Outcome:
    """Run one turn and return its result and its recipe; `compose.write` writes them.

    Raises a RatchetError for anything the user can fix. A killed turn resumes from the ledger.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    check_settings(settings)
    make_folder(settings.out)
    with _open(settings, listener) as turn:
        _check_resume(turn)
        turn.forget_fruitless()
        _say_without_kernels(turn)
        identity = turn.ledger.start_turn(
            settings.key(), {"workload": settings.title}, fingerprint=turn.fingerprint
        )
        with turn.ledger.failing(identity):
            outcome = _run(turn, describe(turn), started_at)
        turn.ledger.record_measurements(identity, outcome.samples, purpose="proof")
        turn.ledger.record_recipe(identity, outcome.recipe.model_dump(mode="json"))
        found = {name: getattr(outcome.result, name) for name in ("floor", "recipe_is")}
        found["without_kernels"] = turn.without_kernels
        turn.ledger.finish_turn(identity, {"speedup": outcome.recipe.speedup, **found})
        return outcome


def _say_without_kernels(turn: Turn) -> None:
    """Say first, before anything is measured, that this machine can try no kernel."""
    if (reason := why_no_kernels()) is not None:
        turn.without_kernels = reason
        turn.warn(reason)
        turn.tell("warning", text=reason)


def plan(settings: Settings, listener: Listener = lambda event, details: None) -> Plan:
    """Return what `optimize` would try, without trying it."""
    check_settings(settings)
    with _open(settings, listener) as turn:
        description = describe(turn)
        situation = situation_of(turn, description)
        levers, skipped = applicable(
            chosen_levers(settings),
            situation,
            refused_kernels={},
            keep_arithmetic=settings.keep_precision,
        )
        return Plan(
            workload=description,
            written=situation.written,
            levers=tuple(levers),
            skipped=tuple(skipped),
        )


def describe(turn: Turn) -> dict[str, Any]:
    """Describe the workload in numbers; building it and running one step also checks it.

    The arm stays alive: the rivals are timed beside it.
    """

    def compute() -> dict[str, Any]:
        turn.tell("start", title="as written")
        began_s, gradients = turn.elapsed_s, turn.folder / "as_written.safetensors"
        rounded = turn.folder / "autocast.safetensors"
        turn.probe_vectors()
        with contextlib.ExitStack() as stack:
            arm = stack.enter_context(ArmProcess(turn.written_spec()))
            arm.call("gradients", path=str(gradients))
            may_round = _rounded_gradients(turn, arm, rounded)
            arm.run(1)
            setup_s = turn.elapsed_s - began_s
            step_time_s = arm.run(1).wall_time_s
            told = {**arm.call("workload"), **arm.describe()}
            stack.pop_all()
        written = with_config(StepConfig.model_validate(told["written"]), {})
        turn.adopt(written, arm, gradients)
        eager = written.config.model_copy(update={"precision": "bf16_autocast"})
        if may_round and eager.precision != written.config.precision:
            rounded.replace(turn.gradients_path(with_config(eager, {})))
        return {**told, "setup_s": setup_s, "step_time_s": step_time_s}

    try:
        description = turn.memo("workload", "describe", compute)
    except DeadlinePassed as error:
        raise RatchetError(
            f"the budget of {turn.settings.budget_s:.0f} s ended before the step ran twice: "
            "give a larger --budget"
        ) from error
    turn.peak_memory_bytes = int(description["peak_memory_bytes"])
    turn.is_random = bool(description.get("is_random"))  # older ledgers lack it
    for words in [*description.get("warnings", []), *_facts(description)]:
        turn.warn(words)
    return description


def _facts(description: dict[str, Any]) -> list[str]:
    """Return what the user should know of the step before it is changed, one line each."""
    facts = []
    if layers := description.get("uncompiled"):
        names = ", ".join(f"nn.{layer}" for layer in layers)
        facts.append(f"torch.compile does not enter {names}: that part of the step stays as it is")
    if description.get("own_step") and description.get("is_random"):
        facts.append(
            "the step draws random numbers. Compiled code draws others with the same odds, so "
            "gradients are compared with the draws of the step as written"
        )
    loss = description.get("loss")
    if loss is not None and not math.isfinite(loss):
        facts.append(
            f"the loss is {loss} after a few steps: what is measured is a run that has diverged"
        )
    return facts


def _rounded_gradients(turn: Turn, arm: ArmProcess, path: Path) -> bool:
    """Write the first step's gradients in bf16 autocast too, by which changes are judged later.

    False where bf16 would take too long, or where the step does not run in it.
    """
    slow = turn.ceilings is None or why_bf16_is_slow(turn.ceilings.gemm_flops_per_s)
    if slow or turn.settings.keep_precision:
        return False
    try:
        arm.call("gradients", path=str(path), autocast=True)
    except DeadlinePassed:
        raise
    except RatchetError:
        return False
    return True


def situation_of(turn: Turn, description: dict[str, Any]) -> Situation:
    """Collect the facts that the levers may use."""
    device = turn.device
    return Situation(
        device_kind=device.kind,
        vendor=device.vendor,
        isa=device.target,
        cores=device.threads,
        written=StepConfig.model_validate(description["written"]),
        optimizer_is_adamw=bool(description["optimizer_is_adamw"]),
        has_attention=bool(description["has_attention"]),
        why_not_fused=str(description.get("why_not_fused", "")),
        own_step=bool(description.get("own_step", False)),
        trainable_bytes=int(description["trainable_bytes"]),
        peak_memory_bytes=int(description["peak_memory_bytes"]),
        memory_bytes=device.memory_bytes,
        bf16_is_slow=(
            why_bf16_is_slow(turn.ceilings.gemm_flops_per_s) if turn.ceilings is not None else None
        ),
    )


def _run(turn: Turn, description: dict[str, Any], started_at: str) -> Outcome:
    situation = situation_of(turn, description)
    written = with_config(situation.written, {})
    turn.costs.note_setup(written, float(description.get("setup_s", 0.0)))
    turn.costs.note_step(written, float(description.get("step_time_s", 0.0)))
    steering = Steering(turn, situation)
    search = Search(turn=turn, situation=situation, steering=steering, written=written)
    found = search.run()
    kept = keep(found, search.prover)
    told = kept.proof.descriptions.get(kept.recipe.key())
    if told is not None:
        for warning in [*told.get("notes", ()), *never_called(kept.recipe, told)]:
            turn.warn(warning)
    after = steering.profile(kept.recipe, "after")
    turn.close_arms()
    turn.remember_scatter(search.sitting.scatter())
    result = compose(
        turn,
        description=description,
        kept=kept,
        found=found,
        reserved_s=search.reserved_s,
        before=steering.before(written),
        after=after,
        limit=steering.limit_after(found.baseline, kept, after),
        started_at=started_at,
    )
    return Outcome(
        result=result,
        recipe=make_recipe(turn, result, kept.recipe, written, description),
        samples=tuple(kept.proof.samples()),
    )


def _open(settings: Settings, listener: Listener) -> Turn:
    started_s = time.monotonic() - settings.gone_s
    device = probe(str(settings.options.get("device") or "auto"))
    ledger = Ledger.open(settings.ledger)
    ledger.here(device)
    return Turn(
        settings=settings,
        ledger=ledger,
        device=device,
        ceilings=_ceilings(device),
        software=versions(),
        software_fingerprint=software().fingerprint,
        listener=listener,
        started_s=started_s,
    )


def versions() -> dict[str, str]:
    """Return the versions reported beside every figure."""
    return {"ratchet": __version__, **asdict(software())}


def _ceilings(device: Device) -> Ceilings | None:
    try:
        return device_ceilings.measure(device, again="due")
    except DeviceError:
        return None


def _check_resume(turn: Turn) -> None:
    if not turn.settings.resume:
        return
    if turn.ledger.unfinished_turn(turn.settings.key(), fingerprint=turn.fingerprint) is None:
        raise RatchetError(
            f"there is no unfinished turn of {turn.settings.title!r} in this ledger: "
            "run it without --resume"
        )
