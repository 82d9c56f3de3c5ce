"""Axes: the position of a value between two ends, in percent, and the round values to label."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOG_STEPS = ((1.0, 2.0, 5.0), (1.0,))
_ONE_VALUE = 1e-9
"""Relative distance below which two ends are one value, because an axis cannot separate them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """One labelled value of an axis."""

    percent: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """An axis from `low` to `high`; if `log`, it is logarithmic and both ends are above 0."""

    low: float
    high: float
    log: bool = False

    def percent(self, value: float) -> float:
        """Return a value's position, 0 to 100; values outside move to the nearer end."""
        ends = (self._place(self.low), self._place(self.high))
        share = (self._place(value) - ends[0]) / (ends[1] - ends[0])
        return round(100 * min(max(share, 0.0), 1.0), 3)

    def ticks(self, show: Callable[[float], str], count: int = 6) -> tuple[Tick, ...]:
        """Return about `count` round values inside the axis, with their labels."""
        values = self._log_values(count) if self.log else self._values(count)
        return tuple(Tick(percent=self.percent(value), label=show(value)) for value in values)

    def _place(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.log else value

    def _values(self, count: int) -> list[float]:
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * step for step in _STEPS if power * step >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _log_values(self, count: int) -> list[float]:
        found = [self._powers(steps) for steps in _LOG_STEPS]
        fitting = [values for values in found if 2 <= len(values) <= 2 * count]
        # An axis that spans less than a decade has too few powers of ten to be readable.
        return fitting[0] if fitting else self._values(count)

    def _powers(self, steps: tuple[float, ...]) -> list[float]:
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [step * 10.0**exponent for exponent in exponents for step in steps]
        return [value for value in values if self.low <= value <= self.high]


def from_zero(values: Iterable[float]) -> Scale:
    """Return an axis for bars: from zero to the largest finite value."""
    return Scale(low=0.0, high=max(_finite(values), default=0.0) or 1.0)


def around(values: Iterable[float], *, log: bool = False, margin: float = 0.06) -> Scale:
    """Return an axis around all finite values (above 0 if `log`), with room at both ends."""
    kept = [value for value in _finite(values) if value > 0 or not log]
    low, high = min(kept, default=0.5), max(kept, default=2.0)
    if math.isclose(low, high, rel_tol=_ONE_VALUE):
        low, high = (low / 1.1, high * 1.1) if log else (low - 0.5, high + 0.5)
    if log:
        room = (high / low) ** margin
        return Scale(low=low / room, high=high * room, log=True)
    room = (high - low) * margin
    return Scale(low=low - room, high=high + room)


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
