"""Select one of torch's own attention backends."""

from ratchet.optimize.levers.base import Situation, field_lever


def _applies(situation: Situation) -> str | None:
    return None if situation.has_attention else "no scaled_dot_product_attention in the step"


LEVER = field_lever(
    "attention",
    "math",
    name="attention-math",
    summary="scaled_dot_product_attention through its math backend",
    expected="on a CPU with short sequences plain matrix products can beat the flash backend",
    source="PyTorch documentation, torch.nn.attention.sdpa_kernel",
    changes_arithmetic=False,
    applies=_applies,
    default=False,
    acts_on=("attention",),
)
