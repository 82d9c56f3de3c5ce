"""Draw the inputs of a region like those of the captured step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ratchet.judge.problems.case import TensorSpec

PLAIN_SCALE = 32.0
"""Largest standard deviation of values that a normal distribution stands for."""
LEAST_SCALE = 4.0**-4
"""Least standard deviation that values are drawn with: smaller ones are gradients, and a gradient
grows as a whole with the one it comes from."""
OFF_POWERS = 0.2
ZEROS = 0.01
"""Share of zeros from which they count as a mask's, such as of a ReLU."""
SAMPLE = 1 << 16
"""Elements that are looked at, evenly spread; integers are looked at in full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """The known facts about one tensor's finite values."""

    low: float
    high: float
    deviation: float = 0.0
    zeros: float = 0.0
    """Share of the values that are zero."""


def values_of_tensor(tensor: Tensor) -> Values | None:
    """Return the range and the spread of a tensor; None if it has no finite value or is complex."""
    if not tensor.numel() or tensor.is_complex():
        return None
    if not tensor.dtype.is_floating_point:
        flat = tensor.to(torch.int64)
        return Values(low=float(flat.min()), high=float(flat.max()))
    flat = tensor.reshape(-1)
    flat = flat[:: max(1, flat.numel() // SAMPLE)].float()
    flat = flat[torch.isfinite(flat)]
    if not flat.numel():
        return None
    return Values(
        low=float(flat.min()),
        high=float(flat.max()),
        deviation=float(flat.std(correction=0)),
        zeros=float((flat == 0).float().mean()),
    )


def spec_for(shape: tuple[int, ...], dtype: str, values: Values | None) -> TensorSpec:
    """Return a spec that draws values like the captured ones.

    Real values of both signs are drawn from a normal distribution, whose deviation is a power of 4,
    so that equal regions of two models are drawn alike; values of one sign, such as a saved 1/std,
    from the range they were in. Products of values that are all drawn around 1 would be far larger
    than in the step, and exp and tanh of large values take up to ten times as long as others.
    """
    plain = TensorSpec(shape=shape, dtype=dtype) if dtype != "bool" else None
    if dtype == "bool":
        return TensorSpec(shape=shape, dtype=dtype, distribution="integers", low=0.0, high=2.0)
    if not getattr(torch, dtype).is_floating_point:
        low, high = (values.low, values.high) if values else (0.0, 0.0)
        return TensorSpec(
            shape=shape,
            dtype=dtype,
            distribution="integers",
            low=min(low, 0.0),
            high=_above(high, dtype),
        )
    assert plain is not None
    if values is None or values.low == values.high == 0:
        return plain
    if values.low < 0 < values.high and values.deviation <= PLAIN_SCALE:
        return replace(plain, deviation=_deviation(values.deviation))
    if values.zeros > ZEROS:
        return plain
    return ranged(plain, values)


def _deviation(value: float) -> float:
    """Return a power of 4 near the value, within the bounds of LEAST_SCALE and 16.

    The steps lie apart from powers of 2, which are what many weights are initialised with.
    """
    return 4.0 ** round(math.log(min(16.0, max(LEAST_SCALE, value)), 4) + OFF_POWERS)


def ranged(spec: TensorSpec, values: Values | None) -> TensorSpec:
    """Return a spec of real numbers that draws evenly from the captured range, widened to powers
    of two; integers and unknown values are drawn as before."""
    if values is None or spec.distribution == "integers" or values.low == values.high == 0:
        return spec
    low, high = _widened(values)
    return replace(spec, distribution="uniform", low=low, high=high, deviation=1.0)


def _widened(values: Values) -> tuple[float, float]:
    low, high = values.low, values.high
    if low >= 0:
        return _power(low, up=False), _power(high, up=True)
    if high <= 0:
        return -_power(-low, up=True), -_power(-high, up=False)
    most = max(_power(-low, up=True), _power(high, up=True))
    return -most, most


def _power(value: float, *, up: bool) -> float:
    """Return the next power of two above, or at most `value`; above is strictly above."""
    if value == 0:
        return 0.0
    exponent = math.floor(math.log2(value))
    return 2.0 ** (exponent + 1 if up else exponent)


def _above(high: float, dtype: str) -> float:
    """Return an exclusive upper bound that the dtype holds."""
    return min(high + 1.0, float(torch.iinfo(getattr(torch, dtype)).max) + 1.0)
