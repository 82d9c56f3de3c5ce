"""Registration of the library's ops with torch, and preparation of tensors for the C interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

NAMESPACE: Final = "ratchet"
OUT_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "": None}
NO_TENSOR: Final = torch.empty(0)
"""Placeholder for a missing optional tensor on the C interface."""


def register(
    name: str,
    schema: str,
    *,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> None:
    """Define `ratchet::NAME`: `run` on real tensors of any device, `fake` for shapes alone.

    `schema` is the signature without the name. Ops are pure: outputs are new and share no memory
    with inputs.
    """
    full = f"{NAMESPACE}::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, "CompositeExplicitAutograd", run)
    torch.library.register_fake(full, fake)
    if backward is not None:
        torch.library.register_autograd(full, backward, setup_context=setup_context)


def out_dtype_of(name: str, otherwise: torch.dtype) -> torch.dtype:
    """Return the dtype called `name`, or `otherwise` if it is empty."""
    return OUT_DTYPES[name] or otherwise


def as_rows(tensor: Tensor) -> Tensor:
    """Return `tensor` if its leading dimensions share one stride, else a contiguous copy."""
    if tensor.is_contiguous() or _shares_stride(tensor):
        return tensor
    return tensor.contiguous()


def _shares_stride(tensor: Tensor) -> bool:
    if tensor.dim() == 0 or tensor.stride(-1) != 1:
        return False
    expected = 0
    for size, stride in zip(
        reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True
    ):
        if size == 1:
            continue
        if stride == 0 or (expected and stride != expected):
            return False
        expected = size * stride
    return True
