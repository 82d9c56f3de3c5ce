"""Structure that every draw of an input shows, and variations that keep it.

A kernel may rely on the structure of its inputs: a triangle of zeros, a symmetric matrix, a mask.
So hidden variations keep the structure that several draws of `get_inputs` show. Positive values
that come near zero, like torch.rand's, are no structure: their signs are varied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ratchet.judge.problems.structure import Structure

FEW = 16
"""Most distinct values of a mask or a code."""
SAMPLE = 4096
"""Number of elements to check first: most inputs have no structure."""
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
        definite=symmetric and all(_is_definite(one) for one in wide),
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


def _is_definite(tensor: Tensor) -> bool:
    """Return whether symmetric matrices have only positive eigenvalues."""
    return bool((torch.linalg.cholesky_ex(tensor).info == 0).all())


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
