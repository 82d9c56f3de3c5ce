"""`ratchet optimize WORKLOAD --parallel LAYOUT`: levers of communication, tried and proven.

All arms of a launch live in the same ranks and are timed next to each other, each step by its
slowest rank. Single levers are screened in one launch; those that seem faster are proven together,
in launches of their own, beside the step as written and a twin of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from statistics import median
from typing import Final, Literal

from ratchet.base import files
from ratchet.base.devices.probe import probe, software
from ratchet.base.errors import JudgeError, MeasureError, RanksError, RatchetError, WorkloadError
from ratchet.base.measure import Ratio, Sample
from ratchet.base.measure.estimate import aa_floor, compare, summarise
from ratchet.base.measure.rounds import until_settled
from ratchet.base.serialise import document_of
from ratchet.judge.steps.numerics import FP32_FLOOR, judge_losses
from ratchet.scale.parallel.launch import RankLaunches
from ratchet.scale.parallel.levers import (
    LEVERS,
    ONE_PROCESS,
    RankLever,
    combined,
    find_rank_levers,
    one_process_lever,
    why_no_process,
)
from ratchet.scale.parallel.rank import RankArm, RankResult, RankStep
from ratchet.train.levers import check_lever
from ratchet.train.recipe.ranks import by_units, without_process
from ratchet.train.recipe.recipe import (
    ModelSignature,
    Recipe,
    describe,
    signature_of,
    wanted_libraries,
)
from ratchet.train.turn.compose import make_folder
from ratchet.train.turn.loop import optimize
from ratchet.train.turn.optimize_result import Change
from ratchet.train.turn.settings import SMALLEST_BUDGET_S, Settings
from ratchet.train.turn.state import Listener
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.names import LoadOptions, check_options
from ratchet.train.workloads.parallel import ParallelLayout, SplitSizes, TunedLayout
from ratchet.train.workloads.parallel.meshes import check_devices
from ratchet.train.workloads.parallel.parallelize import check_parallel
from ratchet.train.workloads.workload import Workload

# The recipe of a rank's step alone, which is one lever of a turn on many ranks.
#
# The turn of one process runs at a rank's share of the batch. Its verdicts on kernels are in the
# ledger, where they serve every rank of the same device.

SHARE: Final = 0.5
"""Part of a turn's budget for the turn of one process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OneProcess:
    """Findings of the turn of one process, for each rank."""

    lever: RankLever | None = None
    reason: str = ""
    """Why there is no lever, or what it does."""
    changes: tuple[Change, ...] = ()


def check_rank_lever(name: str | None) -> None:
    """Raise a RatchetError unless a lever of ranks or of one process has this name."""
    known = [*(one.name for one in LEVERS), ONE_PROCESS]
    if name is None or name in known:
        return
    try:
        check_lever(name)
    except RatchetError:
        raise RatchetError(
            f"unknown lever {name!r}: with --parallel use {', '.join(known)}, or a lever of one "
            "process, such as compile"
        ) from None


def optimize_rank(
    settings: Settings,
    layout: ParallelLayout,
    *,
    written: StepConfig,
    rows: int,
    left_s: float,
    listener: Listener,
) -> OneProcess:
    """Run a turn of one process; `rows` is the size of a batch of all ranks.

    Raises a RatchetError as that turn does.
    """
    if SHARE * left_s < SMALLEST_BUDGET_S:
        return OneProcess(reason="the budget is too small for a turn of one process")
    only = settings.try_lever
    alone = replace(
        settings,
        options=_share(settings, rows // (layout.data * layout.micro)),
        budget_s=SHARE * left_s,
        gone_s=0.0,
        try_lever=None if only == ONE_PROCESS else only,
        layout=None,
        resume=False,
        out=settings.out / ONE_PROCESS,
    )
    outcome = optimize(alone, listener)
    changes = tuple(outcome.result.changes)
    left: list[str] = []
    config = without_process(outcome.recipe.config, written)
    if layout.fsdp > 1:
        config, left = by_units(config)
    if config == written:
        return OneProcess(reason="nothing was faster on one rank", changes=changes)
    wanted = wanted_libraries(config)
    kernels = tuple(one for one in outcome.recipe.kernels if one.library in wanted)
    changed = config.precision != written.precision
    step = RankStep(config=config, kernels=kernels)
    return OneProcess(
        lever=one_process_lever(step, changes_arithmetic=changed),
        reason="; ".join([describe(config), *left]),
        changes=changes,
    )


def _share(settings: Settings, rows: int) -> LoadOptions:
    """Return the options of one rank's part of the batch, if the workload takes a batch size."""
    try:
        check_options(settings.workload, batch_size=rows, sequence=None, text=None)
    except RatchetError:
        return settings.options
    return {**settings.options, "batch_size": rows}


Outcome = Literal["kept", "dropped", "not_applicable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankChange:
    """One lever, and what became of it."""

    name: str
    outcome: Outcome
    reason: str
    ratio: float | None = None
    """Ratio of the screening, with its interval; an estimate."""
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
    one_process: tuple[Change, ...]
    """Levers and kernels of one rank's step, and what became of them in a turn of one process."""
    recipe: str
    result: str
    report: str
    command: str
    """Runs a script that applies the recipe."""
    versions: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """Return the JSON document of the turn."""
        return {
            **asdict(self),
            "tuned": document_of(self.tuned),
            "one_process": [document_of(one) for one in self.one_process],
        }


WRITTEN, TWIN, TUNED = "written", "twin", "tuned"
SCREEN_ROUNDS: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    """The workload as its author wrote it, without its tensors."""

    config: StepConfig
    model: ModelSignature
    optimizer: str
    batch_size: int
    shrinks: bool


def levers_on_ranks(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """Return what each lever does that a turn would try, and why it would not try the others.

    Raises a RatchetError as `optimize_parallel` does before it starts any rank.
    """
    layout, only = settings.layout, settings.try_lever
    assert layout is not None
    check_rank_lever(only)
    check_ranks(settings, layout)
    found, reasons = find_rank_levers(
        layout,
        device=str(settings.options["device"]),
        only=only,
        keep_precision=settings.keep_precision,
    )
    levers = {one.name: one.summary for one in found}
    if (why := why_no_process(layout, only=only)) is None:
        levers[ONE_PROCESS] = "each rank runs its step by the recipe of a turn of one process"
    else:
        reasons[ONE_PROCESS] = why
    return levers, reasons


def check_ranks(settings: Settings, layout: ParallelLayout) -> tuple[Workload, SplitSizes]:
    """Return the workload and what a layout divides of it.

    Raises a RatchetError of one line if the layout cannot run it on this machine.
    """
    check_devices(layout, str(settings.options["device"]))
    workload = load(settings.workload, **settings.options)
    return workload, check_parallel(workload, layout)


def _as_written(settings: Settings, layout: ParallelLayout) -> _Written:
    workload, sizes = check_ranks(settings, layout)
    return _Written(
        config=workload.as_written(),
        batch_size=sizes.batch_size,
        model=signature_of(workload.model),
        optimizer=type(next(iter(workload.make_optimizers().values()))).__name__,
        shrinks=workload.shrink is not None,
    )


class _Turn:
    def __init__(self, settings: Settings, layout: ParallelLayout, listener: Listener) -> None:
        self.settings, self.layout, self.listener = settings, layout, listener
        self.written = _as_written(settings, layout)
        self.launches = RankLaunches(settings, layout)
        self.failed: dict[str, str] = {}
        """Levers left out for their losses, and what those said."""

    def tell(self, what: str) -> None:
        self.listener(what, {})


def optimize_parallel(
    settings: Settings, listener: Listener = lambda event, details: None
) -> ParallelTurn:
    """Try the levers of a layout, prove them together, and write recipe.json and result.json.

    Raises WorkloadError for a layout that the workload does not allow, DeviceError for more ranks
    than GPUs, RanksError if a rank dies, and RatchetError if `--try` names no lever.
    """
    only, keep, layout = settings.try_lever, settings.keep_precision, settings.layout
    assert layout is not None, "a turn of one process is not for ranks"
    check_rank_lever(only)
    device = str(settings.options["device"])
    levers, reasons = find_rank_levers(layout, device=device, only=only, keep_precision=keep)
    turn = _Turn(settings, layout, listener)
    make_folder(settings.out)
    own = _one_process(turn)
    if own.lever is not None:
        levers = (own.lever, *levers)
    else:
        reasons = {ONE_PROCESS: own.reason, **reasons}
    changes = [
        RankChange(name=name, outcome="not_applicable", reason=why) for name, why in reasons.items()
    ]
    screened = _screened_with(turn, own.lever, levers) if levers else []
    kept = [lever for lever, one in screened if one.outcome == "kept"]
    kept, losses = _that_learn_the_same(turn, kept, screened)
    proof = _prove(turn, kept) if kept else None
    proven = proof is not None and proof.comparison.answer == "faster"
    why = "the bundle was not proven faster" if proof else "the budget ended before a proof"
    why = "proven with the others" if proven else why
    changes = [_judged(turn, one, why, proven) for _, one in screened] + changes
    if own.lever is not None:
        changes = [_with_title(one, own.reason) for one in changes]
    result = _result(turn, kept if proven else [], proof, changes, losses, own)
    turn.launches.finish()
    return result


def _one_process(turn: _Turn) -> OneProcess:
    """Return what a turn of one process finds for each rank, if the layout and `--try` allow it."""
    settings = turn.settings
    if (why := why_no_process(turn.layout, only=settings.try_lever)) is not None:
        return OneProcess(reason=why)
    turn.tell("the step of one rank")
    return optimize_rank(
        settings,
        turn.layout,
        written=turn.written.config,
        rows=turn.written.batch_size,
        left_s=turn.launches.left_s,
        listener=turn.listener,
    )


def _with_title(change: RankChange, title: str) -> RankChange:
    if change.name != ONE_PROCESS:
        return change
    return replace(change, reason=f"{title}: {change.reason}")


def _screened_with(
    turn: _Turn, own: RankLever | None, levers: Sequence[RankLever]
) -> list[tuple[RankLever, RankChange]]:
    """Screen the levers; without the recipe of one process if the ranks cannot run it."""
    try:
        return _screen(turn, levers)
    except (RanksError, WorkloadError) as error:
        if own is None:
            raise
        left = [one for one in levers if one is not own]
        change = RankChange(name=own.name, outcome="dropped", reason=str(error))
        return [(own, change), *(_screen(turn, left) if left else [])]


def _screen(turn: _Turn, levers: Sequence[RankLever]) -> list[tuple[RankLever, RankChange]]:
    """Time each lever alone, all in one launch; `kept` means that it goes into the bundle."""
    turn.tell(f"screening {', '.join(one.name for one in levers)}")
    arms = {WRITTEN: RankArm(), **{one.name: one.set(RankArm()) for one in levers}}
    found, _ = turn.launches.run(arms, SCREEN_ROUNDS, traced=False)
    samples = found[0].samples
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


def _that_learn_the_same(
    turn: _Turn, kept: list[RankLever], screened: Sequence[tuple[RankLever, RankChange]]
) -> tuple[list[RankLever], str]:
    """Return the levers with which small copies learn the same, and what their losses said.

    While they do not, the lever that changes the arithmetic and wins least is left out.
    """
    ratios = {one.name: one.ratio or 0.0 for _, one in screened}
    while True:
        losses, passed = _losses(turn, kept)
        if passed:
            return kept, losses
        changing = [one for one in kept if one.changes_arithmetic]
        least = min(changing, key=lambda one: ratios[one.name])
        turn.failed[least.name] = losses
        kept = [one for one in kept if one is not least]


def _losses(turn: _Turn, kept: Sequence[RankLever]) -> tuple[str, bool]:
    """Compare the losses of small copies, if a kept lever changes the arithmetic."""
    if not any(one.changes_arithmetic for one in kept):
        return "the arithmetic is as written", True
    settings = turn.settings
    arms = {WRITTEN: RankArm(), TUNED: combined(kept, RankArm())}
    curves: dict[str, list[list[float]]] = {name: [] for name in arms}
    if not turn.written.shrinks:
        return f"{settings.title} has no small copy whose losses could be compared", False
    took_s = 0.0
    for seed in range(settings.loss_seeds):
        if turn.launches.left_s < took_s:
            return "the budget ended before losses were compared", False
        turn.tell(f"comparing losses, seed {seed}")
        began_s, steps, options = time.monotonic(), settings.loss_steps, {"seed": seed}
        try:
            how = {"shrunk": True, "traced": False, "options": options}
            found, _ = turn.launches.run(arms, steps, **how)
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
    comparison: Ratio
    written_s: float
    tuned_s: float
    exposed: tuple[float, float]


def _prove(turn: _Turn, kept: Sequence[RankLever]) -> _Proof | None:
    """Time the bundle against the step as written and its twin; None if no launch was in time."""
    arms = {WRITTEN: RankArm(), TWIN: RankArm(), TUNED: combined(kept, RankArm())}
    samples: list[Sample] = []
    exposed: list[list[float]] = []

    def take(launch: int) -> bool:
        rounds = turn.launches.rounds(len(arms), turn.settings.launches - launch)
        rounds = rounds or turn.launches.rounds(len(arms), 1)  # fewer launches than asked for
        if rounds:
            turn.tell(f"proving, launch {launch + 1} of {turn.settings.launches}, {rounds} rounds")
            found, own = turn.launches.run(arms, rounds)
            samples.extend(found[0].samples)
            exposed.append(own)
        return rounds > 0

    until_settled(take, lambda launches: launches == turn.settings.launches)
    try:
        floor = aa_floor(samples, WRITTEN, TWIN)
        found_to_be = compare(samples, baseline=WRITTEN, new=TUNED, floor=floor)
    except MeasureError:
        return None
    return _Proof(
        comparison=found_to_be,
        written_s=summarise(samples, WRITTEN).median_s,
        tuned_s=summarise(samples, TUNED).median_s,
        exposed=(median([own[0] for own in exposed]), median([own[2] for own in exposed])),
    )


def _judged(turn: _Turn, change: RankChange, why: str, proven: bool) -> RankChange:
    if change.outcome != "kept":
        return change
    if change.name in turn.failed:
        return _dropped(change, turn.failed[change.name])
    return replace(change, reason=why) if proven else _dropped(change, why)


def _result(
    turn: _Turn,
    kept: Sequence[RankLever],
    proof: _Proof | None,
    changes: Sequence[RankChange],
    losses: str,
    own: OneProcess,
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
        answer=(found.answer if found else None) or "undecided",
        written_s=proof.written_s if proof else None,
        tuned_s=proof.tuned_s if proof else None,
        exposed_written_s=proof.exposed[0] if proof else None,
        exposed_tuned_s=proof.exposed[1] if proof else None,
        losses=losses,
        changes=tuple(changes),
        one_process=own.changes,
        recipe=str(place),
        result=str(settings.out / "result.json"),
        report=str(settings.out / "report.html"),
        command=f"torchrun --standalone --nproc-per-node={layout.world} train.py",
        versions=dict(recipe.versions),
    )
    text = json.dumps(result.document(), indent=2)
    files.write_whole(settings.out / "result.json", f"{text}\n".encode())
    return result


def _recipe(turn: _Turn, arm: RankArm, found: Ratio | None, changes_arithmetic: bool) -> Recipe:
    settings, written = turn.settings, turn.written
    device, versions = probe(str(settings.options["device"])), software()
    told = (
        {name: getattr(found, name) for name in ("ratio", "low", "high", "answer")} if found else {}
    )
    return Recipe(
        workload=settings.title,
        device=device.fingerprint,
        device_name=device.model,
        software=versions.fingerprint,
        versions={name: value for name, value in asdict(versions).items() if value},
        config=arm.config(written.config),
        kernels=arm.step.kernels if arm.step is not None else (),
        model=written.model,
        optimizer=written.optimizer,
        speedup={"as_written": told} if found else {},
        changes_arithmetic=changes_arithmetic,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        parallel=TunedLayout(layout=str(turn.layout), tuning=arm.tuning),
    ).sealed()
