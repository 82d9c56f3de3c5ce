"""`ratchet optimize WORKLOAD --parallel LAYOUT`: levers of communication, tried and proven.

All arms of a launch live in the same ranks and are timed next to each other, each step by its
slowest rank. Single levers are screened in one launch; those that seem faster are proven together,
in launches of their own, beside the step as written and a twin of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import msgspec

from ratchet.base.devices.probe import probe
from ratchet.base.errors import JudgeError, RanksError, RatchetError, WorkloadError
from ratchet.base.files import write_whole
from ratchet.base.measure import Ratio
from ratchet.base.measure.estimate import compare
from ratchet.base.measure.rounds import until_settled
from ratchet.base.measure.sitting import Sitting, TimedTogether
from ratchet.base.serialise import document_of
from ratchet.judge.steps.numerics import FP32_FLOOR, judge_losses
from ratchet.scale.parallel.launch import RankLaunches
from ratchet.scale.parallel.levers import (
    ONE_PROCESS,
    check_rank_lever,
    combined,
    find_rank_levers,
    layout_of,
    why_no_process,
)
from ratchet.train.levers import Lever, Situation
from ratchet.train.levers.table import CHECKPOINTING
from ratchet.train.recipe import (
    Candidate,
    ModelSignature,
    describe,
    signature_of,
    wanted_libraries,
    with_config,
)
from ratchet.train.recipe.ranks import by_units, without_process
from ratchet.train.turn.compose import make_folder, make_recipe
from ratchet.train.turn.loop import optimize
from ratchet.train.turn.optimize_result import Change, LossResult
from ratchet.train.turn.prove import TWIN, Proof
from ratchet.train.turn.screen import LeverScreening
from ratchet.train.turn.selection import change_of
from ratchet.train.turn.settings import SMALLEST_BUDGET_S, Settings
from ratchet.train.turn.state import Listener
from ratchet.train.workloads.load import load
from ratchet.train.workloads.names import check_options
from ratchet.train.workloads.parallel import SplitSizes, TunedLayout
from ratchet.train.workloads.parallel.meshes import check_devices
from ratchet.train.workloads.parallel.parallelize import check_parallel
from ratchet.train.workloads.workload import Workload

SHARE: Final = 0.5  # Part of a turn's budget for the turn of one process
WRITTEN, TUNED = "written", "tuned"
NO_TIME: Final = "the budget ended before a proof"
SCREEN_ROUNDS: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelTurn:
    """The result of one turn on many ranks. Times are of a step, in seconds."""

    workload: str
    layout: str
    world: int
    tuned: Candidate
    """The way that the recipe runs each rank's step; as written if nothing was proven."""
    proven: bool
    speedup: Ratio | None  # The slowest rank's; None if no launch told
    written_s: float | None
    tuned_s: float | None
    exposed_written_s: float | None
    """Exposed communication of the rank that exposes most, median over launches."""
    exposed_tuned_s: float | None
    losses: str
    changes: tuple[Change, ...]
    """Levers and what became of them; their ratios are those of the screening."""
    gradient_errors: dict[str, float]
    """Those of the levers that were screened, by name; see `ArmOnRank`."""
    one_process: tuple[Change, ...]
    """Levers and kernels of one rank's step, and what became of them in a turn of one process."""
    recipe: str
    result: str
    report: str
    command: str  # Runs a script that applies the recipe
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Return the time as written over the tuned time, of the slowest rank."""
        return self.speedup.ratio if self.speedup is not None else None

    @property
    def answer(self) -> str:
        return (self.speedup.answer if self.speedup is not None else None) or "undecided"

    def document(self) -> dict[str, object]:
        plain = {
            name: getattr(self, name)
            for name in self.__slots__
            if name not in ("speedup", "gradient_errors")
        }
        kept = {one.name for one in self.changes if one.decision == "kept"}
        step = {
            "config": document_of(self.tuned.config),
            "kernels": document_of(self.tuned.kernels),
        }
        shown = ("name", "reason", "ratio", "low", "high", "changes_arithmetic")
        return {
            **plain,
            "tuned": {
                "tuning": document_of(self.tuned.tuning),
                "step": step if ONE_PROCESS.name in kept else None,
                "checkpointing": (
                    self.tuned.config.checkpointing if CHECKPOINTING.name in kept else None
                ),
            },
            "ratio": self.ratio,
            "low": self.speedup.low if self.speedup is not None else None,
            "high": self.speedup.high if self.speedup is not None else None,
            "answer": self.answer,
            "changes": [
                {
                    **{name: getattr(one, name) for name in shown},
                    "outcome": one.decision,
                    "gradient_error": self.gradient_errors.get(one.name),
                }
                for one in self.changes
            ],
            "one_process": [document_of(one) for one in self.one_process],
        }


def check_ranks(settings: Settings) -> tuple[Workload, SplitSizes]:
    """Return the workload and what a layout divides of it.

    Raises a RatchetError of one line if the layout cannot run it on this machine.
    """
    assert settings.layout is not None, "a turn of one process has no ranks"
    check_devices(settings.layout, str(settings.options["device"]))
    workload = load(settings.workload, **settings.options)
    return workload, check_parallel(workload, settings.layout)


def situation_of(settings: Settings, workload: Workload) -> Situation:
    """Return what the levers of communication ask about."""
    device = probe(str(settings.options["device"]))
    return Situation(
        device_kind=device.kind,
        vendor=device.vendor,
        target=device.target,
        written=workload.as_written(),
        layout=settings.layout,
    )


def levers_on_ranks(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """Return what each lever does that a turn would try, and why it would not try the others.

    Raises a RatchetError as `optimize_parallel` does before it starts any rank.
    """
    only = settings.try_lever
    check_rank_lever(only)
    situation = situation_of(settings, check_ranks(settings)[0])
    found, reasons = find_rank_levers(situation, only=only, keep_precision=settings.keep_precision)
    levers = {one.name: one.summary for one in found}
    if (why := why_no_process(layout_of(situation), only=only)) is None:
        levers[ONE_PROCESS.name] = ONE_PROCESS.summary
    else:
        reasons[ONE_PROCESS.name] = why
    return levers, reasons


@dataclass(frozen=True, kw_only=True, slots=True)
class OneProcess:
    """Findings of the turn of one process, for each rank."""

    found: Candidate | None = None
    reason: str = ""  # Why there is nothing, or what it does
    changes: tuple[Change, ...] = ()


class _Turn:
    """State that the stages of a turn on ranks share; only a launch changes it."""

    def __init__(self, settings: Settings, listener: Listener) -> None:
        self.settings, self.listener = settings, listener
        workload, self.sizes = check_ranks(settings)
        self.situation = situation_of(settings, workload)
        self.layout = layout_of(self.situation)
        self.written = with_config(self.situation.written, {})
        self.model: ModelSignature = signature_of(workload.model)
        self.optimizer = type(next(iter(workload.make_optimizers().values()))).__name__
        self.shrinks = workload.shrink is not None
        self.launches = RankLaunches(settings)

    def tell(self, what: str) -> None:
        self.listener(what, {})


def optimize_parallel(
    settings: Settings, listener: Listener = lambda event, details: None
) -> ParallelTurn:
    """Try the levers of a layout, prove them together, and write recipe.json and result.json.

    Raises WorkloadError for a layout that the workload does not allow, DeviceError for more ranks
    than GPUs, RanksError if a rank dies, and RatchetError if `--try` names no lever.
    """
    check_rank_lever(settings.try_lever)
    turn = _Turn(settings, listener)
    levers, reasons = find_rank_levers(
        turn.situation, only=settings.try_lever, keep_precision=settings.keep_precision
    )
    make_folder(settings.out)
    own = optimize_rank(turn)
    if own.found is None:
        reasons = {ONE_PROCESS.name: own.reason, **reasons}
    else:
        changed = own.found.config.precision != turn.written.config.precision
        levers = (replace(ONE_PROCESS, changes_arithmetic=changed), *levers)
    errors: dict[str, float] = {}
    changes = _screened(turn, own.found, levers, errors) if levers else {}
    kept = [one for one in levers if changes[one.name].decision == "kept"]
    kept, losses, failed = _that_learn_the_same(turn, own.found, kept, changes)
    tuned = combined(kept, turn.written, turn.situation, own.found)
    proof, exposed = _prove(turn, tuned) if kept else (None, None)
    speedup = proof.speedup(WRITTEN, TUNED) if proof is not None else None
    proven = speedup is not None and speedup.answer == "faster"
    why = "the bundle was not proven faster" if speedup else NO_TIME
    for name, change in changes.items():
        if change.decision == "kept":
            reason = failed.get(name, "proven with the others" if proven else why)
            stays = proven and name not in failed
            changes[name] = _decided(change, reason, kept=stays)
    if own.found is not None:
        change = changes[ONE_PROCESS.name]
        changes[ONE_PROCESS.name] = msgspec.structs.replace(
            change, reason=f"{own.reason}: {change.reason}"
        )
    left = [
        Change(name=name, kind="lever", decision="not_applicable", reason=reason)
        for name, reason in reasons.items()
    ]
    best = tuned if proven else turn.written
    recipe = make_recipe(
        settings,
        probe(str(settings.options["device"])),
        best,
        model=turn.model,
        optimizer=turn.optimizer,
        speedup={"as_written": speedup} if speedup is not None else {},
        changes_arithmetic=proven and any(one.changes_arithmetic for one in kept),
        parallel=TunedLayout(layout=str(turn.layout), tuning=best.tuning),
    )
    found = ParallelTurn(
        workload=settings.title,
        layout=str(turn.layout),
        world=turn.layout.world,
        tuned=best,
        proven=proven,
        speedup=speedup,
        written_s=float(proof.summary(WRITTEN).median_s) if proof is not None else None,
        tuned_s=float(proof.summary(TUNED).median_s) if proof is not None else None,
        exposed_written_s=exposed[WRITTEN] if exposed is not None else None,
        exposed_tuned_s=exposed[TUNED] if exposed is not None else None,
        losses=losses.detail,
        changes=(*changes.values(), *left),
        gradient_errors=errors,
        one_process=own.changes,
        recipe=str(settings.out / "recipe.json"),
        result=str(settings.out / "result.json"),
        report=str(settings.out / "report.html"),
        command=f"torchrun --standalone --nproc-per-node={turn.layout.world} train.py",
        versions=dict(recipe.versions),
    )
    recipe.save(settings.out / "recipe.json")
    text = json.dumps(found.document(), indent=2)
    write_whole(settings.out / "result.json", f"{text}\n".encode())
    turn.launches.finish()
    return found


def _decided(change: Change, reason: str, *, kept: bool) -> Change:
    return msgspec.structs.replace(
        change,
        decision="kept" if kept else "dropped",
        reason=reason,
        basis="bundle" if kept else None,
    )


def optimize_rank(turn: _Turn) -> OneProcess:
    """Run the turn of one process at a rank's share of the batch, if `--try` and layout allow it.

    Its verdicts on kernels are in the ledger, where they serve every rank of the same device.
    Raises a RatchetError as that turn does.
    """
    settings, layout, only = turn.settings, turn.layout, turn.settings.try_lever
    if (why := why_no_process(layout, only=only)) is not None:
        return OneProcess(reason=why)
    turn.tell("the step of one rank")
    if SHARE * turn.launches.left_s < SMALLEST_BUDGET_S:
        return OneProcess(reason="the budget is too small for a turn of one process")
    options, rows = settings.options, turn.sizes.batch_size // (layout.data * layout.micro)
    try:  # some workloads take no batch size
        check_options(settings.workload, batch_size=rows, sequence=None, text=None)
        options = {**options, "batch_size": rows}
    except RatchetError:
        pass
    alone = replace(
        settings,
        options=options,
        budget_s=SHARE * turn.launches.left_s,
        gone_s=0.0,
        try_lever=None if only == ONE_PROCESS.name else only,
        layout=None,
        resume=False,
        out=settings.out / ONE_PROCESS.name,
    )
    outcome = optimize(alone, turn.listener)
    changes = tuple(outcome.result.changes)
    left: list[str] = []
    config = without_process(outcome.recipe.config, turn.written.config)
    if layout.fsdp > 1:
        config, left = by_units(config)
    if config == turn.written.config:
        return OneProcess(reason="nothing was faster on one rank", changes=changes)
    wanted = wanted_libraries(config)
    kernels = tuple(one for one in outcome.recipe.kernels if one.library in wanted)
    return OneProcess(
        found=Candidate(title=describe(config), config=config, kernels=kernels),
        reason="; ".join([describe(config), *left]),
        changes=changes,
    )


def _screened(
    turn: _Turn, own: Candidate | None, levers: Sequence[Lever], errors: dict[str, float]
) -> dict[str, Change]:
    """Screen the levers; without the recipe of one process if the ranks cannot run it.

    If ranks die, each lever has a launch of its own, and those with which they die are dropped.
    Raises RanksError or WorkloadError if they die with every lever.
    """
    try:
        return _one_a_field(levers, _screen(turn, own, levers, errors))
    except (RanksError, WorkloadError) as error:
        if own is not None:
            left = [one for one in levers if one.name != ONE_PROCESS.name]
            change = change_of(levers[0], "dropped", str(error))
            rest = _screened(turn, None, left, errors) if left else {}
            return {ONE_PROCESS.name: change, **rest}
        if len(levers) == 1:
            raise
        changes: dict[str, Change] = {}
        for lever in levers:
            try:
                changes |= _screen(turn, None, [lever], errors)
            except (RanksError, WorkloadError) as again:
                changes[lever.name] = change_of(lever, "dropped", str(again))
        if not errors:
            raise error from None
        return _one_a_field(levers, changes)


def _screen(
    turn: _Turn, own: Candidate | None, levers: Sequence[Lever], errors: dict[str, float]
) -> dict[str, Change]:
    """Time each lever alone, all in one launch; `kept` means that it goes into the bundle."""
    turn.tell(f"screening {', '.join(one.name for one in levers)}")
    arms = {one.name: combined([one], turn.written, turn.situation, own) for one in levers}
    (rank, *_), _ = turn.launches.run({WRITTEN: turn.written, **arms}, SCREEN_ROUNDS, traced=False)
    changes: dict[str, Change] = {}
    for lever in levers:
        one = compare(rank.samples, baseline=WRITTEN, new=lever.name, floor=None)
        error = errors[lever.name] = rank.arms[lever.name].gradient_error
        screening = LeverScreening(
            passed=True,
            ratio=one.ratio,
            low=one.low,
            high=one.high,
            answer=one.answer or "undecided",
        )
        reason = "" if screening.looks_faster else f"screened at {one.ratio:.3f}x"
        if not lever.changes_arithmetic and not error <= FP32_FLOOR:
            reason = f"its gradients differ by {error:.1e}, more than {FP32_FLOOR:g}"
        changes[lever.name] = change_of(lever, "dropped" if reason else "kept", reason, screening)
    return changes


def _one_a_field(levers: Sequence[Lever], changes: dict[str, Change]) -> dict[str, Change]:
    """Drop all but the fastest of the levers that set the same."""
    taken: dict[str, str] = {}
    for lever in sorted(levers, key=lambda one: -(changes[one.name].ratio or 0.0)):
        change = changes[lever.name]
        if change.decision == "kept" and lever.field in taken:
            reason = f"{taken[lever.field]} sets the same and is faster"
            changes[lever.name] = _decided(change, reason, kept=False)
        elif change.decision == "kept":
            taken[lever.field] = lever.name
    return changes


def _that_learn_the_same(
    turn: _Turn, own: Candidate | None, kept: list[Lever], changes: dict[str, Change]
) -> tuple[list[Lever], LossResult, dict[str, str]]:
    """Return the levers with which small copies learn the same, and what their losses said.

    While they do not, the lever that changes the arithmetic and wins least is left out: the last
    result says by name with which losses.
    """
    failed: dict[str, str] = {}
    while not (losses := _losses(turn, own, kept)).passed:
        changing = [one for one in kept if one.changes_arithmetic]
        least = min(changing, key=lambda one: changes[one.name].ratio or 0.0)
        failed[least.name] = losses.detail
        kept = [one for one in kept if one is not least]
    return kept, losses, failed


def _losses(turn: _Turn, own: Candidate | None, kept: Sequence[Lever]) -> LossResult:
    """Compare the losses of small copies, if a kept lever changes the arithmetic."""
    if not any(one.changes_arithmetic for one in kept):
        return LossResult(passed=True, detail="the arithmetic is as written")
    settings = turn.settings
    if not turn.shrinks:
        detail = f"{settings.title} has no small copy whose losses could be compared"
        return LossResult(passed=False, detail=detail)
    arms = {WRITTEN: turn.written, TUNED: combined(kept, turn.written, turn.situation, own)}
    curves: dict[str, list[list[float]]] = {name: [] for name in arms}
    took_s = 0.0
    for seed in range(settings.loss_seeds):
        if turn.launches.left_s < took_s:
            return LossResult(passed=False, detail="the budget ended before losses were compared")
        turn.tell(f"comparing losses, seed {seed}")
        began_s, how = time.monotonic(), {"shrunk": True, "traced": False}
        try:
            found, _ = turn.launches.run(arms, settings.loss_steps, **how, options={"seed": seed})
        except WorkloadError as error:  # the small copy does not divide
            return LossResult(passed=False, detail=str(error))
        took_s = time.monotonic() - began_s
        for name, curve in curves.items():
            curve.append(found[0].arms[name].losses)
    both = {"baseline": curves[WRITTEN], "candidate": curves[TUNED]}
    try:
        check = judge_losses(**both)
    except JudgeError as error:
        return LossResult(passed=False, **both, detail=str(error))
    told = f"{settings.loss_seeds} seeds, {settings.loss_steps} steps: {check.detail}"
    return LossResult(passed=check.passed, **both, detail=told)


def _prove(turn: _Turn, tuned: Candidate) -> tuple[Proof | None, dict[str, float] | None]:
    """Time the bundle against the step as written and its twin, launch after launch.

    Return the proof, and by arm the communication that it exposed; None if there was no time.
    """
    arms = {WRITTEN: turn.written, TWIN: turn.written, TUNED: tuned}
    ways = {name: one.key() for name, one in arms.items()}
    sitting, asked = Sitting(), turn.settings.launches
    exposed: list[list[float]] = []

    def take(launch: int) -> bool:
        rounds = turn.launches.rounds(len(arms), asked - launch)
        rounds = rounds or turn.launches.rounds(len(arms), 1)  # fewer launches than asked for
        if rounds:
            turn.tell(f"proving, launch {launch + 1} of {asked}, {rounds} rounds")
            found, own = turn.launches.run(arms, rounds)
            processes = {name: f"{launch}:{name}" for name in arms}
            sitting.add(
                TimedTogether(samples=tuple(found[0].samples), processes=processes, ways=ways)
            )
            exposed.append(own)
        return rounds > 0

    until_settled(take, lambda launches: launches == asked)
    if not sitting.timed:
        return None, None
    told = zip(arms, zip(*exposed, strict=True), strict=True)
    proof = Proof(arms={WRITTEN: turn.written, TUNED: tuned}, sitting=sitting, descriptions={})
    return proof, {name: median(times_s) for name, times_s in told}
