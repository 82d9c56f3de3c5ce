"""The largest model that a cluster trains in some days, with tokens in proportion to its size.

Twenty tokens a parameter are what Hoffmann et al. 2022 found best for a given amount of compute
(arXiv:2203.15556, table 3). The models are of Llama's form with heads of 128 and one layer for each
128 of the hidden size, as those of 7 B to 405 B have them within a quarter (arXiv:2407.21783,
table 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ratchet.base.errors import PlanError
from ratchet.scale.plan.cluster import PlannedCluster
from ratchet.scale.plan.economics import RunCost, check_price, cost_of
from ratchet.scale.plan.search import LayoutPlan, make_asked, plan
from ratchet.scale.plan.shape import Shape
from ratchet.scale.plan.shape_words import made
from ratchet.scale.plan.stack import Stack

TOKENS_PER_PARAMETER: Final = 20.0
HEAD: Final = 128
HIDDEN: Final = (*range(512, 4096, 256), *range(4096, 8192, 512), *range(8192, 32769, 1024))
"""Hidden sizes that are tried: 0.1 B to 3 T parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainable:
    """A model with its tokens, the fastest plan on a cluster and what the run costs."""

    shape: Shape
    tokens: float
    plan: LayoutPlan
    cost: RunCost

    @property
    def days(self) -> float:
        return self.cost.hours / 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainables:
    """The models that were planned on the way to the largest, by size, and the largest."""

    cluster: PlannedCluster
    stack: Stack
    days: float
    tokens_per_parameter: float
    tried: tuple[Trainable, ...]
    largest: Trainable
    price: float | None


def largest(
    cluster: PlannedCluster, stack: Stack, *, days: float, tokens_per_parameter: float,
    sequence: int, batch: int | None, precisions: tuple[str, ...], price: float | None,
) -> Trainables:  # fmt: skip
    """Return the largest model of the ladder that is trained in time, found by bisection.

    Raises PlanError if not even the smallest is.
    """
    for name, value in (("days", days), ("tokens a parameter", tokens_per_parameter)):
        if not math.isfinite(value) or value <= 0:
            raise PlanError(f"{value} {name} are none: give a number above 0")
    if price is not None:
        check_price(price)
    tried: dict[int, Trainable] = {}

    def in_time(hidden: int) -> bool:
        shape = ladder_shape(hidden, sequence)
        asked = make_asked(shape, cluster, stack, batch=batch, precisions=precisions)
        try:
            best = plan(asked).best
        except PlanError:  # it fits nowhere, and larger ones do not either
            return False
        tokens = tokens_per_parameter * shape.parameters
        cost = cost_of(best, cluster, tokens, price)
        tried[hidden] = Trainable(shape=shape, tokens=tokens, plan=best, cost=cost)
        return cost.hours <= 24 * days

    low, high = 0, len(HIDDEN)  # what lies below `low` is in time, what lies from `high` on is not
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if in_time(HIDDEN[middle]) else (low, middle)
    if not low:
        raise PlanError(
            f"{cluster.name} trains no model of {ladder_shape(HIDDEN[0], sequence).parameters:,} "
            f"parameters or more in {days:g} days: give more days, devices or a smaller batch"
        )
    return Trainables(
        cluster=cluster,
        stack=stack,
        days=days,
        tokens_per_parameter=tokens_per_parameter,
        tried=tuple(tried[one] for one in sorted(tried)),
        largest=tried[HIDDEN[low - 1]],
        price=price,
    )


def ladder_shape(hidden: int, sequence: int) -> Shape:
    """Return the model of a hidden size."""
    layers, heads = max(8, hidden // HEAD), hidden // HEAD
    name = f"llama:layers={layers},hidden={hidden},heads={heads}"
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": sequence}
    return made(name, True, sizes)
