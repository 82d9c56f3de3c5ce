"""The gate of SwiGLU and GeGLU: `ratchet::gated_activation(gate, up, kind) = act(gate) * up`.

kind is "silu", "gelu" or "gelu_tanh" (arXiv:2002.05202). gate and up are fp32 or bf16; the result
has their common dtype. Only gate and up are saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.custom_op import Given, as_rows, declare_op, empty_like
from ratchet.judge.kernels.library.sources import FUSED, LibraryKernel, OpExample, Variant
from ratchet.judge.problems.suites.shipped import layers as reference
from ratchet.judge.problems.suites.shipped.layers import ENTRIES, KINDS, gated_activation_problems


def _inputs(*given: Any) -> Given:
    *tensors, kind = given
    if kind not in KINDS:
        raise KernelError(f"unknown activation {kind!r}: use one of {', '.join(KINDS)}")
    return tuple(map(as_rows, tensors)), (float(KINDS.index(kind)),)


def _output(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    return empty_like(gate, torch.promote_types(gate.dtype, up.dtype))


def _gradients(grad: Tensor, gate: Tensor, up: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    return empty_like(gate), empty_like(up)


declare_op(
    "gated_activation_backward",
    "(Tensor grad, Tensor gate, Tensor up, str kind) -> (Tensor dgate, Tensor dup)",
    entry="gated_activation_backward",
    inputs=_inputs,
    outputs=_gradients,
    reference=reference.gated_activation_backward,
)
declare_op(
    "gated_activation",
    "(Tensor gate, Tensor up, str kind) -> Tensor",
    entry="gated_activation_forward",
    inputs=_inputs,
    outputs=_output,
    reference=reference.gated_activation_forward,
    derivative="gated_activation_backward",
)

GATED_ACTIVATION = LibraryKernel(
    name="gated_activation",
    module=__name__,
    problems=gated_activation_problems,
    summary="SwiGLU and GeGLU: activation and product, forward and backward, in one pass each",
    source_of_idea="arXiv:2002.05202; fused as in Liger-Kernel, arXiv:2410.10989",
    variants=(
        Variant(language="cpp", file="gated_activation", entries=ENTRIES["gated_activation"]),
        Variant(language="triton", file="gated_activation", entries=ENTRIES["gated_activation"]),
    ),
    acts_on=FUSED,
    examples={
        "gated_activation": OpExample(
            arguments='x(8, 96), x(8, 96), "silu"', expected="F.silu(a[0]) * a[1]"
        ),
    },
)
