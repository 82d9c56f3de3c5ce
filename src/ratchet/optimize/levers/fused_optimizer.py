"""Use torch's fused AdamW: one pass over the parameters instead of one op per update term."""

from ratchet.optimize.levers.base import Situation, field_lever


def needs_adamw(situation: Situation) -> str | None:
    return None if situation.optimizer_is_adamw else "the optimizer is not torch's AdamW"


LEVER = field_lever(
    "optimizer",
    "fused",
    name="fused-optimizer",
    summary="AdamW(fused=True)",
    expected="the update's memory traffic falls to one read and one write of each state",
    source="PyTorch documentation, torch.optim.AdamW(fused=)",
    applies=needs_adamw,
    default=False,
    acts_on=("optimizer",),
)
