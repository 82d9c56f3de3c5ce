"""Rotary position embedding: `ratchet::rope(x, cos, sin) = x * cos + rotate_half(x) * sin`.

x is [B, H, T, D] of any strides, cos and sin are [T, D] or [B, T, D] (Hugging Face's convention of
halves; arXiv:2104.09864, section 3.4.2). y has x's dtype and, where x is dense, its memory layout.
cos and sin are constants: no gradient flows to them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.judge.kernels.custom_op import Given, declare_op, features_last
from ratchet.judge.kernels.library.sources import FUSED, LibraryKernel, OpExample, Variant
from ratchet.judge.problems.suites.shipped import layers as reference
from ratchet.judge.problems.suites.shipped.layers import ENTRIES, rope_problems


def _inputs(x: Tensor, cos: Tensor, sin: Tensor) -> Given:
    return (features_last(x), features_last(cos), features_last(sin)), ()


def _output(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x)


declare_op(
    "rope_backward",
    "(Tensor grad, Tensor cos, Tensor sin) -> Tensor dx",
    entry="rope_backward",
    inputs=_inputs,
    outputs=_output,
    reference=reference.rope_backward,
)
declare_op(
    "rope",
    "(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    entry="rope_forward",
    inputs=_inputs,
    outputs=_output,
    reference=reference.rope_forward,
    derivative="rope_backward",
)

ROPE = LibraryKernel(
    name="rope",
    module=__name__,
    problems=rope_problems,
    summary="rotary position embedding, forward and backward, in one pass each over any layout",
    source_of_idea="arXiv:2104.09864; fused as in Liger-Kernel, arXiv:2410.10989",
    variants=(
        Variant(language="cpp", file="rope", entries=ENTRIES["rope"]),
        Variant(language="triton", file="rope", entries=ENTRIES["rope"]),
    ),
    acts_on=FUSED,
    examples={
        "rope": OpExample(
            arguments="x(2, 4, 24, 16), x(24, 16).detach().cos(), x(24, 16).detach().sin()",
            expected="a[0] * a[1] + torch.cat((-a[0][..., 8:], a[0][..., :8]), -1) * a[2]",
        ),
    },
)
