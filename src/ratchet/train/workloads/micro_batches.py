"""Equal parts of a batch, whose gradients are averaged as if it were whole.

They are the whole batch's if the loss is a mean over equally many tokens in each part.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils import _pytree as pytree

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.workload import Batch


def samples_of(batch: object) -> int:
    """Return the leading dimension of the batch's first tensor; 1 without one."""
    leaves = (one for one in pytree.tree_leaves(batch) if isinstance(one, Tensor) and one.ndim)
    return next((len(one) for one in leaves), 1)


def split_batch(batch: object, parts: int) -> list[Batch]:
    """Return `parts` batches; tensors without a row for each sample are whole in each of them.

    Raises WorkloadError if `parts` does not divide the batch's samples.
    """
    if parts == 1:
        return [batch]
    samples = samples_of(batch)
    if samples % parts:
        raise WorkloadError(
            f"micro_batches {parts} does not divide the batch's {samples} samples: give a divisor"
        )
    leaves, form = pytree.tree_flatten(batch)
    cut = [
        one.chunk(parts)
        if isinstance(one, Tensor) and one.ndim and len(one) == samples
        else (one,) * parts
        for one in leaves
    ]
    return [pytree.tree_unflatten([one[part] for one in cut], form) for part in range(parts)]
