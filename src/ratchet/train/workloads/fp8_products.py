"""Linear layers that multiply in fp8, forward and backward, with scales from the values themselves.

Activations and weights are rounded to e4m3, gradients to e5m2, each tensor with one scale that maps
its largest magnitude to the format's (Micikevicius et al. 2022, arXiv:2209.05433, sections 3 and
4.2). `torch._scaled_mm` multiplies them with sums in fp32. Parameters and their gradients keep
their dtypes. The formats are OCP's, or those of CDNA 3 (FNUZ) on gfx942.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.checkpointing import (
    is_transformed,
    replace_forward,
    restore_forwards,
)
from ratchet.train.workloads.deferred_logits import find_head

MULTIPLIES: Final = "multiplies_in_fp8"  # Mark of a layer whose forward is replaced here
GRANULE: Final = 16
"""Rows, columns and summands of a product must be multiples of it (cuBLASLt, hipBLASLt)."""
FNUZ_TARGETS: Final = ("gfx940", "gfx941", "gfx942")
"""AMD GPUs whose fp8 has one zero and no infinity (CDNA 3 ISA guide)."""
LEAST_SCALE: Final = 1e-30  # Scale of a tensor of zeros

Formats = tuple[torch.dtype, torch.dtype]
OCP: Final[Formats] = (torch.float8_e4m3fn, torch.float8_e5m2)
FNUZ: Final[Formats] = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def formats_for(target: str) -> Formats:
    """Return the dtypes of values and of gradients on a device's target, such as `gfx942`."""
    return FNUZ if target in FNUZ_TARGETS else OCP


def eligible_layers(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers that can multiply in fp8, without the one that makes the logits.

    A head's products are left as they are: its loss is the most sensitive to rounding, and the
    kernel for linear + cross-entropy takes its place.
    """
    head = find_head(model)
    return [
        one
        for one in model.modules()
        if type(one) is nn.Linear
        and one is not head
        and not one.in_features % GRANULE
        and not one.out_features % GRANULE
    ]


def apply_products(model: nn.Module, products: str) -> None:
    """Make the model's linear layers multiply in fp8, in place; `own` undoes it.

    Raises WorkloadError if the model has no layer that can.
    """
    restore_forwards(model, MULTIPLIES)
    if products == "own":
        return
    layers = eligible_layers(model)
    if not layers:
        raise WorkloadError(
            f"fp8 products need linear layers with sizes that are multiples of {GRANULE}, but "
            f"{type(model).__name__} has none besides its head; use products own"
        )
    for layer in layers:
        replace_forward(layer, MULTIPLIES, _multiplying(layer))


def _multiplying(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    written = layer.forward
    device = layer.weight.device
    target = ""
    if device.type == "cuda" and torch.version.hip:
        target = str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    formats = formats_for(target)

    def forward(x: Tensor) -> Tensor:
        # dynamo answers is_transformed() with True, so it is not asked there.
        transformed = not torch.compiler.is_compiling() and is_transformed()
        if transformed or not torch.is_grad_enabled() or x.numel() // x.shape[-1] % GRANULE:
            return written(x)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return written(x)
        rows = x.reshape(-1, x.shape[-1])
        found: Tensor = _Fp8Product.apply(rows, layer.weight, dtype, formats)  # type: ignore[no-untyped-call]
        if layer.bias is not None:
            found = found + layer.bias.to(dtype)
        return found.view(*x.shape[:-1], found.shape[-1])

    return forward


class _Fp8Product(torch.autograd.Function):
    """x [M, K] times weight [N, K] transposed, in `dtype`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, dtype: torch.dtype, formats: Formats
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.formats, ctx.dtypes = formats, (x.dtype, weight.dtype)
        values, _ = formats
        return multiply(rounded(x, values), rounded(weight, values), dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        values, gradients = ctx.formats
        of_x, of_weight = ctx.dtypes
        scaled, dx, dw = rounded(grad, gradients), None, None
        if ctx.needs_input_grad[0]:
            dx = multiply(scaled, turned(rounded(weight, values)), grad.dtype).to(of_x)
        if ctx.needs_input_grad[1]:
            both = turned(scaled), turned(rounded(x, values))
            dw = multiply(*both, grad.dtype).to(of_weight)
        return dx, dw, None, None


Scaled = tuple[Tensor, Tensor]
"""A matrix in fp8, and the fp32 scalar that it is to be multiplied by."""


def rounded(matrix: Tensor, dtype: torch.dtype) -> Scaled:
    """Round a matrix [R, C] to fp8 by its largest magnitude."""
    most = torch.finfo(dtype).max
    wide = matrix.float()
    scale = (wide.abs().amax() / most).clamp_min(LEAST_SCALE)
    return (wide / scale).clamp(-most, most).to(dtype).contiguous(), scale


def turned(one: Scaled) -> Scaled:
    """Return the transposed matrix, rows contiguous."""
    return one[0].t().contiguous(), one[1]


def multiply(left: Scaled, right: Scaled, dtype: torch.dtype) -> Tensor:
    """Return left [M, K] times right [N, K] transposed: both have their summands contiguous."""
    return torch._scaled_mm(
        left[0], right[0].t(), scale_a=left[1], scale_b=right[1], out_dtype=dtype
    )
