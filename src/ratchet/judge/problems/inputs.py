"""Drawing of a case's inputs: values by distribution, memory by layout."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ratchet.judge.problems.case import Structure, TensorSpec

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


# Structure that every draw of an input shows, and variations that keep it.
#
# A kernel may rely on the structure of its inputs: a triangle of zeros, a symmetric matrix, a
# mask. So hidden variations keep the structure that several draws of `get_inputs` show. Positive
# values that come near zero, like torch.rand's, are no structure: their signs are varied.

FEW = 16  # Most distinct values of a mask or a code
SAMPLE = 4096  # Number of elements to check first: most inputs have no structure
GAP, BY_CHANCE = 0.05, 1e-6
"""The gap above zero that positive values must keep, as a share of the largest, and the chance that
evenly spread values leave such a gap."""
CLOSE = 1e-4
PLAIN = Structure()


def structure_of(draws: Sequence[Tensor]) -> Structure:
    """Return the structure that several draws of one input share."""
    first = draws[0]
    same_form = all(one.shape == first.shape and one.dtype == first.dtype for one in draws)
    if not (first.is_floating_point() and first.numel() > 1 and same_form):
        return PLAIN
    wide = [one.float() if one.dtype.itemsize < 4 else one for one in draws]  # torch cannot sum fp8
    eps = torch.finfo(first.dtype).eps
    if not all(bool(torch.isfinite(one).all()) for one in wide) or all(map(_is_uniform, wide)):
        return PLAIN  # a tensor of a single value, zeros or ones, shows no structure
    if _are_codes(wide, eps):
        return Structure(codes=True)
    close = max(CLOSE, 2 * eps)
    symmetric = all(_is_symmetric(one, close) for one in wide)
    low, high = min(float(one.min()) for one in wide), max(float(one.max()) for one in wide)
    normalised = _normalised(wide, close) if low >= 0 else None
    logarithms = _normalised([one.exp() for one in wide], close) if high <= 0 else None
    is_free = normalised is None and logarithms is None
    return Structure(
        zeros=low <= 0 <= high and bool(torch.stack([one == 0 for one in wide]).all(0).any()),
        symmetric=symmetric,
        definite=symmetric and all((torch.linalg.cholesky_ex(one).info == 0).all() for one in wide),
        sign=_sign(low, high, sum(map(Tensor.numel, wide))) if is_free else 0,
        normalised=normalised,
        log_normalised=logarithms,
    )


def restored(varied: Tensor, drawn: Tensor, structure: Structure) -> Tensor:
    """Return the varied values, with the structure of the drawn ones."""
    if structure.symmetric:
        varied = varied.triu() + varied.triu(1).mT
    if structure.sign:
        varied = varied.abs() * structure.sign
    if structure.zeros:
        varied = varied.masked_fill(drawn == 0, 0.0)
    if structure.normalised is not None:
        varied = varied.abs()
        varied = varied / varied.sum(structure.normalised, keepdim=True)
    if structure.log_normalised is not None:
        varied = varied.log_softmax(structure.log_normalised)
    return varied


def _is_uniform(tensor: Tensor) -> bool:
    return bool((tensor == tensor.reshape(-1)[0]).all())


def _are_codes(draws: Sequence[Tensor], eps: float) -> bool:
    """Return whether values are integers (labels, signs, masks), or few recurring values."""
    sample = torch.cat([_sample(one) for one in draws])
    if _are_whole(sample, eps) and all(_are_whole(one, eps) for one in draws):
        return True
    if len(_values(sample)) > FEW or 4 * len(_values(sample)) > sample.numel():
        return False
    return len(set().union(*map(_values, draws))) <= FEW


def _values(tensor: Tensor) -> set[float]:
    return set(torch.unique(tensor).tolist())


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)]


def _are_whole(tensor: Tensor, eps: float) -> bool:
    """Return whether all are integers, and small enough that the dtype could hold fractions."""
    return bool((tensor == tensor.round()).all()) and float(tensor.abs().max()) < 1 / eps


def _is_symmetric(tensor: Tensor, close: float) -> bool:
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    corner = tensor[..., :64, :64]
    return all(
        torch.allclose(one, one.mT, rtol=close, atol=close * float(one.abs().max()))
        for one in (corner, tensor)
    )


def _sign(low: float, high: float, count: int) -> int:
    """Return -1 if no value is above zero, 1 if all stay above it by more than chance, else 0."""
    if high <= 0:
        return -1
    if low < GAP * high:
        return 0
    return 1 if count * math.log1p(-min(low / high, 0.999)) < math.log(BY_CHANCE) else 0


def _normalised(draws: Sequence[Tensor], close: float) -> int | None:
    """Return the dimension over which all values sum to one, counted from the end."""
    for dimension in range(-1, -draws[0].dim() - 1, -1):
        if draws[0].shape[dimension] > 1 and all(
            bool(((one.sum(dimension, dtype=torch.float64) - 1).abs() <= close).all())
            for one in draws
        ):
            return dimension
    return None
