"""The stages that a turn had no time for, and the budget that would do."""

from __future__ import annotations

import math

from ratchet.base.measure.rounds import FEWEST_ROUNDS
from ratchet.base.measure.sitting import FEWEST_LAUNCHES
from ratchet.train.recipe.candidate import Candidate
from ratchet.train.turn.losses import Losses, comparison_s, keeps_arithmetic
from ratchet.train.turn.optimize_result import Shortfall
from ratchet.train.turn.prove import NEW, RIVAL, Prover
from ratchet.train.turn.prove_kernels import ProvenKernels
from ratchet.train.turn.schedule import CLOSING, LEAST_VERDICT_S, PLANNED_LAUNCHES
from ratchet.train.turn.screen import new_screening_s
from ratchet.train.turn.state import Turn

STEP_S = 60.0
"""Budgets are told in whole minutes."""
RIVAL_STAGE, KERNEL_STAGE = "the timing of torch.compile", "verdicts on kernels"
LOSS_STAGE, PROOF_STAGE = "the comparison of losses", "the proof"


def before_a_rival(turn: Turn, written: Candidate, rival: Candidate) -> Shortfall:
    """Return what is missing where even the first rival had no time: everything after it."""
    costs = turn.costs
    launch_s = costs.launch_s([written, rival], FEWEST_ROUNDS)
    needed_s = max(costs.compiled_s(rival), turn.schedule.spent_s) + PLANNED_LAUNCHES * launch_s
    stages = [RIVAL_STAGE, KERNEL_STAGE, PROOF_STAGE]
    if not keeps_arithmetic(rival, written):
        needed_s += comparison_s(turn, written, rival)
        stages.insert(2, LOSS_STAGE)
    return Shortfall(stages=stages, enough_s=_enough_s(turn, needed_s), is_least=True)


def after_a_rival(
    turn: Turn,
    *,
    rival: Candidate,
    best: Candidate,
    prover: Prover,
    losses: Losses,
    kernels: ProvenKernels,
) -> Shortfall | None:
    """Return what is missing behind the first rival; None if every stage ran."""
    needed: dict[str, float] = {}
    arms = {RIVAL: rival, NEW: best}
    if waiting := kernels.left_out(best.config.precision):
        verdict_s = max(turn.costs.verdict_s, LEAST_VERDICT_S)
        needed[KERNEL_STAGE] = (len(waiting) + 1) * verdict_s + new_screening_s(turn, best)
    for one in (best, rival):
        if losses.of(one) is None and not losses.may_keep(one):
            needed[LOSS_STAGE] = comparison_s(turn, losses.written, one)
            break
    tried = best.key() != rival.key() and prover.ratio(rival, best) > 1.0
    if waiting or (tried and prover.launches_of(rival, best) < FEWEST_LAUNCHES):
        needed[PROOF_STAGE] = PLANNED_LAUNCHES * prover.launch_s(arms)
    if not needed:
        return None
    return Shortfall(
        stages=list(needed),
        enough_s=_enough_s(turn, sum(needed.values())),
        is_least=bool(waiting) and not turn.costs.verdict_s,
    )


def _enough_s(turn: Turn, needed_s: float) -> float:
    """Return a budget of whole minutes, longer than this one, with so much time more."""
    budget_s = turn.schedule.budget_s
    work_s = turn.schedule.spent_s + needed_s
    with_closing_s = (work_s + CLOSING.more_s) / (1 - CLOSING.share)
    enough_s = min(with_closing_s, work_s + CLOSING.most_s)
    return STEP_S * max(math.ceil(enough_s / STEP_S), math.floor(budget_s / STEP_S) + 1)
