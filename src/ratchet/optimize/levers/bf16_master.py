"""bf16 weights with fp32 masters in the optimizer: no cast of the weights in a step."""

from ratchet.optimize.levers.base import Situation, field_lever


def _applies(situation: Situation) -> str | None:
    if not situation.optimizer_is_adamw:
        return "the optimizer is the user's own: fp32 masters are kept for AdamW only"
    if situation.written.precision == "bf16_master":
        return "the step is already written so"
    return situation.bf16_is_slow


LEVER = field_lever(
    "precision",
    "bf16_master",
    name="bf16-weights",
    summary="weights in bf16, fp32 masters beside the optimizer's moments",
    expected="autocast's casts of every weight, twice a step, are gone",
    source="Micikevicius et al. 2018 (Mixed Precision Training), section 3.1: fp32 master copy",
    changes_arithmetic=True,
    applies=_applies,
    acts_on=("step",),
)
