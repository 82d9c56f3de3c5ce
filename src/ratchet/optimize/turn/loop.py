"""Run one optimization turn: baseline, explain, kernels, climb, prove, write."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ratchet import __version__
from ratchet.devices import ceilings as device_ceilings
from ratchet.devices.ceilings import Ceilings
from ratchet.devices.fingerprint import software
from ratchet.devices.probe import Device, probe
from ratchet.errors import DeadlinePassed, DeviceError, RatchetError
from ratchet.judge.steps.arms import ArmProcess
from ratchet.ledger import Ledger
from ratchet.measure.samples import Sample
from ratchet.optimize.levers import LEVERS, Lever, Situation, all_levers, kernel_levers
from ratchet.optimize.levers.base import why_bf16_is_slow
from ratchet.optimize.levers.kernels import PREFIX
from ratchet.optimize.levers.operators import BF16_WEIGHTS
from ratchet.optimize.recipe.recipe import Recipe
from ratchet.optimize.step.candidate import Candidate, with_config
from ratchet.optimize.turn.baseline import Baseline, find_baseline, search_ends_s
from ratchet.optimize.turn.climb import Climb, Climber, applicable
from ratchet.optimize.turn.compose import compose, make_folder, make_recipe
from ratchet.optimize.turn.keep import Found, Kept, keep, keeps_arithmetic, roles
from ratchet.optimize.turn.limit import ranked, too_small
from ratchet.optimize.turn.losses import compare_losses, comparison_s
from ratchet.optimize.turn.prove import prove
from ratchet.optimize.turn.prove_kernels import ProvenKernels, prove_kernels
from ratchet.optimize.turn.prove_regions import RegionTrials, never_called
from ratchet.optimize.turn.result import Change, Decision, LossResult, OptimizeResult
from ratchet.optimize.turn.screen import new_screening_s
from ratchet.optimize.turn.settings import Settings, check_settings
from ratchet.optimize.turn.state import Listener, Turn
from ratchet.optimize.turn.steer import Steering, Worth
from ratchet.workloads.config import StepConfig

KERNELS_SHARE = 0.5
"""Share of the time between rivals and final run; trying kernels in the step gets the rest."""

AGAIN_SHARE = 0.05
"""Share of the search's time up to which a second comparison of losses is reserved as well."""


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
        identity = turn.ledger.start_turn(
            settings.key(), {"workload": settings.title}, fingerprint=turn.fingerprint
        )
        with turn.ledger.failing(identity):
            outcome = _run(turn, describe(turn), started_at)
        turn.ledger.record_measurements(identity, outcome.samples, purpose="proof")
        turn.ledger.record_recipe(identity, outcome.recipe.model_dump(mode="json"))
        found = {name: getattr(outcome.result, name) for name in ("floor", "recipe_is")}
        turn.ledger.finish_turn(identity, {"speedup": outcome.recipe.speedup, **found})
        return outcome


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
        with contextlib.ExitStack() as stack:
            arm = stack.enter_context(ArmProcess(turn.written_spec()))
            arm.call("gradients", path=str(gradients))
            arm.run(1)
            setup_s = turn.elapsed_s - began_s
            step_time_s = arm.run(1).wall_time_s
            told = {**arm.call("workload"), **arm.describe()}
            stack.pop_all()
        written = with_config(StepConfig.model_validate(told["written"]), {})
        turn.adopt(written, arm, gradients)
        return {**told, "setup_s": setup_s, "step_time_s": step_time_s}

    try:
        description = turn.memo("workload", "describe", compute)
    except DeadlinePassed as error:
        raise RatchetError(
            f"the budget of {turn.settings.budget_s:.0f} s ended before the step ran twice: "
            "give a larger --budget"
        ) from error
    turn.peak_memory_bytes = int(description["peak_memory_bytes"])
    turn.warnings += description.get("warnings", [])
    return description


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
        trainable_bytes=int(description["trainable_bytes"]),
        peak_memory_bytes=int(description["peak_memory_bytes"]),
        memory_bytes=device.memory_bytes,
        bf16_is_slow=(
            why_bf16_is_slow(turn.ceilings.gemm_flops_per_s) if turn.ceilings is not None else None
        ),
    )


def chosen_levers(settings: Settings) -> list[Lever]:
    """Return all levers, or only the one named by `--try`."""
    if settings.try_lever is None:
        return [*LEVERS, *kernel_levers()]
    return [all_levers()[settings.try_lever]]


def _run(turn: Turn, description: dict[str, Any], started_at: str) -> Outcome:
    situation = situation_of(turn, description)
    written = with_config(situation.written, {})
    turn.costs.note_setup(written, float(description.get("setup_s", 0.0)))
    turn.costs.note_step(written, float(description.get("step_time_s", 0.0)))
    steering = Steering(turn, situation)
    baseline = find_baseline(turn, written, situation, steering.rule_out)
    found = _search(turn, situation, baseline, steering)
    kept = _prove(turn, baseline, found)
    if kept.proof is not None and kept.proof.timed("ratchet"):
        turn.warnings += never_called(kept.recipe, kept.proof.descriptions["ratchet"])
    after = steering.profile(kept.recipe, "after")
    turn.close_arms()
    result = compose(
        turn,
        description=description,
        baseline=baseline,
        kept=kept,
        found=found,
        before=steering.before(written),
        after=after,
        limit=steering.limit_after(baseline, kept, after),
        started_at=started_at,
    )
    return Outcome(
        result=result,
        recipe=make_recipe(turn, result, kept.recipe, written, description),
        samples=kept.proof.samples if kept.proof is not None else (),
    )


def _search(turn: Turn, situation: Situation, baseline: Baseline, steering: Steering) -> Found:
    """Judge the kernels and climb, in the part of the budget that the final run leaves.

    Changes of arithmetic require a comparison of losses, so time is reserved for it.
    """
    ends_s = search_ends_s(turn, baseline.written, baseline.best)
    reserved_s = turn.ends_s - ends_s
    trials = RegionTrials(turn=turn)
    with turn.stage(ends_s):
        worth = steering.worth(baseline)
        compares_s = _comparison_s(turn, situation, baseline)
        climbed_s = ends_s - (compares_s or 0.0)
        if baseline.best.config.precision == "bf16_autocast" and compares_s is not None:
            again_s = compares_s / 2
            climbed_s -= again_s if again_s < AGAIN_SHARE * turn.left_s() else 0.0
        kernels = _kernels(turn, situation, baseline, worth, climbed_s, trials)
        climb = partial(_climb, turn, situation, worth, baseline.modes)
        if compares_s is None:
            same = climb(kernels, baseline.start_same, keep=True)
            same, kernels = _with_written(trials, climb, kernels, same, worth, keep=True)
            return Found(same=same, best=same, kernels=kernels, losses=None, reserved_s=reserved_s)
        with turn.stage(climbed_s):
            best = climb(kernels, baseline.start, keep=False)
            best, kernels = _with_written(trials, climb, kernels, best, worth, keep=False)
        if keeps_arithmetic(best.best, baseline.written):
            return Found(same=best, best=best, kernels=kernels, losses=None, reserved_s=reserved_s)
        losses = _losses(turn, baseline.written, best.best)
        if losses is not None and not losses.passed:
            best, losses = _in_autocast(turn, baseline, climb, kernels, best, losses, ends_s)
        same = climb(kernels, baseline.start_same, keep=True)
        if losses is None or not losses.passed:
            best = _without_arithmetic(turn, same, best, losses)
        return Found(same=same, best=best, kernels=kernels, losses=losses, reserved_s=reserved_s)


def _with_written(
    trials: RegionTrials,
    climb: Callable[..., Climb],
    kernels: ProvenKernels,
    found: Climb,
    worth: Worth,
    *,
    keep: bool,
) -> tuple[Climb, ProvenKernels]:
    """Have the authors write for the regions of the climb's best step; climb on with the winners.

    The rest of the stage's time is theirs. Return the climb with what came of each region.
    """
    more = trials.write(kernels, found.best, worth.step_time_s)
    precision = found.best.config.precision
    known = {one.name for one in kernels.regions.get(precision, ())}
    fresh = [one for one in more.regions.get(precision, ()) if one.name not in known]
    if not fresh:
        return found, kernels
    above = climb(more, found.best, keep=keep, only=fresh)
    return Climb(best=above.best, changes=(*found.changes, *above.changes)), more


def _part(turn: Turn, ends_s: float, share: float) -> float:
    """Return when this share of the time left until `ends_s` will be spent."""
    return turn.spent_s + share * max(0.0, ends_s - turn.spent_s)


def _comparison_s(turn: Turn, situation: Situation, baseline: Baseline) -> float | None:
    """Return the seconds to reserve for comparing losses; None if there is nothing to compare.

    That is the case if no lever may change the arithmetic, or if the budget has no room.
    """
    changing = not turn.settings.keep_precision and any(
        lever.changes_arithmetic and lever.applies(situation) is None
        for lever in chosen_levers(turn.settings)
    )
    if not changing:
        return None
    needed_s = comparison_s(turn, baseline.written, baseline.best)
    if needed_s <= turn.left_s():
        return needed_s
    turn.leave_out("changes of the arithmetic", "the budget has no room to compare their losses")
    return None


def _kernels(
    turn: Turn,
    situation: Situation,
    baseline: Baseline,
    worth: Worth,
    ends_s: float,
    trials: RegionTrials,
) -> ProvenKernels:
    """Judge the library's kernels, those with the most time to win first, then the regions'."""
    levers = [one for one in kernel_levers() if one.name in _wanted_kernels(turn, situation)]
    names = [lever.name.removeprefix(PREFIX) for lever in ranked(levers, worth.by_lever)]
    reasons = {name: too_small(PREFIX + name, worth.by_lever, worth.step_time_s) for name in names}
    bundle_s = new_screening_s(turn, baseline.start)
    kernels_end_s = min(_part(turn, ends_s, KERNELS_SHARE), ends_s - bundle_s)
    steps = _to_capture(baseline, situation, turn.settings)
    small = {name: reason for name, reason in reasons.items() if reason is not None}
    with turn.stage(kernels_end_s):
        return trials.recall(prove_kernels(turn, steps, names, small), steps)


def _losses(turn: Turn, written: Candidate, best: Candidate) -> LossResult | None:
    """Compare how well small copies learn; None if the budget ended before that was known."""
    try:
        return compare_losses(turn, written, best)
    except DeadlinePassed:
        turn.leave_out("the comparison of losses", "the budget ended during it")
        return None


def _in_autocast(
    turn: Turn,
    baseline: Baseline,
    climb: Callable[..., Climb],
    kernels: ProvenKernels,
    best: Climb,
    losses: LossResult,
    ends_s: float,
) -> tuple[Climb, LossResult]:
    """Climb again from a rival in bf16 autocast, if it was bf16 weights whose losses differed.

    The losses of the step as written are known, so comparing takes half as long. Without time for
    that, or if these losses differ too, the climb and losses that were given come back.
    """
    tried = best.best.config.precision, baseline.best.config.precision
    if tried != ("bf16_master", "bf16_autocast"):
        return best, losses
    with turn.stage(ends_s - comparison_s(turn, baseline.written, baseline.best) / 2):
        found = climb(kernels, baseline.start, keep=False, weights=False)
    again = _losses(turn, baseline.written, found.best)
    if again is None or not again.passed:
        return best, losses
    turn.warnings.append(f"bf16 weights were dropped: {losses.detail}")
    refused = [
        one.model_copy(update={"decision": "refused", "reason": losses.detail, "basis": None})
        for one in best.changes
        if one.name == BF16_WEIGHTS.name
    ]
    return Climb(best=found.best, changes=(*found.changes, *refused)), again


def _without_arithmetic(turn: Turn, same: Climb, best: Climb, losses: LossResult | None) -> Climb:
    """Return the same-arithmetic climb, with the changes lost from the best climb noted."""
    reason = losses.detail if losses else "the budget ended before its losses were compared"
    turn.warnings.append(f"bf16 was dropped: {reason}")
    decision: Decision = "refused" if losses else "not_tried"
    lost = {
        one.name: one.model_copy(update={"decision": decision, "reason": reason, "basis": None})
        for one in best.changes
        if one.changes_arithmetic and one.decision == "kept"
    }
    changes = [lost.get(one.name, one) for one in same.changes]
    return Climb(best=same.best, changes=tuple(changes))


def _prove(turn: Turn, baseline: Baseline, found: Found) -> Kept:
    """Run the final comparison and decide what to keep."""
    arms = roles(baseline, found.same.best, found.best.best)
    proof = prove(turn, arms, rival="best_compile")
    return keep(baseline, found, proof)


def _climb(
    turn: Turn,
    situation: Situation,
    worth: Worth,
    modes: frozenset[str],
    kernels: ProvenKernels,
    start: Candidate,
    *,
    keep: bool,
    only: Sequence[Lever] | None = None,
    weights: bool = True,
) -> Climb:
    """Climb with all levers, those of the step's regions among them, or with `only` these.

    Without `weights`, they stay in fp32.
    """
    keep = keep or turn.settings.keep_precision
    precision = situation.written.precision
    if not keep and _may_use_bf16_weights(situation):
        precision = "bf16_master" if weights else start.config.precision
    if only is None:
        only = [*chosen_levers(turn.settings), *kernels.regions.get(precision, ())]
    if not weights:
        only = [lever for lever in only if lever.name != BF16_WEIGHTS.name]
    levers, skipped = applicable(
        only,
        situation,
        refused_kernels=kernels.why_not(precision),
        keep_arithmetic=keep,
    )
    if turn.settings.try_lever is not None:
        levers = [as_default(lever) for lever in levers]
    climber = Climber(
        turn=turn,
        situation=situation,
        proven=kernels.of(precision),
        modes=modes,
        worth={**worth.by_lever, **kernels.worth},
        step_time_s=worth.step_time_s,
    )
    found = climber.climb(start, levers)
    turn.close_arms()
    return Climb(best=found.best, changes=(*found.changes, *skipped))


def as_default(lever: Lever) -> Lever:
    """Return the lever as part of the bundle, so that the lever named by `--try` is tried."""
    return replace(lever, default=True)


def _wanted_kernels(turn: Turn, situation: Situation) -> set[str]:
    """Return the kernel levers that apply here; the others are not judged."""
    return {
        lever.name
        for lever in chosen_levers(turn.settings)
        if lever.name.startswith(PREFIX) and lever.applies(situation) is None
    }


def _to_capture(baseline: Baseline, situation: Situation, settings: Settings) -> list[Candidate]:
    """Return the steps whose call sites matter: bf16 weights first, then the written precision."""
    configs = [baseline.start_same.config]
    if _may_use_bf16_weights(situation) and not settings.keep_precision:
        precision = {"precision": "bf16_master"}
        configs.insert(0, baseline.start_same.config.model_copy(update=precision))
    return [with_config(config, {}) for config in configs]


def _may_use_bf16_weights(situation: Situation) -> bool:
    return situation.optimizer_is_adamw and situation.bf16_is_slow is None


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
