"""`ratchet optimize WORKLOAD --parallel LAYOUT`: levers of communication, tried and proven.

All arms of a launch live in the same ranks and are timed next to each other, each step by its
slowest rank. Single levers are screened in one launch; those that seem faster are proven together,
in launches of their own, beside the step as written and a twin of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from ratchet.base import files, scratch
from ratchet.base.errors import JudgeError, MeasureError, WorkloadError
from ratchet.devices.fingerprint import software
from ratchet.devices.probe import probe
from ratchet.judge.steps.numerics import FP32_FLOOR, judge_losses
from ratchet.measure.estimate import Comparison, aa_floor, compare
from ratchet.measure.samples import Sample
from ratchet.optimize.parallel.bench import communication_of
from ratchet.optimize.parallel.levers import RankLever, combined, find_rank_levers
from ratchet.optimize.recipe.recipe import Recipe
from ratchet.optimize.step.describe import signature_of
from ratchet.optimize.turn.settings import Settings
from ratchet.workloads.load import load
from ratchet.workloads.parallel.launch import run_ranks
from ratchet.workloads.parallel.layout import ParallelLayout
from ratchet.workloads.parallel.rank import RankArm, RankRequest, RankResult
from ratchet.workloads.parallel.tuning import TunedLayout

WRITTEN, TWIN, TUNED = "written", "twin", "tuned"
SCREEN_ROUNDS, MOST_ROUNDS, LEAST_ROUNDS = 10, 40, 6
Outcome = Literal["kept", "dropped", "not_applicable"]
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankChange:
    """One lever, and what became of it."""

    name: str
    outcome: Outcome
    reason: str
    ratio: float | None = None
    """The screening's ratio, with its interval; an estimate."""
    low: float | None = None
    high: float | None = None
    gradient_error: float | None = None
    changes_arithmetic: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelTurn:
    """The result of one turn on many ranks. Times are of a step, in seconds."""

    workload: str
    layout: str
    world: int
    tuned: RankArm
    """The recipe's arm; as written if nothing was proven."""
    proven: bool
    ratio: float | None
    """Time as written over the tuned time, of the slowest rank."""
    low: float | None
    high: float | None
    answer: str
    written_s: float | None
    tuned_s: float | None
    exposed_written_s: float | None
    """Exposed communication of the rank that exposes most, median over launches."""
    exposed_tuned_s: float | None
    losses: str
    changes: tuple[RankChange, ...]
    recipe: str
    command: str
    """Runs a script that applies the recipe."""
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


class _Turn:
    """The state of a turn."""

    def __init__(self, settings: Settings, layout: ParallelLayout, tell: Tell) -> None:
        self.settings, self.layout, self.tell = settings, layout, tell
        self.end_s = time.monotonic() + settings.budget_s - settings.gone_s
        self.launches = 0
        self.setup_s = self.step_s = 0.0
        """Start of the last launch that was timed, and a mean step of an arm."""

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def rounds(self, arms: int, launches: int) -> int:
        """Return the rounds for which each of so many launches has time; 0 for too few."""
        left_s = self.left_s / launches - self.setup_s
        found = int(left_s / max(arms * self.step_s, 1e-9))
        return min(MOST_ROUNDS, found) if found >= LEAST_ROUNDS else 0

    def run(
        self, arms: Mapping[str, RankArm], rounds: int, **changes: Any
    ) -> tuple[tuple[RankResult, ...], list[float]]:
        """Run arms in new ranks; return the results, and each arm's exposed communication."""
        options = {**self.settings.options, **changes.pop("options", {})}
        asked = RankRequest(
            workload=self.settings.workload,
            options=options,
            layout=str(self.layout),
            arms=dict(arms),
            rounds=rounds,
            launch=self.launches,
            **changes,
        )
        self.launches += 1
        began_s = time.monotonic()
        with scratch.folder("ranks") as folder:
            found = run_ranks(asked, folder)
            exposed = [
                max(communication_of(folder / one.arms[name].trace).exposed_s for one in found)
                for name in (arms if asked.traced else ())
            ]
        if not asked.shrunk:
            timed_s = [one.wall_time_s for one in found[0].timed()]
            self.setup_s = time.monotonic() - began_s - sum(timed_s)
            self.step_s = sum(timed_s) / len(timed_s)
        return found, exposed


def optimize_parallel(
    settings: Settings, layout: ParallelLayout, tell: Tell = lambda _: None
) -> ParallelTurn:
    """Try the levers of a layout, prove them together, and write recipe.json and result.json.

    Raises WorkloadError for a layout that the workload does not allow, and RanksError if a rank
    dies.
    """
    only, keep = settings.try_lever, settings.keep_precision
    levers, reasons = find_rank_levers(layout, only=only, keep_precision=keep)
    turn = _Turn(settings, layout, tell)
    changes = [
        RankChange(name=name, outcome="not_applicable", reason=why) for name, why in reasons.items()
    ]
    screened = _screen(turn, levers) if levers else []
    kept = [lever for lever, one in screened if one.outcome == "kept"]
    losses, passed = _losses(turn, kept)
    if not passed:
        kept = [one for one in kept if not one.changes_arithmetic]
    proof = _prove(turn, kept) if kept else None
    proven = proof is not None and proof.comparison.answer == "faster"
    why = "the bundle was not proven faster" if proof else "the budget ended before a proof"
    why = "proven with the others" if proven else why
    changes = [_judged(one, kept, losses, why, proven) for _, one in screened] + changes
    return _written(turn, kept if proven else [], proof, changes, losses)


def _screen(turn: _Turn, levers: Sequence[RankLever]) -> list[tuple[RankLever, RankChange]]:
    """Time each lever alone, all in one launch; `kept` means that it goes into the bundle."""
    turn.tell(f"screening {', '.join(one.name for one in levers)}")
    arms = {WRITTEN: RankArm(), **{one.name: one.set(RankArm()) for one in levers}}
    found, _ = turn.run(arms, SCREEN_ROUNDS, traced=False)
    samples = found[0].timed()
    screened = [(one, _screened(one, found[0], samples)) for one in levers]
    best = sorted(screened, key=lambda pair: -(pair[1].ratio or 0.0))
    taken: dict[str, str] = {}
    for lever, change in best:
        if change.outcome == "kept" and lever.field in taken:
            place = screened.index((lever, change))
            reason = f"{taken[lever.field]} sets the same and is faster"
            screened[place] = (lever, _dropped(change, reason))
        elif change.outcome == "kept":
            taken[lever.field] = lever.name
    return screened


def _screened(lever: RankLever, rank: RankResult, samples: Sequence[Sample]) -> RankChange:
    one = compare(samples, baseline=WRITTEN, new=lever.name, floor=None)
    error = rank.arms[lever.name].gradient_error
    change = RankChange(
        name=lever.name,
        outcome="kept",
        reason="",
        ratio=one.ratio,
        low=one.low,
        high=one.high,
        gradient_error=error,
        changes_arithmetic=lever.changes_arithmetic,
    )
    if not lever.changes_arithmetic and not error <= FP32_FLOOR:
        return _dropped(change, f"its gradients differ by {error:.1e}, more than {FP32_FLOOR:g}")
    if one.ratio <= 1 or one.answer == "slower":
        return _dropped(change, f"screened at {one.ratio:.3f}x")
    return change


def _dropped(change: RankChange, reason: str) -> RankChange:
    return replace(change, outcome="dropped", reason=reason)


def _losses(turn: _Turn, kept: Sequence[RankLever]) -> tuple[str, bool]:
    """Compare the losses of small copies, if a kept lever changes the arithmetic."""
    if not any(one.changes_arithmetic for one in kept):
        return "the arithmetic is as written", True
    settings = turn.settings
    arms = {WRITTEN: RankArm(), TUNED: combined(kept, RankArm())}
    curves: dict[str, list[list[float]]] = {name: [] for name in arms}
    if load(settings.workload, **settings.options).shrink is None:
        return f"{settings.title} has no small copy whose losses could be compared", False
    took_s = 0.0
    for seed in range(settings.loss_seeds):
        if turn.left_s < took_s:
            return "the budget ended before losses were compared", False
        turn.tell(f"comparing losses, seed {seed}")
        began_s, steps, options = time.monotonic(), settings.loss_steps, {"seed": seed}
        try:
            found, _ = turn.run(arms, steps, shrunk=True, traced=False, options=options)
        except WorkloadError as error:  # the small copy does not divide
            return str(error), False
        took_s = time.monotonic() - began_s
        for name, curve in curves.items():
            curve.append(found[0].arms[name].losses)
    try:
        check = judge_losses(baseline=curves[WRITTEN], candidate=curves[TUNED])
    except JudgeError as error:
        return str(error), False
    told = f"{settings.loss_seeds} seeds, {settings.loss_steps} steps: {check.detail}"
    return told, check.passed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Proof:
    comparison: Comparison
    written_s: float
    tuned_s: float
    exposed: tuple[float, float]


def _prove(turn: _Turn, kept: Sequence[RankLever]) -> _Proof | None:
    """Time the bundle against the step as written and its twin; None if no launch was in time."""
    arms = {WRITTEN: RankArm(), TWIN: RankArm(), TUNED: combined(kept, RankArm())}
    samples: list[Sample] = []
    exposed: list[list[float]] = []
    for launch in range(turn.settings.launches):
        rounds = turn.rounds(len(arms), turn.settings.launches - launch)
        rounds = rounds or turn.rounds(len(arms), 1)  # fewer launches than asked for
        if not rounds:
            break
        turn.tell(f"proving, launch {launch + 1} of {turn.settings.launches}, {rounds} rounds")
        found, own = turn.run(arms, rounds)
        samples += found[0].timed()
        exposed.append(own)
    try:
        floor = aa_floor(samples, WRITTEN, TWIN)
        found_to_be = compare(samples, baseline=WRITTEN, new=TUNED, floor=floor)
    except MeasureError:
        return None
    return _Proof(
        comparison=found_to_be,
        written_s=_median(samples, WRITTEN),
        tuned_s=_median(samples, TUNED),
        exposed=(_middle([own[0] for own in exposed]), _middle([own[2] for own in exposed])),
    )


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _median(samples: Sequence[Sample], arm: str) -> float:
    return _middle([one.wall_time_s for one in samples if one.arm == arm])


def _judged(
    change: RankChange, kept: Sequence[RankLever], losses: str, why: str, proven: bool
) -> RankChange:
    if change.outcome != "kept":
        return change
    if change.name not in {one.name for one in kept}:
        return _dropped(change, losses)
    return replace(change, reason=why) if proven else _dropped(change, why)


def _written(
    turn: _Turn,
    kept: Sequence[RankLever],
    proof: _Proof | None,
    changes: Sequence[RankChange],
    losses: str,
) -> ParallelTurn:
    """Write the recipe and the result; a recipe without levers runs the step as written."""
    settings, layout = turn.settings, turn.layout
    arm = combined(kept, RankArm())
    place = settings.out / "recipe.json"
    found = proof.comparison if proof else None
    recipe = _recipe(turn, arm, found, any(one.changes_arithmetic for one in kept))
    recipe.save(place)
    result = ParallelTurn(
        workload=settings.title,
        layout=str(layout),
        world=layout.world,
        tuned=arm,
        proven=bool(kept),
        ratio=found.ratio if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        answer=found.answer if found else "undecided",
        written_s=proof.written_s if proof else None,
        tuned_s=proof.tuned_s if proof else None,
        exposed_written_s=proof.exposed[0] if proof else None,
        exposed_tuned_s=proof.exposed[1] if proof else None,
        losses=losses,
        changes=tuple(changes),
        recipe=str(place),
        command=f"torchrun --standalone --nproc-per-node={layout.world} train.py",
        versions=dict(recipe.versions),
    )
    text = json.dumps(turn_document(result), indent=2)
    files.write_whole(settings.out / "result.json", f"{text}\n".encode())
    return result


def turn_document(result: ParallelTurn) -> dict[str, Any]:
    """Return the JSON document of a turn."""
    return {**asdict(result), "tuned": result.tuned.model_dump(mode="json")}


def _recipe(
    turn: _Turn, arm: RankArm, found: Comparison | None, changes_arithmetic: bool
) -> Recipe:
    settings = turn.settings
    device, versions = probe(str(settings.options["device"])), software()
    workload = load(settings.workload, **settings.options)
    config = workload.as_written()
    if arm.checkpointing is not None:
        config = config.model_copy(update={"checkpointing": arm.checkpointing})
    told = (
        {name: getattr(found, name) for name in ("ratio", "low", "high", "answer")} if found else {}
    )
    return Recipe(
        workload=settings.title,
        device=device.fingerprint,
        device_name=device.model,
        software=versions.fingerprint,
        versions={name: value for name, value in asdict(versions).items() if value},
        config=config,
        kernels=(),
        model=signature_of(workload.model),
        optimizer=type(next(iter(workload.make_optimizers().values()))).__name__,
        speedup={"as_written": told} if found else {},
        changes_arithmetic=changes_arithmetic,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        parallel=TunedLayout(layout=str(turn.layout), tuning=arm.tuning),
    ).sealed()
