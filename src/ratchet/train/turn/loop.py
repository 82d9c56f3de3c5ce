"""Run one optimization turn: describe, search, keep, write."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import torch

from ratchet.base import drawn_by
from ratchet.base.devices import ceilings as device_ceilings
from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.devices.gpu_use import warnings_of
from ratchet.base.devices.probe import Device, probe, software
from ratchet.base.errors import DeviceError, OutOfTime, RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.measure import Sample
from ratchet.base.serialise import document_of
from ratchet.judge.steps.arms import ArmProcess
from ratchet.judge.trial.kernel_trial import why_no_kernels
from ratchet.train.levers import Situation
from ratchet.train.levers.base import why_bf16_is_slow
from ratchet.train.recipe import Recipe, with_config
from ratchet.train.recipe.facts import StepFacts
from ratchet.train.turn import schedule
from ratchet.train.turn.choice import choose
from ratchet.train.turn.compose import compose, make_folder, make_recipe, versions
from ratchet.train.turn.headroom import StepProfiles
from ratchet.train.turn.judge_kernels import never_called
from ratchet.train.turn.optimize_result import OptimizeResult
from ratchet.train.turn.prove import NEW
from ratchet.train.turn.schedule import TurnSchedule
from ratchet.train.turn.search import Search
from ratchet.train.turn.settings import Settings, check_settings
from ratchet.train.turn.state import Listener, Turn
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.names import is_user_spec

TRAINS_ON_IMPORT = (
    "; if your file trains when it is imported, put that under `if __name__ == '__main__':`"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a turn, and the recipe that the user gets."""

    result: OptimizeResult
    recipe: Recipe
    samples: tuple[Sample, ...]

    _repr_html_ = drawn_by("ratchet.train.turn.show:outcome_report")


def optimize(settings: Settings, listener: Listener = lambda event, details: None) -> Outcome:
    """Run one turn and return its result and its recipe; `compose.write` writes them.

    Raises a RatchetError for anything the user can fix. A killed turn resumes from the ledger.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    check_settings(settings)
    make_folder(settings.out)
    with opened(settings, listener) as turn:
        before = turn.ledger.unfinished_turn(settings.key(), fingerprint=turn.fingerprint)
        if settings.resume and before is None:
            raise RatchetError(
                f"there is no unfinished turn of {settings.title!r} in this ledger: "
                "run it without --resume"
            )
        turn.forget_fruitless()
        # What timings may not bear is said before anything is measured.
        busy = warnings_of(turn.device.index) if turn.device.kind != "cpu" else []
        for words in filter(None, (turn.without_kernels, *busy)):
            turn.warn(words)
            turn.tell("warning", text=words)
        identity = turn.ledger.start_turn(
            settings.key(), {"workload": settings.title}, fingerprint=turn.fingerprint
        )
        with turn.ledger.failing(identity):
            outcome = _run(turn, describe(turn), started_at)
        turn.ledger.record_measurements(identity, outcome.samples, purpose="proof")
        turn.ledger.record_recipe(identity, document_of(outcome.recipe.sealed()))
        found = {name: getattr(outcome.result, name) for name in ("floor", "recipe_is")}
        found["without_kernels"] = turn.without_kernels
        turn.ledger.finish_turn(identity, {"speedup": outcome.recipe.speedup, **found})
        return outcome


def describe(turn: Turn) -> StepFacts:
    """Describe the workload in numbers; building it and running one step also checks it.

    The arm stays alive: the rivals are timed beside it.
    """

    def compute() -> StepFacts:
        with turn.schedule.doing(schedule.AS_WRITTEN):
            return described()

    def described() -> StepFacts:
        turn.tell("start", title="as written")
        arms, began_s = turn.arms, turn.schedule.elapsed_s
        gradients, rounded = (
            arms.folder / f"{name}.safetensors" for name in ("as_written", "rounded")
        )
        arms.probe_vectors()
        with contextlib.ExitStack() as stack:
            arm = stack.enter_context(ArmProcess(arms.written_spec()))
            turn.costs.note_plain(arm.setup_time_s)
            arm.call("gradients", path=str(gradients))
            # In bf16 autocast too, where it is no slower: changes are judged by both later.
            slow = turn.ceilings is None or why_bf16_is_slow(turn.ceilings.gemm_flops_per_s)
            may_round = not (slow or turn.settings.keep_precision)
            if may_round:
                try:
                    arm.call("gradients", path=str(rounded), autocast=True)
                except OutOfTime:
                    raise
                except RatchetError:  # the step does not run in it
                    may_round = False
            arm.run(1, timed=False)  # torch's test of vector instructions runs beside it
            setup_s = turn.schedule.elapsed_s - began_s
            step_time_s = arm.run(1, timed=False).wall_time_s
            told = {**arm.call("workload"), **arm.describe()}
            stack.pop_all()
        written = with_config(msgspec.convert(told["written"], StepConfig), {})
        arms.adopt(written, arm, gradients)
        eager = msgspec.structs.replace(written.config, precision="bf16_autocast")
        if may_round and eager.precision != written.config.precision:
            rounded.replace(arms.gradients_path(with_config(eager, {})))
        return msgspec.convert({**told, "setup_s": setup_s, "step_time_s": step_time_s}, StepFacts)

    turn.schedule.begin_rest()
    try:
        facts = turn.memo("workload", "describe", StepFacts, compute)
    except OutOfTime as error:
        own = is_user_spec(turn.settings.workload)
        raise RatchetError(
            f"the budget of {turn.settings.budget_s:.0f} s ended before the step ran twice: "
            f"give a larger --budget{TRAINS_ON_IMPORT if own else ''}"
        ) from error
    turn.arms.learn(facts)
    for words in [*facts.warnings, *_notes(facts)]:
        turn.warn(words)
    return facts


def _notes(facts: StepFacts) -> list[str]:
    """Return what the user should know of the step before it is changed, one line each."""
    notes = []
    if facts.uncompiled:
        names = ", ".join(f"nn.{layer}" for layer in facts.uncompiled)
        notes.append(f"torch.compile does not enter {names}: that part of the step stays as it is")
    if facts.own_step and facts.is_random:
        notes.append(
            "the step draws random numbers. Compiled code draws others with the same odds, so "
            "gradients are compared with the draws of the step as written"
        )
    if facts.loss is not None and not math.isfinite(facts.loss):
        notes.append(
            f"the loss is {facts.loss} after a few steps: what is measured is a run that has "
            "diverged"
        )
    return notes


def situation_of(device: Device, ceilings: Ceilings | None, facts: StepFacts) -> Situation:
    """Collect the facts that the levers may use."""
    return Situation(
        device_kind=device.kind,
        vendor=device.vendor,
        target=device.target,
        cores=device.threads,
        written=facts.written,
        optimizer_is_adamw=facts.optimizer_is_adamw,
        has_attention=facts.has_attention,
        rocm=bool(torch.version.hip),
        why_not_fused=facts.why_not_fused,
        own_step=facts.own_step,
        why_not_in_backward=facts.why_not_in_backward,
        trainable_bytes=facts.trainable_bytes,
        peak_memory_bytes=facts.peak_memory_bytes,
        memory_bytes=device.memory_bytes,
        bf16_is_slow=(
            why_bf16_is_slow(ceilings.gemm_flops_per_s) if ceilings is not None else None
        ),
    )


def _run(turn: Turn, facts: StepFacts, started_at: str) -> Outcome:
    situation = situation_of(turn.device, turn.ceilings, facts)
    written = with_config(situation.written, {})
    turn.costs.note_setup(written, facts.setup_s)
    turn.costs.note_step(written, facts.step_time_s)
    profiles = StepProfiles(turn, situation)
    search = Search(turn=turn, situation=situation, profiles=profiles, written=written, facts=facts)
    found = search.run()
    choice = choose(found, search.prover)
    proof, recipe = choice.proof, choice.recipe
    told = proof.descriptions.get(recipe.key())
    if told is not None:
        for warning in [*told.notes, *never_called(recipe, told)]:
            turn.warn(warning)
    after = None if choice.recipe_is == "as_written" else profiles.last(recipe)
    turn.arms.close()
    turn.remember_scatter(search.sitting.scatter())
    step_time_s = float(proof.summary(NEW).median_s) if proof.timed(NEW) else None
    result = compose(
        turn,
        facts=facts,
        choice=choice,
        found=found,
        before=profiles.of(written),
        after=after,
        limit=profiles.limit_after(found.baseline.best, recipe, step_time_s),
        started_at=started_at,
    )
    return Outcome(
        result=result,
        recipe=make_recipe(
            turn.settings,
            turn.device,
            recipe,
            model=facts.model,
            optimizer=facts.optimizer,
            speedup=result.speedup,
            changes_arithmetic=recipe.config.precision != written.config.precision,
        ),
        samples=tuple(proof.samples()),
    )


def opened(settings: Settings, listener: Listener) -> Turn:
    """Return the turn of these settings, its clock running and its ledger open."""
    begun_s = time.monotonic() - settings.gone_s
    device = probe(str(settings.options.get("device") or "auto"))
    ledger = Ledger.open(settings.ledger)
    ledger.here(device)
    return Turn(
        settings=settings,
        ledger=ledger,
        device=device,
        ceilings=_ceilings(device),
        without_kernels=why_no_kernels() or "",
        software=versions(),
        software_fingerprint=software().fingerprint,
        listener=listener,
        schedule=TurnSchedule(budget_s=settings.budget_s, started_s=begun_s),
    )


def _ceilings(device: Device) -> Ceilings | None:
    try:
        return device_ceilings.measure(device, again="due")
    except DeviceError:
        return None
