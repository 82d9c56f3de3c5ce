"""Use torch's foreach AdamW: multi-tensor ops, fewer launches."""

from ratchet.optimize.levers.base import field_lever
from ratchet.optimize.levers.fused_optimizer import needs_adamw

LEVER = field_lever(
    "optimizer",
    "foreach",
    name="foreach-optimizer",
    summary="AdamW(foreach=True)",
    expected="fewer kernel launches on a GPU; little effect on a CPU",
    source="PyTorch documentation, torch.optim.AdamW(foreach=)",
    applies=needs_adamw,
    default=False,
    acts_on=("optimizer",),
)
