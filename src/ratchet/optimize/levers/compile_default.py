"""Use torch.compile in its default mode."""

from ratchet.optimize.levers.base import field_lever

LEVER = field_lever(
    "compile_mode",
    "default",
    name="compile",
    summary="torch.compile over the model and its loss, default mode",
    expected="element-wise chains are fused, which removes most of an eager step's memory traffic",
    source="PyTorch documentation, torch.compile",
    acts_on=("step",),
)
