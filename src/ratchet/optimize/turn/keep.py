"""Decide what to keep: the recipe that the launches proved, or its rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.measure.sitting import FEWEST_LAUNCHES
from ratchet.optimize.step.candidate import Candidate
from ratchet.optimize.turn.climb import Climb
from ratchet.optimize.turn.prove import Proof, Prover
from ratchet.optimize.turn.prove_kernels import ProvenKernels
from ratchet.optimize.turn.result import Basis, Change, Decision, LossResult, RecipeIs, StepSpeedup
from ratchet.optimize.turn.rivals import Baseline


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Results of the search."""

    baseline: Baseline
    best: Climb
    """Where the climb in any arithmetic ended."""
    earlier: tuple[Climb, ...] = ()
    """Where it stood when an earlier result of it was proven."""
    same: Climb | None = None
    """The climb in the arithmetic of the step as written, if there was one."""
    kernels: ProvenKernels
    losses: Mapping[str, LossResult | None] = field(default_factory=dict)
    """By precision; None if the budget ended before they were compared."""

    def losses_of(self, candidate: Candidate) -> LossResult | None:
        """Return the comparison that speaks for a candidate's precision, if there is one.

        Bf16 weights are rounded wherever autocast rounds them, so their losses speak for both.
        """
        precision, weights = candidate.config.precision, self.losses.get("bf16_master")
        if precision == "bf16_autocast" and weights is not None and weights.passed:
            return weights
        return self.losses.get(precision)

    def may_keep(self, candidate: Candidate) -> bool:
        """Return True if a candidate's arithmetic is the written one, or learned as well."""
        losses = self.losses_of(candidate)
        learns = losses is not None and losses.passed
        return learns or keeps_arithmetic(candidate, self.baseline.written)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """The recipe that the user gets, the reason, and the decision on each change."""

    recipe: Candidate
    same: Candidate | None
    """The best candidate in the arithmetic of the step as written, if that was looked for."""
    recipe_is: RecipeIs
    because: str
    changes: tuple[Change, ...]
    proof: Proof
    """What was timed, with the roles of the kept candidates."""


def roles(
    baseline: Baseline, same: Candidate | None, best: Candidate
) -> dict[str, Candidate | None]:
    """Return the candidates that are compared, by role; those never looked for are None."""
    return {
        "as_written": baseline.written,
        "best_compile": baseline.best if baseline.has_rival else None,
        "best_compile_same": baseline.best_same,
        "same_arithmetic": same,
        "ratchet": best,
    }


def keep(found: Found, prover: Prover) -> Kept:
    """Keep what the launches call faster than its rival; otherwise the rival is the recipe.

    The same-arithmetic climb must also beat the same-arithmetic rival. If what remains is not
    faster than the step as written, that is the recipe.
    """
    baseline = found.baseline
    climb = _proven(found, prover)
    shown = climb or found.best
    proof = prover.proof(roles(baseline, _same(found), shown.best))
    because = _because(found, shown, proof)
    recipe = climb.best if climb is not None else _rival(found)
    recipe_is: RecipeIs = "proven" if climb is not None else "rival"
    if recipe.key() != baseline.written.key() and not beats_written(baseline, recipe, prover):
        what = "it" if climb is not None else "the rival"
        recipe, recipe_is = baseline.written, "as_written"
        because = f"{because}, but nothing proved {what} faster than the step as written"
    elif recipe.key() == baseline.written.key():
        recipe_is = "as_written"
        if baseline.has_rival:
            because = (
                f"{because}; the rival changes the arithmetic, and its losses were not compared"
            )
    elif climb is not None and climb is found.same:
        because = "only the part that keeps the arithmetic was proven faster than the rival"
    kept_same = _kept_same(found, prover)
    return Kept(
        recipe=recipe,
        same=kept_same,
        recipe_is=recipe_is,
        because=f"{because[0].upper()}{because[1:]}.",
        changes=_changes(climb, found.best, recipe_is, because),
        proof=prover.proof(roles(baseline, kept_same, recipe)),
    )


def keeps_arithmetic(candidate: Candidate, written: Candidate) -> bool:
    """Return True if a candidate computes in the arithmetic of the step as written."""
    ours, theirs = candidate.config, written.config
    return (ours.precision, ours.matmul_precision) == (theirs.precision, theirs.matmul_precision)


def _same(found: Found) -> Candidate | None:
    if found.same is not None:
        return found.same.best
    best = found.best.best
    return best if keeps_arithmetic(best, found.baseline.written) else None


def _kept_same(found: Found, prover: Prover) -> Candidate | None:
    """Return the best in the written arithmetic: proven there, or its rival."""
    same, rival = _same(found), found.baseline.best_same
    if same is None or rival is None:
        return rival
    proof = prover.proof({"same_arithmetic": same, "best_compile_same": rival})
    return same if proof.is_faster("same_arithmetic", "best_compile_same") else rival


def _proven(found: Found, prover: Prover) -> Climb | None:
    """Return the climb that was proven faster than the rival, by the most if there are several."""
    rival = found.baseline.best
    climbs = [found.best, *found.earlier, *([found.same] if found.same is not None else [])]
    proven: list[tuple[float, Climb]] = []
    for climb in climbs:
        proof = prover.proof({"best_compile": rival, "ratchet": climb.best})
        speedup = proof.speedup("best_compile", "ratchet")
        if found.may_keep(climb.best) and speedup is not None and speedup.answer == "faster":
            proven.append((speedup.ratio, climb))
    return max(proven, key=lambda one: one[0])[1] if proven else None


def _rival(found: Found) -> Candidate:
    """Return the fastest rival that may be a recipe: one in another arithmetic only with losses."""
    baseline = found.baseline
    if found.may_keep(baseline.best):
        return baseline.best
    return baseline.best_same or baseline.written


def beats_written(baseline: Baseline, recipe: Candidate, prover: Prover) -> bool:
    """Return True if a proposed recipe is faster than the step as written.

    The interval over all launches must lie above 1. Where there were too few launches of both, the
    rival's screening may show it.
    """
    proof = prover.proof({"as_written": baseline.written, "ratchet": recipe})
    speedup = proof.speedup("as_written", "ratchet")
    if speedup is not None and speedup.low > 1.0:
        return speedup.answer != "equivalent"
    if proof.launches_of("as_written", "ratchet") >= FEWEST_LAUNCHES:
        return False
    above = speedup is None or speedup.ratio > 1.0
    return baseline.beats_written and above


def _because(found: Found, shown: Climb, proof: Proof) -> str:
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
    if not found.may_keep(best):
        losses = found.losses_of(best)
        detail = losses.detail if losses is not None else "they were not compared"
        return f"its losses do not allow the changed arithmetic ({detail})"
    speedup = proof.speedup("best_compile", "ratchet")
    if speedup is None:
        return "the budget ended before anything could be proven, so the recipe is the rival"
    if speedup.answer == "faster":
        return f"the final run proved it faster than the rival ({_figures(speedup)})"
    if proof.launches < 2:
        return (
            "the budget had room for one launch of the recipe beside its rival, too few for a "
            "proof, so the recipe is the rival"
        )
    return f"the final run did not prove the recipe faster than the rival ({_figures(speedup)})"


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
    """Return the best climb's kept changes that this climb does not have, as dropped."""
    own = {change.name for change in climb.changes if change.decision == "kept"}
    return tuple(
        _drop(change, because)
        for change in best.changes
        if change.decision == "kept" and change.name not in own
    )


def _drop(change: Change, because: str) -> Change:
    decision: Decision = "dropped"
    return change.model_copy(update={"decision": decision, "reason": because, "basis": None})
