"""RMSNorm and LayerNorm, alone or with the residual add.

    h = x + residual
    RMSNorm:   y = h / sqrt(mean(h^2) + eps) * weight                (arXiv:1910.07467, equation 4)
    LayerNorm: y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias
                                                                     (arXiv:1607.06450, equation 4)

The ops are `ratchet::rms_norm(x, weight, eps)`, `ratchet::layer_norm(x, weight, bias, eps)` and
`ratchet::add_NORM(x, residual, ...) -> (y, h)`. x is fp32 or bf16, and so are weight and bias; sums
are fp32, and LayerNorm's variance takes two passes over a row in cache. Only x (or h) and weight
are saved: recomputing the inverse deviation is cheaper than reading it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ratchet.judge.kernels.custom_op import (
    NO_TENSOR,
    Given,
    as_rows,
    declare_op,
    empty_like,
    or_none,
    out_dtype_of,
)
from ratchet.judge.kernels.library.sources import FUSED, LibraryKernel, OpExample, Variant
from ratchet.judge.problems.suites.shipped import layers as reference
from ratchet.judge.problems.suites.shipped.layers import (
    ENTRIES,
    layer_norm_problems,
    rms_norm_problems,
)

OUT: Final = 'float eps, str out_dtype=""'


def _declare(name: str, *, bias: bool) -> None:
    """Declare the ops of RMSNorm, or of LayerNorm, which has a bias, forward and backward."""
    own, vectors = ("Tensor weight, Tensor? bias", 2) if bias else ("Tensor weight", 1)
    flag, dbias = ("bool has_bias, ", ", Tensor dbias") if bias else ("", "")

    def dtype_of(given: tuple[Any, ...], otherwise: torch.dtype) -> torch.dtype:
        return out_dtype_of("".join(given[vectors + 1 :]), otherwise)

    def inputs(x: Tensor, *given: Any) -> Given:
        return (as_rows(x), *map(or_none, given[:vectors])), (given[vectors],)

    def output(x: Tensor, *given: object) -> Tensor:
        return empty_like(x, dtype_of(given, x.dtype))

    def composite(x: Tensor, weight: Tensor, *given: Any) -> tuple[Tensor]:
        dtype = dtype_of((weight, *given), x.dtype)
        added = given[0] if bias else None
        return (reference.norm(x, weight, added, given[vectors - 1], dtype, bias),)

    def add_inputs(x: Tensor, residual: Tensor, *given: object) -> Given:
        tensors, scalars = inputs(residual, *given)
        return (as_rows(x), *tensors), scalars

    def add_outputs(x: Tensor, residual: Tensor, *given: object) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(x.dtype, residual.dtype)
        return empty_like(x, dtype_of(given, dtype)), empty_like(x, dtype)

    def add_composite(x: Tensor, residual: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        h = (x + residual).contiguous()
        return composite(h, *given)[0], h

    def backward_inputs(grad: Tensor, x: Tensor, weight: Tensor, *given: Any) -> Given:
        return (as_rows(grad), as_rows(x), weight.contiguous()), given[-1:]

    def backward_outputs(
        grad: Tensor, x: Tensor, weight: Tensor, has_bias: object, *eps: float
    ) -> tuple[Tensor, ...]:
        gradients = empty_like(x), empty_like(weight)
        dbias_size = weight.shape if has_bias else (0,)
        return (*gradients, weight.new_empty(dbias_size)) if eps else gradients

    def add_backward_inputs(grad: Tensor, grad_h: Tensor | None, *given: Any) -> Given:
        (dy, *tensors), scalars = backward_inputs(grad, *given)
        return (dy, NO_TENSOR if grad_h is None else as_rows(grad_h), *tensors), scalars

    declare_op(
        f"{name}_backward",
        f"(Tensor grad, Tensor x, Tensor weight, {flag}float eps)"
        f" -> (Tensor dx, Tensor dweight{dbias})",
        entry=f"{name}_backward",
        inputs=backward_inputs,
        outputs=backward_outputs,
        reference=getattr(reference, f"{name}_backward"),
    )
    declare_op(
        f"add_{name}_backward",
        f"(Tensor grad, Tensor? grad_h, Tensor h, Tensor weight, {flag}float eps)"
        f" -> (Tensor dh, Tensor dweight{dbias})",
        entry=f"add_{name}_backward",
        inputs=add_backward_inputs,
        outputs=lambda grad, grad_h, *given: backward_outputs(grad, *given),
        reference=getattr(reference, f"add_{name}_backward"),
    )
    declare_op(
        name,
        f"(Tensor x, {own}, {OUT}) -> Tensor",
        entry=f"{name}_forward",
        inputs=inputs,
        outputs=output,
        reference=getattr(reference, f"{name}_forward"),
        composite=composite,
        derivative=f"{name}_backward",
    )
    declare_op(
        f"add_{name}",
        f"(Tensor x, Tensor residual, {own}, {OUT}) -> (Tensor y, Tensor h)",
        entry=f"add_{name}_forward",
        inputs=add_inputs,
        outputs=add_outputs,
        reference=getattr(reference, f"add_{name}_forward"),
        composite=add_composite,
        derivative=f"add_{name}_backward",
        sums={"h": ("x", "residual")},
    )


_declare("rms_norm", bias=False)
_declare("layer_norm", bias=True)

RMS_NORM = LibraryKernel(
    name="rms_norm",
    module=__name__,
    problems=rms_norm_problems,
    summary="RMSNorm with the residual add, forward and backward, each in one pass over memory",
    source_of_idea="arXiv:1910.07467; fused as in Liger-Kernel, arXiv:2410.10989",
    variants=(
        Variant(language="cpp", file="rms_norm", entries=ENTRIES["rms_norm"]),
        Variant(language="triton", file="norms", entries=ENTRIES["rms_norm"]),
    ),
    acts_on=("norm", *FUSED),
    examples={
        "rms_norm": OpExample(
            arguments="x(8, 64), x(64), 1e-6", expected="F.rms_norm(a[0], (64,), a[1], a[2])"
        ),
        "add_rms_norm": OpExample(
            arguments="x(8, 64), x(8, 64), x(64), 1e-6",
            expected="(F.rms_norm(a[0] + a[1], (64,), a[2], a[3]), a[0] + a[1])",
        ),
    },
)
LAYER_NORM = LibraryKernel(
    name="layer_norm",
    module=__name__,
    problems=layer_norm_problems,
    summary="LayerNorm with the residual add, forward and backward, each in one pass over memory",
    source_of_idea="arXiv:1607.06450; fused as in Liger-Kernel, arXiv:2410.10989",
    variants=(
        Variant(language="cpp", file="layer_norm", entries=ENTRIES["layer_norm"]),
        Variant(language="triton", file="norms", entries=ENTRIES["layer_norm"]),
    ),
    acts_on=("norm", *FUSED),
    examples={
        "layer_norm": OpExample(
            arguments="x(8, 64), x(64), x(64), 1e-5",
            expected="F.layer_norm(a[0], (64,), a[1], a[2], a[3])",
        ),
        "add_layer_norm": OpExample(
            arguments="x(8, 64), x(8, 64), x(64), x(64), 1e-5",
            expected="(F.layer_norm(a[0] + a[1], (64,), a[2], a[3], a[4]), a[0] + a[1])",
        ),
    },
)
