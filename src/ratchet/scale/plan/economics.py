"""Device-hours, money and energy of a run, and what a faster step saves on a fleet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ratchet.base.errors import PlanError
from ratchet.scale.plan.cluster import PlannedCluster
from ratchet.scale.plan.search import LayoutPlan

POWER_SHARE: Final = 0.8
"""Share of the board's power that training draws. An assumption."""
OVERHEAD: Final = 1.2
"""Power of the data centre over that of its devices (PUE). An assumption."""
HOURS_A_YEAR: Final = 8760.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCost:
    """Time, energy and money that a run takes. Money is in the currency of the price."""

    steps: int
    hours: float
    device_hours: float
    money: float | None
    energy_kwh: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """Savings by a proven ratio on a fleet in a year, with intervals: (low, middle, high)."""

    ratio: tuple[float, float, float]
    device_hours: tuple[float, float, float]
    money: tuple[float, float, float]
    energy_kwh: tuple[float, float, float]
    paid_after_s: tuple[float, float, float]
    """Seconds of the fleet's training after which the search has paid; inf if it never does."""


def check_price(price: float) -> float:
    """Return a price of a device-hour; PlanError unless it is a number of 0 or more."""
    if not math.isfinite(price) or price < 0:
        raise PlanError(f"price {price} is no price of a device-hour: give 0 or more, such as 2.0")
    return price


def cost_of(
    plan: LayoutPlan, cluster: PlannedCluster, tokens: float, price: float | None
) -> RunCost:
    """Return what training on `tokens` tokens takes with a plan."""
    if not math.isfinite(tokens) or tokens <= 0:
        raise PlanError(f"{tokens} tokens train nothing: give a number above 0, such as 1e12")
    hours = tokens / plan.tokens_per_s / 3600
    device_hours = hours * cluster.world
    return RunCost(
        steps=math.ceil(tokens / (plan.tokens_per_s * plan.step_s)),
        hours=hours,
        device_hours=device_hours,
        money=None if price is None else device_hours * check_price(price),
        energy_kwh=device_hours * _kw(cluster),
    )


def savings(
    ratio: tuple[float, float, float],
    cluster: PlannedCluster,
    price: float,
    search_device_hours: float,
) -> Saved:
    """Return what steps faster by `ratio` (low, middle, high) save on a fleet that trains all year.

    The same work takes 1 / ratio of the time, so each device-hour spends 1 - 1 / ratio for nothing
    without the recipe. `search_device_hours` is what finding the recipe took.
    """
    check_price(price)
    low, middle, high = (_gain(one) for one in ratio)
    hours = cluster.world * HOURS_A_YEAR
    kw = _kw(cluster)

    def times(factor: float) -> tuple[float, float, float]:
        return (low * factor, middle * factor, high * factor)

    def paid(gain: float) -> float:
        if gain <= 0:
            return math.inf
        return search_device_hours / (gain * cluster.world) * 3600

    return Saved(
        ratio=ratio,
        device_hours=times(hours),
        money=times(hours * price),
        energy_kwh=times(hours * kw),
        paid_after_s=(paid(low), paid(middle), paid(high)),
    )


def _gain(ratio: float) -> float:
    if not math.isfinite(ratio) or ratio <= 0:
        raise PlanError(f"ratio {ratio} is no speed-up: give a number above 0")
    return 1 - 1 / ratio


def _kw(cluster: PlannedCluster) -> float:
    return cluster.power_w * POWER_SHARE * OVERHEAD / 1000
