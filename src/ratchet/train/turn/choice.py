"""Choose the recipe: what the launches proved, or its rival; say what no time was left for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ratchet.base.measure import Ratio
from ratchet.base.measure.rounds import FEWEST_ROUNDS
from ratchet.base.measure.sitting import FEWEST_LAUNCHES
from ratchet.train.recipe import Candidate
from ratchet.train.turn.judge_kernels import UsableKernels
from ratchet.train.turn.optimize_result import (
    Basis,
    Change,
    LargerBatch,
    RecipeIs,
    Shortfall,
)
from ratchet.train.turn.prove import NEW, RIVAL, Proof, Prover
from ratchet.train.turn.rivals import Baseline
from ratchet.train.turn.schedule import CLOSING, LEAST_VERDICT_S, PLANNED_LAUNCHES, TurnSchedule
from ratchet.train.turn.screen import Losses, keeps_arithmetic, new_screening_s
from ratchet.train.turn.selection import Selected
from ratchet.train.turn.state import Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Results of the search."""

    baseline: Baseline
    best: Selected  # Where the selection in any arithmetic ended
    earlier: tuple[Selected, ...] = ()  # Where it stood when an earlier result of it was proven
    same: Selected | None = None
    """The selection in the arithmetic of the step as written, if there was one."""
    kernels: UsableKernels
    losses: Losses
    larger_batch: LargerBatch | None = None
    shortfall: Shortfall | None = None
    """The stages that the budget had no time for; None if every stage ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenRecipe:
    """The recipe that the user gets, the reason, and the decision on each change."""

    recipe: Candidate
    same: Candidate | None
    """The best candidate in the arithmetic of the step as written, if that was looked for."""
    recipe_is: RecipeIs
    because: str
    changes: tuple[Change, ...]
    proof: Proof  # The launches, with the roles of the chosen candidates


def roles(
    baseline: Baseline, same: Candidate | None, best: Candidate
) -> dict[str, Candidate | None]:
    """Return the candidates that are compared, by role; those never looked for are None."""
    return {
        "as_written": baseline.written,
        RIVAL: baseline.best if baseline.has_rival else None,
        "best_compile_same": baseline.best_same,
        "same_arithmetic": same,
        NEW: best,
    }


def choose(found: Found, prover: Prover) -> ChosenRecipe:
    """Choose what the launches call faster than its rival; otherwise the rival is the recipe.

    The same-arithmetic selection must also beat the same-arithmetic rival. If what remains is not
    faster than the step as written, that is the recipe.
    """
    baseline, written = found.baseline, found.baseline.written
    proven = _proven(found, prover)
    shown = proven or found.best
    because = _because(found, shown, prover)
    recipe = proven.best if proven is not None else _fastest_rival(found)
    recipe_is: RecipeIs = "proven" if proven is not None else "rival"
    if recipe.key() == written.key():
        recipe_is = "as_written"
        if baseline.has_rival:
            because += f"; the rival may not be the recipe: {_why_no_recipe(found)}"
    elif not beats_written(baseline, recipe, prover):
        what = "it" if proven is not None else "the rival"
        recipe, recipe_is = written, "as_written"
        because += f", but nothing proved {what} faster than the step as written"
    elif proven is not None and proven is found.same:
        because = "only the part that keeps the arithmetic was proven faster than the rival"
    same, rival = _same(found), baseline.best_same
    if same is None or rival is None or not prover.is_faster(same, rival):
        same = rival
    return ChosenRecipe(
        recipe=recipe,
        same=same,
        recipe_is=recipe_is,
        because=f"{because[0].upper()}{because[1:]}.",
        changes=_changes(proven, found.best, recipe_is, because),
        proof=prover.proof(roles(baseline, same, recipe)),
    )


def _same(found: Found) -> Candidate | None:
    if found.same is not None:
        return found.same.best
    best = found.best.best
    return best if keeps_arithmetic(best, found.baseline.written) else None


def _proven(found: Found, prover: Prover) -> Selected | None:
    """Return what was proven faster than the rival, by the most if there are several."""
    rival = found.baseline.best
    selected = [found.best, *found.earlier, *([found.same] if found.same is not None else [])]
    proven = [
        one
        for one in selected
        if found.losses.may_keep(one.best) and prover.is_faster(one.best, rival)
    ]
    return max(proven, key=lambda one: prover.ratio(rival, one.best), default=None)


def _fastest_rival(found: Found) -> Candidate:
    """Return the fastest rival that may be a recipe: a changed computation only with losses."""
    baseline = found.baseline
    rivals = (baseline.best, baseline.best_same, baseline.plain)
    fitting = (one for one in rivals if one is not None and found.losses.may_keep(one))
    return next(fitting, baseline.written)


def _why_no_recipe(found: Found) -> str:
    """Return why the fastest rival may not be the recipe, as a clause."""
    rival = found.baseline.best
    if found.losses.of(rival) is not None:
        return "its losses differ"
    what = "it replays graphs" if found.losses.replays(rival) else "it changes the arithmetic"
    return f"{what}, and its losses were not compared"


def beats_written(baseline: Baseline, recipe: Candidate, prover: Prover) -> bool:
    """Return True if a proposed recipe is faster than the step as written.

    The interval over all launches must lie above 1. Where there were too few launches of both, the
    rival's screening may show it.
    """
    speedup = prover.speedup(baseline.written, recipe)
    if speedup is not None and speedup.low > 1.0:
        return speedup.answer != "equivalent"
    if prover.is_timed(baseline.written, recipe):
        return False
    above = speedup is None or speedup.ratio > 1.0
    return baseline.beats_written and above


def _because(found: Found, shown: Selected, prover: Prover) -> str:
    """Explain the choice of recipe by the comparison with the rival, as a clause."""
    baseline, best = found.baseline, shown.best
    if not baseline.has_rival:
        return "the budget ended before torch.compile's step was timed"
    rivals = (baseline.best, baseline.best_same)
    if best.key() in {one.key() for one in rivals if one is not None}:
        if not any(change.ratio is not None for change in shown.changes):
            return (
                "no change was proven faster than the rival, torch.compile's best, in the time "
                "that the budget left"
            )
        return "no change looked faster than the rival, torch.compile's best"
    if not found.losses.may_keep(best):
        losses = found.losses.of(best)
        if losses is None:
            return "its losses were not compared, so the changed arithmetic is not kept"
        return f"its losses do not allow the changed arithmetic ({losses.detail})"
    speedup = prover.speedup(baseline.best, best)
    if speedup is None:
        return "the budget ended before anything could be proven, so the recipe is the rival"
    if speedup.answer == "faster":
        return f"the final run proved it faster than the rival ({_figures(speedup)})"
    nearest = ""
    if speedup.ratio > 1.0:
        nearest = f"; nearest to a proof came {best.title} ({_figures(speedup)})"
    if prover.launches_of(baseline.best, best) < FEWEST_LAUNCHES:
        return (
            "the budget had room for one launch beside the rival, too few for a proof, so the "
            f"recipe is the rival{nearest}"
        )
    return f"the final run proved nothing faster than the rival{nearest}"


def _figures(found: Ratio) -> str:
    return f"{found.ratio:.2f}x, 95 % interval {found.low:.2f} to {found.high:.2f}"


def _changes(
    proven: Selected | None, best: Selected, recipe_is: RecipeIs, because: str
) -> tuple[Change, ...]:
    """Return the final decisions; unproven changes are dropped with a reason."""
    kept = [change for change in best.changes if change.decision == "kept"]
    if proven is not None and recipe_is == "proven":
        own = {change.name for change in proven.changes if change.decision == "kept"}
        lost = {} if proven is best else {one.name: one for one in kept if one.name not in own}
        stays = (change for change in proven.changes if change.name not in lost)
        return (*stays, *(_drop(change, because) for change in lost.values()))
    bases: Sequence[Basis] = ("rival",) if recipe_is == "rival" else ()
    return tuple(
        change if change.decision != "kept" or change.basis in bases else _drop(change, because)
        for change in best.changes
    )


def _drop(change: Change, because: str) -> Change:
    return msgspec.structs.replace(change, decision="dropped", reason=because, basis=None)


STEP_S = 60.0  # Budgets are told in whole minutes
RIVAL_STAGE, KERNEL_STAGE = "the timing of torch.compile", "verdicts on kernels"
LOSS_STAGE, PROOF_STAGE = "the comparison of losses", "the proof"


def before_a_rival(turn: Turn, losses: Losses, rival: Candidate) -> Shortfall:
    """Return what is missing where even the first rival had no time: everything after it."""
    costs, written = turn.costs, losses.written
    launch_s = costs.launch_s([written, rival], FEWEST_ROUNDS)
    needed_s = max(costs.compiled_s(rival), turn.schedule.spent_s) + PLANNED_LAUNCHES * launch_s
    stages = [RIVAL_STAGE, KERNEL_STAGE, PROOF_STAGE]
    if not keeps_arithmetic(rival, written):
        needed_s += losses.takes_s(rival)
        stages.insert(2, LOSS_STAGE)
    return Shortfall(stages=stages, enough_s=_enough_s(turn.schedule, needed_s), is_least=True)


def after_a_rival(
    turn: Turn,
    *,
    rival: Candidate,
    best: Candidate,
    prover: Prover,
    losses: Losses,
    kernels: UsableKernels,
) -> Shortfall | None:
    """Return what is missing behind the first rival; None if every stage ran."""
    needed: dict[str, float] = {}
    arms = {RIVAL: rival, NEW: best}
    if waiting := kernels.left_out(best.config.precision):
        verdict_s = max(turn.costs.verdict_s, LEAST_VERDICT_S)
        needed[KERNEL_STAGE] = (len(waiting) + 1) * verdict_s + new_screening_s(turn, best)
    for one in (best, rival):
        if losses.of(one) is None and not losses.may_keep(one):
            needed[LOSS_STAGE] = losses.takes_s(one)
            break
    tried = best.key() != rival.key() and prover.ratio(rival, best) > 1.0
    if waiting or (tried and prover.launches_of(rival, best) < FEWEST_LAUNCHES):
        needed[PROOF_STAGE] = PLANNED_LAUNCHES * prover.launch_s(arms)
    if not needed:
        return None
    return Shortfall(
        stages=list(needed),
        enough_s=_enough_s(turn.schedule, sum(needed.values())),
        is_least=bool(waiting) and not turn.costs.verdict_s,
    )


def _enough_s(schedule: TurnSchedule, needed_s: float) -> float:
    """Return a budget of whole minutes, longer than this one, with so much time more."""
    budget_s, work_s = schedule.budget_s, schedule.spent_s + needed_s
    with_closing_s = (work_s + CLOSING.more_s) / (1 - CLOSING.share)
    enough_s = min(with_closing_s, work_s + CLOSING.most_s)
    return STEP_S * max(math.ceil(enough_s / STEP_S), math.floor(budget_s / STEP_S) + 1)
