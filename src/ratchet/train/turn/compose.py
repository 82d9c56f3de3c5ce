"""Assemble the turn's result and write recipe.json, result.json and report.html."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ratchet.base import VERSION
from ratchet.base.devices import ceilings
from ratchet.base.devices.ceilings import Ceilings, above, mfu
from ratchet.base.devices.probe import Device, describe_device, software
from ratchet.base.errors import OutOfTime, RatchetError
from ratchet.base.files import write_whole
from ratchet.base.measure import Ratio
from ratchet.base.measure.estimate import ArmTime
from ratchet.base.serialise import document_of, encoded
from ratchet.train.recipe import Candidate, ModelSignature, Recipe
from ratchet.train.recipe.facts import ArmFacts, StepFacts
from ratchet.train.turn import schedule
from ratchet.train.turn.choice import LOSS_STAGE, ChosenRecipe, Found, roles
from ratchet.train.turn.optimize_result import (
    COMPARED,
    ArmResult,
    BudgetUse,
    CompileCost,
    GradientResult,
    OptimizeResult,
    Paste,
    Paths,
    StepLimit,
    StepProfile,
)
from ratchet.train.turn.prove import Proof
from ratchet.train.turn.rivals import Baseline, oracle_for
from ratchet.train.turn.schedule import NO_ROOM
from ratchet.train.turn.screen import check_gradients, gradients_key
from ratchet.train.turn.settings import Settings
from ratchet.train.turn.state import Turn
from ratchet.train.workloads.config import gemm_dtype
from ratchet.train.workloads.parallel import TunedLayout

TITLES = {
    "as_written": "as written",
    "best_compile": "torch.compile's best",
    "best_compile_same": "torch.compile's best, same arithmetic",
    "same_arithmetic": "Ratchet, arithmetic kept",
    "ratchet": "Ratchet",
}
FEWEST_TIMES = 5  # Samples of a step below which its own time has no interval
WIDEST = 3.0  # Its ends over each other, from which two launches say nothing about it
NO_ENDS = (None, None)
ABSENT = {
    "as_written": "the turn ended before the step as written was timed beside another",
    "best_compile": "the budget ended before torch.compile's step was timed",
    "best_compile_same": "the turn ended before torch.compile was timed in the written arithmetic",
    "same_arithmetic": "the turn ended before a change was tried in the written arithmetic",
    "ratchet": f"no recipe was timed: {NO_ROOM}",
}
"""By role, the reason why it has no figures."""


def compose(
    turn: Turn,
    *,
    facts: StepFacts,
    choice: ChosenRecipe,
    found: Found,
    before: StepProfile | None,
    after: StepProfile | None,
    limit: StepLimit | None,
    started_at: str,
) -> OptimizeResult:
    """Assemble the document from the results of the stages."""
    baseline, proof = found.baseline, choice.proof
    arms = roles(baseline, choice.same, choice.recipe)
    if not baseline.has_rival:
        arms = {"as_written": baseline.written}
    timed = _timed(turn, arms, proof, facts)
    out = turn.settings.out

    def beside(profile: StepProfile | None) -> StepProfile | None:
        if profile is None or not profile.trace:
            return profile
        return msgspec.structs.replace(profile, trace=str(out / Path(profile.trace).name))

    paths = Paths(
        recipe=str(out / "recipe.json"),
        result=str(out / "result.json"),
        report=str(out / "report.html"),
    )
    speedup = {name: proof.speedup(*pair) for name, pair in COMPARED.items()}
    floor = proof.floor
    return OptimizeResult(
        workload=turn.settings.title,
        source=facts.source,
        unit=facts.unit,
        device=describe_device(turn.device),
        versions=turn.software,
        command=turn.settings.command,
        started_at=started_at,
        duration_s=turn.schedule.elapsed_s,
        resumed=turn.recalled > 0,
        arms=list(timed.values()),
        speedup=speedup,
        floor={"low": floor.low, "high": floor.high} if floor is not None else None,
        not_measured=_not_measured(timed, speedup, found),
        best_compile=baseline.best.title if baseline.has_rival else "not timed",
        rivals=list(baseline.rivals),
        changes=list(choice.changes),
        profile_before=beside(before),
        profile_after=beside(after),
        gradients=_gradients(turn, baseline, choice.recipe),
        losses=found.losses.of(found.best.best),
        samples=proof.samples(),
        compile=_compile_cost(timed),
        paste=Paste(apply=[], undo=[])
        if choice.recipe_is == "as_written"
        else paste_lines(choice.recipe, paths.recipe, of_trainer=facts.of_trainer),
        paths=paths,
        verdicts=list(found.kernels.verdicts),
        warnings=list(turn.warnings),
        recipe_is=choice.recipe_is,
        recipe_because=choice.because,
        limit=limit,
        larger_batch=found.larger_batch,
        budget=BudgetUse(
            budget_s=turn.settings.budget_s,
            spent_s=turn.schedule.spent_s,
            reserved_for_proof_s=turn.schedule.reserved_s,
            launches=proof.launches,
            launches_asked=turn.settings.launches,
            omissions=list(turn.omissions),
            took_s=_took_s(turn),
            shortfall=None if choice.recipe_is == "proven" else found.shortfall,
        ),
    )


def _took_s(turn: Turn) -> dict[str, float]:
    turn.schedule.note_time()
    return {what: time_s for what, time_s in turn.schedule.took_s.items() if time_s > 0}


def ends_of(summary: ArmTime) -> tuple[float | None, float | None]:
    """Return the interval of an arm's time in s; none of few samples, or of launches far apart."""
    shown = summary.count >= FEWEST_TIMES and summary.high_s <= WIDEST * summary.low_s
    return (summary.low_s, summary.high_s) if shown else NO_ENDS


def _timed(
    turn: Turn, arms: Mapping[str, Candidate | None], proof: Proof, facts: StepFacts
) -> dict[str, ArmResult]:
    """Return the figures of each role, from the final run or else from a screening.

    Roles that were never timed are left out.
    """
    times_s: dict[str, tuple[float, float | None, float | None]] = {}
    for role, candidate in arms.items():
        if proof.timed(role):
            summary = proof.summary(role)
            times_s[role] = (summary.median_s, *ends_of(summary))
        elif candidate is not None and (step_s := turn.costs.steps_s.get(candidate.key())):
            times_s[role] = (step_s, *NO_ENDS)
    flops = facts.flops_per_step or 0.0
    reached = [
        (flops / step_s, gemm_dtype(candidate.config))
        for role, (step_s, *_) in times_s.items()
        if (candidate := arms[role]) is not None
    ]
    ceilings_here = ceilings_above(turn, reached)
    found = {}
    for role, (step_s, low_s, high_s) in times_s.items():
        candidate = arms[role]
        assert candidate is not None, "a role without a candidate was timed"
        # An eager step was seen ready late beside those that compile.
        eager = candidate.config.compile_mode is None
        told = proof.descriptions.get(candidate.key(), ArmFacts())
        found[role] = ArmResult(
            key=role,  # type: ignore[arg-type]
            title=TITLES[role],
            step_time_s=step_s,
            low_s=low_s,
            high_s=high_s,
            tokens_per_s=facts.tokens_per_batch / step_s,
            mfu=mfu(flops, step_s, ceilings_here, dtype=gemm_dtype(candidate.config))
            if ceilings_here
            else 0.0,
            peak_memory_bytes=told.peak_memory_bytes or turn.arms.peak_bytes(candidate),
            setup_time_s=turn.costs.plain_s if eager else turn.costs.setup_s(candidate),
            config=candidate.config,
        )
    return found


def _not_measured(
    timed: Mapping[str, ArmResult], speedup: Mapping[str, Ratio | None], found: Found
) -> dict[str, str]:
    """Return the reason for each figure that is null or absent, by its name in the result."""
    missing = {role: why for role, why in ABSENT.items() if role not in timed}
    for name, pair in COMPARED.items():
        if speedup[name] is None:
            absent = [missing[role] for role in pair if role in missing]
            missing[name] = absent[0] if absent else "too few launches timed both"
    best = found.best.best
    if found.losses.of(best) is None:
        lacks = found.shortfall is not None and LOSS_STAGE in found.shortfall.stages
        kept = found.losses.may_keep(best) and not lacks
        missing["losses"] = (
            "the arithmetic was not changed" if kept else "the budget had no room to compare them"
        )
    return missing


def ceilings_above(turn: Turn, reached: Sequence[tuple[float, str]]) -> Ceilings | None:
    """Return the ceilings, measured anew if a step beat them: they were taken on busy cores.

    `reached` has each step's FLOP/s and the dtype of its products.
    """

    def is_beaten(ceilings: Ceilings) -> bool:
        return any(above(ceilings, *one) for one in reached)

    known = turn.ceilings
    if known is None or not is_beaten(known):
        return known
    if not turn.schedule.may_start(schedule.CEILINGS, schedule.CEILINGS_S):
        turn.leave_out(schedule.CEILINGS.what, NO_ROOM)
        return known
    turn.ceilings = ceilings.unrefuted(turn.device, known, is_beaten)
    if is_beaten(turn.ceilings):
        turn.warnings.append("a step beat the measured ceiling, so its MFU may exceed 100 %")
    return turn.ceilings


def versions() -> dict[str, str]:
    """Return the versions reported beside every figure."""
    return {"ratchet": VERSION, **asdict(software())}


def make_recipe(
    settings: Settings,
    device: Device,
    best: Candidate,
    *,
    model: ModelSignature | None,
    optimizer: str,
    speedup: Mapping[str, Ratio | None],
    changes_arithmetic: bool,
    parallel: TunedLayout | None = None,
) -> Recipe:
    """Make the sealed recipe of a turn's best candidate."""
    return Recipe(
        workload=settings.title,
        device=device.fingerprint,
        device_name=device.model,
        software=software().fingerprint,
        versions=versions(),
        config=best.config,
        kernels=best.kernels,
        model=model,
        optimizer=optimizer,
        parallel=parallel,
        speedup={name: document_of(one) for name, one in speedup.items() if one is not None},
        changes_arithmetic=changes_arithmetic,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    ).sealed()


def write(result: OptimizeResult, recipe: Recipe, render: Callable[[OptimizeResult], str]) -> None:
    """Write the three files, each atomically."""
    try:
        recipe.save(Path(result.paths.recipe))
        write_whole(Path(result.paths.result), encoded(result, indent=2))
        write_whole(Path(result.paths.report), render(result).encode())
    except OSError as error:
        raise RatchetError(
            f"{error.filename} cannot be written ({error.strerror}): give another folder with --out"
        ) from error


def make_folder(out: Path) -> None:
    """Create the output folder before the work begins."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RatchetError(
            f"{out} cannot be created ({error.strerror}): give another folder with --out"
        ) from error


def paste_lines(best: Candidate, recipe: str, *, of_trainer: bool = False) -> Paste:
    """Return the lines that install the recipe in a script, and those that remove it.

    In a script with a transformers.Trainer, they give it a callback.
    """
    variables = best.config.variables()
    line = f'step = ratchet.compile(step, model, optimizer, recipe="{recipe}")'
    if of_trainer:
        line = f'trainer.add_callback(ratchet.trainer_callback(recipe="{recipe}"))'
    apply = ["import ratchet", line]
    if variables:
        prefix = " ".join(f"{name}={value}" for name, value in variables.items())
        apply.append(f"# start the script with: {prefix} python your_script.py")
    return Paste(apply=apply, undo=["remove these lines to restore the script"])


def _compile_cost(timed: Mapping[str, ArmResult]) -> CompileCost:
    """Compute the longer start's cost (of first starts, if seen) and the steps to recover it."""
    if not {"ratchet", "as_written"} <= timed.keys():
        return CompileCost(extra_setup_s=0.0, pays_after_steps=None)
    ours, written = timed["ratchet"], timed["as_written"]
    extra_s = ours.setup_time_s - written.setup_time_s
    gain_s = written.step_time_s - ours.step_time_s
    steps = math.ceil(max(extra_s, 0.0) / gain_s) if gain_s > 0 else None
    return CompileCost(extra_setup_s=extra_s, pays_after_steps=steps)


def _gradients(turn: Turn, baseline: Baseline, recipe: Candidate) -> GradientResult | None:
    """Return the gradient check's figures for the recipe, recalled or computed; None without time.

    Only arms started in this turn left gradients behind; any others have to be started first.
    """
    oracle = oracle_for(baseline.written, recipe.config)
    wanted = {one.key(): one for one in (recipe, oracle.reference, oracle.allowed)}
    missing = [one for one in wanted.values() if not turn.arms.gradients_path(one).exists()]
    needed_s = schedule.MARGIN * sum(map(turn.costs.setup_s, missing))
    known, what = turn.holds("gradients", gradients_key(recipe, oracle)), schedule.GRADIENTS.what
    if not known and not turn.schedule.may_start(schedule.GRADIENTS, needed_s):
        turn.leave_out(what, NO_ROOM)
        return None
    try:
        found = check_gradients(turn, recipe, oracle)
    except OutOfTime:
        turn.leave_out(what, "the budget ended during it")
        return None
    except RatchetError as error:  # the reference may not run, as a model with bf16 in its code
        turn.leave_out(what, str(error), for_want_of_budget=False)
        return None
    good = "every parameter's first-step gradient is within tolerance"
    return msgspec.structs.replace(found, detail=good) if found.passed else found
