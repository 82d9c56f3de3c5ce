"""One turn of the ratchet: baseline, explain, kernels, climb, prove, write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ratchet import __version__
from ratchet.devices import ceilings as device_ceilings
from ratchet.devices.ceilings import Ceilings
from ratchet.devices.fingerprint import software
from ratchet.devices.probe import Device, probe
from ratchet.errors import DeviceError, RatchetError
from ratchet.judge.arms import ArmProcess
from ratchet.ledger import Ledger
from ratchet.measure.samples import Sample
from ratchet.optimize.baseline import Baseline, find_baseline
from ratchet.optimize.candidate import Candidate, with_config
from ratchet.optimize.climb import Climber, applicable
from ratchet.optimize.compose import compose, make_folder, make_recipe
from ratchet.optimize.explain import explain
from ratchet.optimize.installed import InstalledKernel
from ratchet.optimize.levers import LEVERS, Lever, Situation, all_levers, kernel_levers
from ratchet.optimize.levers.base import why_bf16_is_slow
from ratchet.optimize.levers.kernels import PREFIX
from ratchet.optimize.losses import compare_losses
from ratchet.optimize.prove import Proof, prove
from ratchet.optimize.prove_kernels import ProvenKernels, prove_kernels
from ratchet.optimize.recipe import Recipe
from ratchet.optimize.result import Change, LossResult, OptimizeResult, StepProfile
from ratchet.optimize.settings import Settings, check_settings
from ratchet.optimize.turn import Listener, Turn
from ratchet.workloads.config import StepConfig

# Shares of the budget by which each stage must have ended; the rest is the final proof's.
KERNELS_UNTIL, CLIMB_UNTIL, SAME_UNTIL = 0.55, 0.65, 0.7
KERNELS_LEAST, KERNELS_LATEST = 0.15, 0.75
"""Where the rivals took longer, the kernels still get this share, but not beyond the latest."""
PROFILED_STEPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a turn found, and what a user takes home."""

    result: OptimizeResult
    recipe: Recipe
    samples: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What would be tried, for `--dry-run`."""

    workload: dict[str, Any]
    written: StepConfig
    levers: tuple[Lever, ...]
    skipped: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as one JSON object."""
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
    """Run one turn and return what it found, and the recipe; `compose.write` writes them.

    Raises a RatchetError for anything the user can mend. A killed turn goes on from the ledger.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    check_settings(settings)
    make_folder(settings.out)
    with _open(settings, listener) as turn:
        _check_resume(turn)
        identity = turn.ledger.start_turn(
            settings.key(), {"workload": settings.workload}, fingerprint=turn.fingerprint
        )
        outcome = _run(turn, describe(turn), started_at)
        turn.ledger.record_measurements(identity, outcome.samples, purpose="proof")
        turn.ledger.record_recipe(identity, outcome.recipe.model_dump(mode="json"))
        turn.ledger.finish_turn(identity, {"speedup": outcome.recipe.speedup})
        return outcome


def plan(settings: Settings, listener: Listener = lambda event, details: None) -> Plan:
    """What `optimize` would try, without trying it."""
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
    """The workload in numbers; building it and running one step checks it on the way."""

    def compute() -> dict[str, Any]:
        turn.tell("start", title="as written")
        with ArmProcess(turn.written_spec()) as arm:
            arm.run(2)
            return {**arm.call("workload"), **arm.describe()}

    description = turn.memo("workload", "describe", compute)
    turn.peak_memory_bytes = int(description["peak_memory_bytes"])
    return description


def situation_of(turn: Turn, description: dict[str, Any]) -> Situation:
    """What the levers may look at."""
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
    """All levers, or the one named by `--try` as if it were expected to help."""
    if settings.try_lever is None:
        return [*LEVERS, *kernel_levers()]
    return [all_levers()[settings.try_lever]]


def _run(turn: Turn, description: dict[str, Any], started_at: str) -> Outcome:
    situation = situation_of(turn, description)
    written = with_config(situation.written, {})
    baseline = find_baseline(turn, written, situation)
    before = _profile(turn, written, "before")
    late = _lateness(turn.spent_s / turn.settings.budget_s)
    kernels = prove_kernels(
        turn,
        _to_capture(baseline, situation, turn.settings),
        _wanted_kernels(turn.settings, situation),
        until_share=KERNELS_UNTIL + late,
    )
    best, changes = _climb(
        turn, situation, baseline.best, kernels, keep=False, until=CLIMB_UNTIL + late
    )
    if _keeps_arithmetic(best, written):
        same = best
    else:
        same, _ = _climb(
            turn, situation, baseline.best_same, kernels, keep=True, until=SAME_UNTIL + late
        )
    losses: LossResult | None = None
    if not _keeps_arithmetic(best, written):
        losses = compare_losses(turn, written, best)
        if not losses.passed:
            turn.warnings.append(f"bf16 was dropped: {losses.detail}")
            best = same
    proof = _prove(turn, baseline, same, best)
    best, same, proof = _never_slower(turn, baseline, same, best, proof)
    after = _profile(turn, best, "after")
    result = compose(
        turn,
        description=description,
        baseline=baseline,
        same=same,
        best=best,
        kernels=kernels,
        changes=changes,
        before=before,
        after=after,
        losses=losses,
        proof=proof,
        started_at=started_at,
    )
    return Outcome(
        result=result, recipe=make_recipe(turn, result, best, written), samples=proof.samples
    )


def _lateness(spent_share: float) -> float:
    """By how much the later stages end later, as the share that is spent when the kernels begin."""
    return max(0.0, min(spent_share + KERNELS_LEAST, KERNELS_LATEST) - KERNELS_UNTIL)


def _climb(
    turn: Turn,
    situation: Situation,
    start: Candidate,
    kernels: ProvenKernels,
    *,
    keep: bool,
    until: float,
) -> tuple[Candidate, list[Change]]:
    keep = keep or turn.settings.keep_precision
    precision = situation.written.precision
    if not keep and _may_use_bf16_weights(situation):
        precision = "bf16_master"
    levers, skipped = applicable(
        chosen_levers(turn.settings),
        situation,
        refused_kernels=kernels.why_not(precision),
        keep_arithmetic=keep,
    )
    if turn.settings.try_lever is not None:
        levers = [as_default(lever) for lever in levers]
    climber = Climber(
        turn=turn, situation=situation, proven=kernels.of(precision), until_share=until
    )
    found = climber.climb(start, levers)
    turn.close_arms()
    return found.best, [*found.changes, *skipped]


def as_default(lever: Lever) -> Lever:
    """The lever as part of the bundle: what `--try` names is tried."""
    fields = {name: getattr(lever, name) for name in Lever.__slots__}
    return Lever(**{**fields, "default": True})


def _wanted_kernels(settings: Settings, situation: Situation) -> set[str]:
    """The library kernels whose levers apply here: the others are not judged."""
    return {
        lever.name.removeprefix(PREFIX)
        for lever in chosen_levers(settings)
        if lever.name.startswith(PREFIX) and lever.applies(situation) is None
    }


def _to_capture(baseline: Baseline, situation: Situation, settings: Settings) -> list[Candidate]:
    """The steps whose call sites matter: bf16 weights first, then the written precision."""
    configs = [baseline.best_same.config]
    if _may_use_bf16_weights(situation) and not settings.keep_precision:
        precision = {"precision": "bf16_master"}
        configs.insert(0, baseline.best_same.config.model_copy(update=precision))
    nothing: dict[str, tuple[InstalledKernel, ...]] = {}
    return [with_config(config, nothing) for config in configs]


def _may_use_bf16_weights(situation: Situation) -> bool:
    return situation.optimizer_is_adamw and situation.bf16_is_slow is None


def _keeps_arithmetic(candidate: Candidate, written: Candidate) -> bool:
    fields: Callable[[StepConfig], tuple[str, str]] = lambda config: (  # noqa: E731
        config.precision,
        config.matmul_precision,
    )
    return fields(candidate.config) == fields(written.config)


def _prove(turn: Turn, baseline: Baseline, same: Candidate, best: Candidate) -> Proof:
    roles = {
        "as_written": baseline.written,
        "best_compile": baseline.best,
        "best_compile_same": baseline.best_same,
        "same_arithmetic": same,
        "ratchet": best,
    }
    step_s = {rival.title: rival.step_time_s or 1.0 for rival in baseline.rivals}
    known = {role: step_s.get(candidate.title, 0.0) for role, candidate in roles.items()}
    slowest = max(known.values()) or 1.0
    guesses = {role: value or 2 * slowest for role, value in known.items()}
    return prove(turn, roles, rival="best_compile", step_s=guesses)


def _never_slower(
    turn: Turn, baseline: Baseline, same: Candidate, best: Candidate, proof: Proof
) -> tuple[Candidate, Candidate, Proof]:
    """A recipe that the proof calls slower than its rival is replaced by the rival."""
    fallen = best
    if proof.speedup("best_compile", "ratchet").answer == "slower":
        turn.warnings.append("the climb's best was slower than torch.compile's in the final run")
        fallen = baseline.best
    fallen_same = same
    if proof.speedup("best_compile_same", "same_arithmetic").answer == "slower":
        fallen_same = baseline.best_same
    if fallen is best and fallen_same is same:
        return best, same, proof
    return fallen, fallen_same, _prove(turn, baseline, fallen_same, fallen)


def _profile(turn: Turn, candidate: Candidate, when: str) -> StepProfile:
    def compute() -> dict[str, Any]:
        turn.tell("profile", title=candidate.title)
        path = turn.settings.out.resolve() / f"trace_{when}.json.gz"
        turn.live(candidate).call("profile", path=str(path), steps=PROFILED_STEPS)
        found = explain(path, PROFILED_STEPS, turn.device, turn.ceilings)
        return found.model_dump(mode="json")

    return StepProfile.model_validate(turn.memo("explain", candidate.key(), compute))


def _open(settings: Settings, listener: Listener) -> Turn:
    device = probe(str(settings.options.get("device") or "auto"))
    ledger = Ledger.open(settings.ledger)
    return Turn(
        settings=settings,
        ledger=ledger,
        device=device,
        ceilings=_ceilings(device),
        software=versions(),
        software_fingerprint=software().fingerprint,
        listener=listener,
    )


def versions() -> dict[str, str]:
    """The versions that stand beside every figure."""
    return {"ratchet": __version__, **asdict(software())}


def _ceilings(device: Device) -> Ceilings | None:
    try:
        return device_ceilings.measure(device)
    except DeviceError:
        return None


def _check_resume(turn: Turn) -> None:
    if not turn.settings.resume:
        return
    if turn.ledger.unfinished_turn(turn.settings.key(), fingerprint=turn.fingerprint) is None:
        raise RatchetError(
            f"there is no unfinished turn of {turn.settings.workload!r} in this ledger: "
            "run it without --resume"
        )
