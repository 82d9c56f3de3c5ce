"""Compute matrix products in bf16 under autocast; weights and optimizer stay fp32."""

from ratchet.optimize.levers.base import Situation, field_lever


def _applies(situation: Situation) -> str | None:
    if situation.written.precision != "fp32":
        return f"the step is already written in {situation.written.precision}"
    return situation.bf16_is_slow


LEVER = field_lever(
    "precision",
    "bf16_autocast",
    name="bf16-autocast",
    summary="torch.autocast(bfloat16) around the forward",
    expected="matrix products at the bf16 rate of the device",
    source="PyTorch documentation, Automatic Mixed Precision; Kalamkar et al. 2019 (BF16 training)",
    changes_arithmetic=True,
    applies=_applies,
    default=False,
    acts_on=("step",),
)
