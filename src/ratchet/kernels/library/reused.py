"""Reuse of large outputs' memory, so that steps cause no page faults.

A fresh 64 MB output costs about three times as much as writing it, for page faults and zeroing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

SMALLEST_BYTES: Final = 1 << 20
_KEPT: Final = 4
_storages: Final[dict[int, torch.UntypedStorage]] = {}


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return torch.empty on the CPU; from `SMALLEST_BYTES` on, it reuses memory.

    A storage is reused only if this module's reference is the last one: then no tensor, view, graph
    or exported array can see it. At most a few sizes are kept.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes < SMALLEST_BYTES:
        return torch.empty(tuple(shape), dtype=dtype)
    storage = _storages.pop(size_bytes, None)
    if storage is None or _holders(storage) > 1 or storage.nbytes() != size_bytes:
        storage = torch.empty(size_bytes, dtype=torch.uint8).untyped_storage()
    _storages[size_bytes] = storage
    while len(_storages) > _KEPT:
        _storages.pop(next(iter(_storages)))
    size = torch.Size(shape)
    strides = torch.empty(size, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, strides)


def release() -> None:
    """Forget every kept storage."""
    _storages.clear()


def _holders(storage: torch.UntypedStorage) -> int:
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count
