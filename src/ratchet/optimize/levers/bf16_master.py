"""Store weights in bf16 with fp32 masters in the optimizer, so a step casts no weights."""

from ratchet.optimize.levers.base import Situation, field_lever


def _applies(situation: Situation) -> str | None:
    if not situation.optimizer_is_adamw:
        return "the optimizer is not torch's AdamW, the only one that supports fp32 masters"
    if situation.written.precision == "bf16_master":
        return "the step already uses bf16 weights"
    return situation.bf16_is_slow


LEVER = field_lever(
    "precision",
    "bf16_master",
    name="bf16-weights",
    summary="weights in bf16, fp32 masters beside the optimizer's moments",
    expected="no casts of every weight, which autocast does twice a step",
    source="Micikevicius et al. 2018 (Mixed Precision Training), section 3.1: fp32 master copy",
    changes_arithmetic=True,
    applies=_applies,
    acts_on=("step",),
)
