"""Decide what to keep: the recipe that the final run proved, or its rival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.optimize.step.candidate import Candidate
from ratchet.optimize.turn.baseline import Baseline
from ratchet.optimize.turn.climb import Climb
from ratchet.optimize.turn.prove import Proof
from ratchet.optimize.turn.prove_kernels import ProvenKernels
from ratchet.optimize.turn.result import Basis, Change, Decision, LossResult, RecipeIs, StepSpeedup

ROLES = ("as_written", "best_compile", "best_compile_same", "same_arithmetic", "ratchet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Results of the search that enter the final run."""

    same: Climb
    """The climb in the arithmetic of the step as written."""
    best: Climb
    kernels: ProvenKernels
    losses: LossResult | None
    reserved_s: float
    """Seconds of the budget reserved for the final run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """The recipe that the user gets, the reason, and the decision on each change."""

    recipe: Candidate
    same: Candidate
    """The best candidate in the arithmetic of the step as written."""
    recipe_is: RecipeIs
    because: str
    changes: tuple[Change, ...]
    proof: Proof | None
    """The final run, with the roles of the kept candidates."""


def roles(baseline: Baseline, same: Candidate, best: Candidate) -> dict[str, Candidate]:
    """Return the candidates that the final run compares, by role."""
    found = (baseline.written, baseline.best, baseline.best_same, same, best)
    return dict(zip(ROLES, found, strict=True))


def keep(baseline: Baseline, found: Found, proof: Proof | None) -> Kept:
    """Keep what the final run calls faster than its rival; otherwise the rival is the recipe.

    The same-arithmetic climb must also beat the same-arithmetic rival. If the step as written is
    faster than what remains, it is the recipe.
    """
    same, best = found.same, found.best
    kept_same = same.best
    if proof is None or not proof.is_faster("same_arithmetic", "best_compile_same"):
        kept_same = baseline.best_same
    climb = _proven(same, best, proof)
    recipe = climb.best if climb is not None else _rival(baseline, found)
    recipe_is: RecipeIs = "proven" if climb is not None else "rival"
    because = _because(baseline, best, proof)
    if _written_is_faster(baseline, recipe, proof):
        recipe, recipe_is = baseline.written, "as_written"
        because = f"{because}, and the step as written was faster than the rival"
    elif recipe.key() == baseline.written.key():
        recipe_is = "as_written"
    elif climb is same and climb is not best:
        because = "only the part that keeps the arithmetic was proven faster than the rival"
    changes = _changes(climb, best, recipe_is, because)
    cast = roles(baseline, kept_same, recipe)
    return Kept(
        recipe=recipe,
        same=kept_same,
        recipe_is=recipe_is,
        because=f"{because[0].upper()}{because[1:]}.",
        changes=changes,
        proof=proof.recast(cast) if proof is not None else None,
    )


def keeps_arithmetic(candidate: Candidate, written: Candidate) -> bool:
    """Return True if a candidate computes in the arithmetic of the step as written."""
    ours, theirs = candidate.config, written.config
    return (ours.precision, ours.matmul_precision) == (theirs.precision, theirs.matmul_precision)


def _rival(baseline: Baseline, found: Found) -> Candidate:
    """Return the fastest rival that may be a recipe.

    One in another arithmetic qualifies only if losses were compared in that arithmetic and passed,
    or in one that rounds more: bf16 weights are rounded wherever autocast rounds them.
    """
    losses, compared = found.losses, found.best.best.config.precision
    covered = {"bf16_master": ("bf16_master", "bf16_autocast")}.get(compared, (compared,))
    passed = losses is not None and losses.passed and baseline.best.config.precision in covered
    if passed or keeps_arithmetic(baseline.best, baseline.written):
        return baseline.best
    return baseline.best_same


def _proven(same: Climb, best: Climb, proof: Proof | None) -> Climb | None:
    """Return the climb whose result the final run calls faster than the rival, the best first."""
    if proof is None:
        return None
    for role, climb in (("ratchet", best), ("same_arithmetic", same)):
        if proof.is_faster(role, "best_compile"):
            return climb
    return None


def _written_is_faster(baseline: Baseline, recipe: Candidate, proof: Proof | None) -> bool:
    """Return True if the step as written beats the proposed recipe.

    The final run decides if it timed the step as written; otherwise the rivals' screening does.
    """
    if proof is not None and proof.decides and proof.timed("as_written"):
        for role, one in proof.arms.items():
            if one.key() == recipe.key():
                return proof.is_faster("as_written", role)
    return recipe is baseline.best and baseline.written_is_faster


def _because(baseline: Baseline, best: Climb, proof: Proof | None) -> str:
    """Explain the choice of recipe by the comparison with the rival, as a clause."""
    if not baseline.has_rival:
        return "the budget ended before torch.compile's step was timed"
    rivals = (baseline.best, baseline.best_same, *baseline.alike)
    proven = proof is not None and proof.is_faster("ratchet", "best_compile")
    if not proven and best.best.key() in {one.key() for one in rivals}:
        if not any(change.ratio is not None for change in best.changes):
            return (
                "the budget had no room to try a change, so the recipe is the rival, "
                "torch.compile's best"
            )
        return "no change looked faster than the rival, torch.compile's best"
    if proof is None:
        return "the budget ended before anything could be proven, so the recipe is the rival"
    found = proof.speedup("best_compile", "ratchet")
    if found.answer == "faster":
        return f"the final run proved it faster than the rival ({_figures(found)})"
    if not proof.decides:
        return (
            f"the budget had room for {proof.launches} of {proof.asked} launches of the final "
            "run, too few for a proof, so the recipe is the rival"
        )
    return f"the final run did not prove the recipe faster than the rival ({_figures(found)})"


def _figures(found: StepSpeedup) -> str:
    return f"{found.ratio:.2f}x, 95 % interval {found.low:.2f} to {found.high:.2f}"


def _changes(
    climb: Climb | None, best: Climb, recipe_is: RecipeIs, because: str
) -> tuple[Change, ...]:
    """Return each change with its final decision; unproven ones are dropped with a reason."""
    if climb is not None and recipe_is == "proven":
        lost = _lost(best, climb, because) if climb is not best else ()
        names = {change.name for change in lost}
        return (*(one for one in climb.changes if one.name not in names), *lost)
    stays: Sequence[Basis] = ("rival",) if recipe_is == "rival" else ()
    return tuple(
        change if change.decision != "kept" or change.basis in stays else _drop(change, because)
        for change in best.changes
    )


def _lost(best: Climb, climb: Climb, because: str) -> tuple[Change, ...]:
    """Return the best climb's kept changes that this climb could not have, as dropped."""
    own = {change.name for change in climb.changes if change.decision != "not_applicable"}
    return tuple(
        _drop(change, because)
        for change in best.changes
        if change.decision == "kept" and change.name not in own
    )


def _drop(change: Change, because: str) -> Change:
    decision: Decision = "dropped"
    return change.model_copy(update={"decision": decision, "reason": because, "basis": None})
