"""Communication hooks of DDP. It reads their annotations as classes, so none is postponed here."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]


def reduce_in_bf16(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients in bf16; torch's own hook for this refuses gloo."""
    whole: Tensor = bucket.buffer()
    rounded = (whole / dist.get_world_size()).to(torch.bfloat16)
    work = dist.all_reduce(rounded, async_op=True)
    assert work is not None  # of an asynchronous call

    def widened(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        return whole.copy_(done.value()[0])

    future: torch.futures.Future[Tensor] = work.get_future().then(widened)
    return future
