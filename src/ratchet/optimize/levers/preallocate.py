"""Keep the buffers of gradients from step to step."""

from ratchet.optimize.levers.base import field_lever, only_cpu

LEVER = field_lever(
    "preallocate",
    True,
    name="preallocate",
    summary="gradient buffers are zeroed in place instead of freed",
    expected="no page faults for fresh gradients; backward reads them once more",
    source="PyTorch documentation, Optimizer.zero_grad(set_to_none=)",
    applies=only_cpu,
    default=False,
    acts_on=("system",),
)
