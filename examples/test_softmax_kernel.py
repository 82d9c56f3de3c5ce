"""A Triton kernel and its tests, which run on an AMD GPU, or on one that is not here:

ratchet emulate --target gfx942 -- pytest examples/test_softmax_kernel.py
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((256, 2), (1024, 4))]


@triton.jit
def softmax_rows(x, y, width, stride, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, PADDED)
    value = tl.load(x + row * stride + at, at < width, -float("inf")).to(tl.float32)
    raised = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * stride + at, (raised / tl.sum(raised, 0)).to(y.dtype.element_ty), at < width)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def scaled_sum(x, y, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y, factor * tl.sum(tl.load(x + at, at < n, 0.0), 0))


def softmax(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    softmax_rows[(x.shape[0],)](x, y, x.shape[1], x.stride(0), triton.next_power_of_2(x.shape[1]))
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 781])
def test_softmax(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, width, device="cuda", dtype=dtype)
    assert x.is_cuda and torch.cuda.get_device_properties(0).warp_size in (32, 64)
    torch.testing.assert_close(softmax(x), torch.softmax(x, -1))


def test_an_autotuned_sum() -> None:
    x = torch.rand(3000, device="cuda")
    total = torch.zeros(1, device="cuda")

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(x.numel(), meta["BLOCK"]),)

    scaled_sum[grid](x, total, x.numel(), 0.5)
    torch.testing.assert_close(total[0], 0.5 * x.sum())
