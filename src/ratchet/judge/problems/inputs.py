"""Drawing of a case's inputs: values by distribution, memory by layout."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ratchet.judge.problems.case import TensorSpec

_OUTLIERS_PER_TENSOR = 4
_OUTLIER_SCALE = 1e3
_LARGE, _PARTS = 1 << 20, 16
"""Size from which values are drawn in parts: one generator draws 0.1 to 0.2 billion a second."""


def build(
    specs: Sequence[TensorSpec], seed: int, device: torch.device | str = "cpu"
) -> list[Tensor]:
    """Return one tensor per spec, drawn on the device; there the same seed gives the same values.

    A GPU draws a hundred times as fast as a core, from another sequence.
    """
    generator = torch.Generator(device).manual_seed(seed)
    return [_lay_out(_draw(spec, generator), spec.layout) for spec in specs]


def _draw(spec: TensorSpec, generator: torch.Generator) -> Tensor:
    dtype = dtype_named(spec.dtype)
    if spec.distribution == "integers":
        low, high = int(spec.low or 0), int(spec.high or 0)
        return _integers(low, high, spec.shape, generator).to(dtype)
    if spec.distribution == "uniform":
        low_value, high_value = float(spec.low or 0.0), float(spec.high or 0.0)
        drawn = torch.rand(spec.shape, generator=generator, device=generator.device)
        return _rounded(low_value + (high_value - low_value) * drawn, dtype)
    drawn = _normal(spec.shape, generator)
    shaped = _SHAPED[spec.distribution](drawn, generator)
    return _rounded(shaped if spec.deviation == 1.0 else shaped * spec.deviation, dtype)


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values in `dtype`; finite ones stay finite: torch 2.11 makes some NaN in fp8."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        most = torch.finfo(dtype).max
        values = torch.where(values.isfinite(), values.clamp(-most, most), values)
    return values.to(dtype)


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw standard normal values; large tensors in parallel parts with seeds of their own."""
    numel = math.prod(shape)
    if generator.device.type != "cpu":
        return torch.randn(shape, generator=generator, device=generator.device)
    drawn = torch.empty(numel)
    if numel < _LARGE or type(drawn) is not Tensor:  # a fake tensor has no values to draw
        return torch.randn(shape, generator=generator)
    parts = drawn.tensor_split(_PARTS)
    seeds = torch.randint(2**62, (_PARTS,), generator=generator).tolist()

    def fill(part: Tensor, seed: int) -> None:
        part.normal_(generator=torch.Generator().manual_seed(seed))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(fill, parts, seeds))
    return drawn.reshape(shape)


def _integers(low: int, high: int, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def dtype_named(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype), name
    return found


def _heavy_tailed(drawn: Tensor, generator: torch.Generator) -> Tensor:
    """Draw Student's t with two degrees of freedom: finite mean, infinite variance."""
    chi = torch.rand(drawn.shape, generator=generator, device=generator.device)
    return drawn / chi.clamp(min=1e-6).log().neg().sqrt()


def _outliers(drawn: Tensor, generator: torch.Generator) -> Tensor:
    if drawn.numel() == 0:
        return drawn
    flat = drawn.reshape(-1).clone()
    places = _integers(0, flat.numel(), (_OUTLIERS_PER_TENSOR,), generator)
    flat[places] = flat[places].sign() * _OUTLIER_SCALE
    return flat.reshape(drawn.shape)


def _specials(drawn: Tensor, generator: torch.Generator) -> Tensor:
    if drawn.numel() == 0:
        return drawn
    flat = drawn.reshape(-1).clone()
    for value in (math.inf, -math.inf, math.nan):
        flat[_integers(0, flat.numel(), (1,), generator)] = value
    return flat.reshape(drawn.shape)


_SHAPED: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "normal": lambda drawn, _: drawn,
    "shifted": lambda drawn, _: drawn + 8.0,
    "heavy_tailed": _heavy_tailed,
    "outliers": _outliers,
    "specials": _specials,
    "zeros": lambda drawn, _: torch.zeros_like(drawn),
    "ones": lambda drawn, _: torch.ones_like(drawn),
    "tiny": lambda drawn, _: drawn * 1e-6,
    "large": lambda drawn, _: drawn * 1e4,
    "positive": lambda drawn, _: drawn.square(),
}


def _lay_out(values: Tensor, layout: str) -> Tensor:
    """Return the same values in another memory layout; `broadcast` repeats the first row's."""
    if layout == "transposed" and values.dim() >= 2:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "strided" and values.dim() >= 1:
        return _with_gaps(values)
    if layout == "broadcast" and values.dim() >= 2:
        return values[:1].expand_as(values)
    if layout == "heads" and values.dim() == 4:
        return values.transpose(1, 2).contiguous().transpose(1, 2)
    return values


def _with_gaps(values: Tensor) -> Tensor:
    shape = (*values.shape[:-1], values.shape[-1] + 8)
    wide = torch.full(shape, float("nan"), device=values.device).to(values.dtype)
    view = wide[..., : values.shape[-1]]
    view.copy_(values)
    return view
