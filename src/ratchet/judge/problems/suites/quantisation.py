"""Quantisation to int8 and fp8, and back: byte codes with scales in fp32.

A scale is the largest magnitude of its values over the largest code: 127, or 448 for e4m3 and
57,344 for e5m2 (FP8 Formats for Deep Learning, arXiv:2209.05433).
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import (
    Form,
    Scalars,
    Tensors,
    problem,
    real,
    sizes,
    uniform,
    whole,
    wide,
)
from ratchet.judge.problems.tolerance import OutputCheck, Tolerance, checked, same_form

ROWS = sizes((32, 256), (2048, 1024), (16384, 8192))
RAGGED = (13, 300)  # Two whole blocks of 128 and one of 44
INT8_MAX = 127.0
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
E4M3_MAX, E5M2_MAX = 448.0, 57344.0
BLOCK = 128
LEAST_SCALE = 1e-12
HALF_WAY = 0.5 + 1e-4
"""Largest distance of a code from its value, in steps. 127 steps in fp32, divided by a scale that
is itself off by two roundings, are off by 127 x 4 x 6e-8 = 3e-5."""
HALF_WAY_SHARE = 1e-6
"""The same for fp8, relative to the value: twice four roundings in fp32, doubled again."""
VALUES = (("shifted", "contiguous"), ("heavy_tailed", "strided"), ("outliers", "transposed"))


def quantise_rows(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Symmetric int8 with a scale for each row: x [R, C] bf16 -> codes [R, C] int8, scales [R]."""
    x = wide(x)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / INT8_MAX
    return _int8(x / scale), scale.squeeze(-1)


def quantise_groups(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """A scale for each 128 values: x [R, C] fp32 -> codes int8, scales [R, ceil(C / 128)]."""
    groups = _blocks(x)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / INT8_MAX
    return _rows(_int8(groups / scale), x), scale.squeeze(-1)


def check_codes(
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
) -> list[OutputCheck]:
    """Accept the neighbouring code for a value half-way between two, give or take an ulp."""
    codes, scales = got
    found = Tolerance().check(scales, own[1], oracle[1])
    if codes.shape != own[0].shape or codes.dtype != own[0].dtype:
        return [checked(False, "codes of another shape or dtype"), found]
    exact = oracle[1].double()
    spread = exact.unsqueeze(-1) if exact.dim() < codes.dim() else _spread(exact, codes)
    return [code_check(codes, inputs[0].double() / spread), found]


def code_check(
    codes: Tensor,
    places: Tensor,
    *,
    bounds: tuple[float, float] = (-INT8_MAX, INT8_MAX),
    half_way: float = HALF_WAY,
) -> OutputCheck:
    """Return whether each code is nearest to its value in float64, in steps of the code."""
    off = (codes.double() - places.clamp(*bounds)).abs()
    largest = float(off.max()) if off.numel() else 0.0
    return checked(largest <= half_way, f"at most {largest:.4f} of a step from the value")


def check_fp8(
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
) -> list[OutputCheck]:
    """Accept a code that is nearest to its value, or as near as the next one, give or take an ulp.

    bf16 values over a scale from bf16 often lie half-way. With an unlucky scale (3.0625 / 448), 3 %
    of a tensor's e4m3 codes depend on whether a kernel divides or multiplies.
    """
    codes, second = got
    found = Tolerance().check(second, own[1], oracle[1])
    if codes.shape != own[0].shape or codes.dtype != own[0].dtype:
        return [checked(False, "codes of another shape or dtype"), found]
    most = E4M3_MAX if codes.dtype == E4M3 else E5M2_MAX
    scale = inputs[1].double() if len(inputs) > 1 else _spread(oracle[1].double(), codes)
    places = (inputs[0].double() / scale).clamp(-most, most)
    off, least = ((one.double() - places).abs() for one in (codes, oracle[0]))
    far = ~(off <= least + HALF_WAY_SHARE * places.abs())  # NaN counts as far
    return [checked(not far.any(), f"{int(far.sum())} codes are not the nearest"), found]


def dequantise_rows(codes: Tensor, scales: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """codes [R, C] int8, scales [R] fp32 -> bf16."""
    return (_narrow(codes.to(scales.dtype) * scales.unsqueeze(-1)),)


def dequantise_rows_backward(grad: Tensor, codes: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The gradient of the scales [R] in fp32; codes have none. grad: [R, C] bf16."""
    return ((wide(grad) * codes).sum(-1),)


def dequantise_groups(codes: Tensor, scales: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """codes [R, C] int8, scales [R, ceil(C / 128)] fp32 -> fp32."""
    return (codes.to(scales.dtype) * _spread(scales, codes),)


def fake_quantise(x: Tensor, scales: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """To int8 and back with a scale per column: x [R, C] fp32, scales [C] (arXiv:1712.05877)."""
    return ((x / scales).round().clamp(-INT8_MAX, INT8_MAX) * scales,)


def fake_quantise_backward(
    grad: Tensor, x: Tensor, scales: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """Straight-through estimator: `grad` if the code was not clipped, else 0 (arXiv:1308.3432)."""
    kept = (x / scales).round().abs() <= INT8_MAX
    return (torch.where(kept, grad, torch.zeros_like(grad)),)


def check_fake_quantise(
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
) -> list[OutputCheck]:
    """Accept only the nearest integer multiple of the scale."""
    if not same_form(got[0], own[0]):
        return [checked(False, "an output of another shape or dtype")]
    x, scales = (tensor.double() for tensor in inputs)
    codes = got[0].double() / scales
    finite = bool(torch.isfinite(codes).all())
    if not finite or bool(((codes - codes.round()).abs() > HALF_WAY - 0.5).any()):
        return [checked(False, "not integer multiples of the scale")]
    return [code_check(codes, x / scales)]


def check_fake_quantise_backward(
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
) -> list[OutputCheck]:
    """Accept `grad` or 0; either one if the value lies between the last code and clipping."""
    if not same_form(got[0], own[0]):
        return [checked(False, "an output of another shape or dtype")]
    grad, x, scales = inputs
    place = (x.double() / scales.double()).abs() - INT8_MAX
    right = (got[0] == own[0]) | (
        ((place - 0.5).abs() < HALF_WAY - 0.5) & ((got[0] == 0) | (got[0] == grad))
    )
    passed = bool(right.all())
    return [
        checked(passed, "the gradient or 0" if passed else "not the gradient of an unclipped code")
    ]


def quantise_fp8(x: Tensor, scale: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """To e4m3 with a scale from earlier steps; also returns the largest magnitude for later ones.

    x [R, C] bf16, scale [1] fp32 -> codes e4m3, amax [1] fp32: delayed scaling (arXiv:2209.05433).
    """
    x = wide(x)
    return (x / scale).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3), x.abs().amax().reshape(1)


def quantise_fp8_gradient(x: Tensor, scale: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The same to e5m2, whose range gradients need."""
    x = wide(x)
    return (x / scale).clamp(-E5M2_MAX, E5M2_MAX).to(E5M2), x.abs().amax().reshape(1)


def dequantise_fp8(codes: Tensor, scale: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """codes [R, C] e4m3, scale [1] fp32 -> bf16."""
    return (_narrow(codes.to(scale.dtype) * scale),)


def quantise_fp8_blocks(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """A scale per 1 x 128 values: x [R, C] bf16 -> codes e4m3, scales [R, ceil(C / 128)] fp32.

    DeepSeek-V3 quantises activations this way (arXiv:2412.19437, section 3.3.2).
    """
    blocks = _blocks(wide(x))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / E4M3_MAX
    codes = (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)
    return _rows(codes, x), scale.squeeze(-1)


def dequantise_fp8_blocks(codes: Tensor, scales: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """codes [R, C] e4m3, scales [R, ceil(C / 128)] fp32 -> bf16."""
    return (_narrow(codes.to(scales.dtype) * _spread(scales, codes)),)


def dequantise_fp8_weight(codes: Tensor, scales: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """A scale per 128 x 128 values (arXiv:2412.19437): codes [R, C] e4m3, scales -> bf16."""
    tall = scales.repeat_interleave(BLOCK, 0)[: codes.shape[0]]
    return (_narrow(codes.to(scales.dtype) * _spread(tall, codes)),)


def _narrow(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.bfloat16()


def _int8(steps: Tensor) -> Tensor:
    return steps.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)


def _blocks(x: Tensor) -> Tensor:
    """Return [R, C] as [R, ceil(C / 128), 128], padded with zeros."""
    return F.pad(x, (0, -x.shape[-1] % BLOCK)).reshape(x.shape[0], -1, BLOCK)


def _rows(blocks: Tensor, like: Tensor) -> Tensor:
    return blocks.flatten(-2)[..., : like.shape[-1]].contiguous()


def _spread(scales: Tensor, codes: Tensor) -> Tensor:
    return scales.repeat_interleave(BLOCK, -1)[..., : codes.shape[-1]]


def _count(width: int) -> int:
    return -(-width // BLOCK)


def _scales(*shape: int, low: float = 1 / 128) -> TensorSpec:
    return uniform(*shape, low=low, high=1 / 32)


def _codes(rows: int, width: int) -> TensorSpec:
    return whole(rows, width, low=-127, below=128, dtype="int8")


def _half(rows: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(rows, width, dtype="bfloat16"),)


def _half_scaled(rows: int, width: int) -> tuple[TensorSpec, ...]:
    return (*_half(rows, width), _scales(1))


def _faked(rows: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(rows, width), _scales(width, low=1 / 256))


def _fp8(rows: int, width: int) -> TensorSpec:
    return real(rows, width, dtype="float8_e4m3fn")


_form = partial(Form, module=__name__, sizes=ROWS, ragged=RAGGED, variations=VALUES)
_of_codes = partial(_form, varied=(1,), variations=(("positive", "contiguous"),))


def problems() -> tuple[Problem, ...]:
    """Return every quantisation; gradients only if they are another computation."""
    codes, fp8 = f"{__name__}:check_codes", f"{__name__}:check_fp8"
    forms = [
        _form(name="quantise_rows", make=_half, check=codes),
        _form(name="quantise_groups", make=lambda r, c: (real(r, c),), check=codes),
        _of_codes(name="dequantise_rows", make=lambda r, c: (_codes(r, c), _scales(r))),
        _form(name="dequantise_rows_backward", make=lambda r, c: (*_half(r, c), _codes(r, c))),
        _of_codes(
            name="dequantise_groups", make=lambda r, c: (_codes(r, c), _scales(r, _count(c)))
        ),
        _form(name="fake_quantise", make=_faked, check=f"{__name__}:check_fake_quantise"),
        _form(
            name="fake_quantise_backward",
            make=lambda r, c: (real(r, c), *_faked(r, c)),
            check=f"{__name__}:check_fake_quantise_backward",
            varied=(0, 1),
        ),
        _form(name="quantise_fp8", make=_half_scaled, check=fp8),
        _form(name="quantise_fp8_gradient", make=_half_scaled, check=fp8),
        _form(name="quantise_fp8_blocks", make=_half, check=fp8),
        _form(name="dequantise_fp8", make=lambda r, c: (_fp8(r, c), _scales(1))),
        _form(name="dequantise_fp8_blocks", make=lambda r, c: (_fp8(r, c), _scales(r, _count(c)))),
        _form(
            name="dequantise_fp8_weight",
            make=lambda r, c: (_fp8(r, c), _scales(_count(r), _count(c))),
        ),
    ]
    return tuple(map(problem, forms))
