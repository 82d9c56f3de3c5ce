"""Context parallelism: each rank has a part of every sequence, and gathers its keys and values.

As in Llama 3's training (arXiv:2407.21783, section 3.3.2), keys and values are gathered whole:
they are small beside queries where heads are grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.overrides import TorchFunctionMode

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.llama import Llama
from ratchet.train.workloads.parallel.tensor import experts_of


class _OverSequence(TorchFunctionMode):
    """Attention inside it is over the whole sequence, of which this rank has one part."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Tensor, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        named = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **named)
        query, key, value = args
        if named.pop("is_causal", False):
            named["attn_mask"] = self._causal(query.shape[-2], query.device)
        return func(query, self._gathered(key), self._gathered(value), **named)

    def _gathered(self, part: Tensor) -> Tensor:
        """Gather [B, N, T / cp, D] over ranks to [B, N, T, D]; gradients are summed and split."""
        whole = DTensor.from_local(part, self._mesh, [Shard(2)])
        whole = whole.redistribute(placements=[Replicate()])
        return whole.to_local(grad_placements=[Partial()])

    def _causal(self, length: int, device: torch.device) -> Tensor:
        """Return bool [T / cp, T]: True where a query may see a key."""
        first = self._mesh.get_local_rank() * length
        keys = torch.arange(self._mesh.size() * length, device=device)
        return keys <= keys[first : first + length].unsqueeze(1)


def split_sequence(model: nn.Module, mesh: DeviceMesh, sequence: int) -> None:
    """Make the model's blocks attend over sequences of `sequence` tokens split over a mesh."""
    if not isinstance(model, Llama) or experts_of(model):
        raise WorkloadError(
            f"{type(model).__name__} cannot be split along its sequence: use llama, or drop cp "
            "(experts are assigned by whole sequences)"
        )
    length = sequence // mesh.size()
    first = mesh.get_local_rank() * length
    model.cos, model.sin = (one[first : first + length] for one in (model.cos, model.sin))
    for block in find_blocks(model):
        _enclose(block, mesh)


def _enclose(block: nn.Module, mesh: DeviceMesh) -> None:
    forward = block.forward

    def over_sequence(*args: object, **kwargs: object) -> object:
        with _OverSequence(mesh):
            return forward(*args, **kwargs)

    block.__dict__["forward"] = over_sequence
