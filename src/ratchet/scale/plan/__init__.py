"""Plans for machines that are not here: step time, memory and cost of a model's layouts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ratchet.base.errors import PlanError
from ratchet.scale.plan.cluster import PlannedCluster, parse_cluster
from ratchet.scale.plan.layout import SHARDINGS, Stack, find_stack, parse_layout
from ratchet.scale.plan.search import LayoutPlan, Planned, make_asked, plan, plan_degrees
from ratchet.scale.plan.shape import Shape, find_shape, made

# A call of `ratchet plan`: its words, checked, its answer, and what a run costs.

POWER_SHARE: Final = 0.8  # Share of the board's power that training draws. An assumption.
OVERHEAD: Final = 1.2  # Power of the data centre over that of its devices (PUE). An assumption.
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


def cost_of(
    plan: LayoutPlan, cluster: PlannedCluster, tokens: float, price: float | None
) -> RunCost:
    """Return what training on `tokens` tokens takes with a plan."""
    hours = tokens / plan.tokens_per_s / 3600
    device_hours = hours * cluster.world
    return RunCost(
        steps=math.ceil(tokens / (plan.tokens_per_s * plan.step_s)),
        hours=hours,
        device_hours=device_hours,
        money=None if price is None else device_hours * price,
        energy_kwh=device_hours * cluster.power_w * POWER_SHARE * OVERHEAD / 1000,
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
    if not all(math.isfinite(one) and one > 0 for one in ratio):
        raise PlanError(f"ratio {ratio} is no speed-up: give numbers above 0")
    low, middle, high = (1 - 1 / one for one in ratio)
    hours = cluster.world * HOURS_A_YEAR
    kw = cluster.power_w * POWER_SHARE * OVERHEAD / 1000

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


# The largest model that a cluster trains in some days, with tokens in proportion to its size.
#
# Twenty tokens a parameter are what Hoffmann et al. 2022 found best for a given amount of compute
# (arXiv:2203.15556, table 3). The models are of Llama's form with heads of 128 and one layer for
# each 128 of the hidden size, as those of 7 B to 405 B have them within a quarter
# (arXiv:2407.21783, table 3).

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


def ladder_shape(hidden: int, sequence: int) -> Shape:
    """Return the model of a hidden size."""
    layers, heads = max(8, hidden // HEAD), hidden // HEAD
    name = f"llama:layers={layers},hidden={hidden},heads={heads}"
    return made(name, gated=True, layers=layers, hidden=hidden, heads=heads, sequence=sequence)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """The words of a call."""

    model: str | None
    cluster: str | None
    batch: int | None = None
    sequence: int | None = None
    precisions: tuple[str, ...] = ("bf16",)
    stack: str = "torch"
    parallel: str | None = None
    micro_batch: int | None = None
    checkpointing: str | None = None
    sharding: str | None = None
    network_gb_per_s: float | None = None
    power_w: float | None = None  # Watts to which each device is held; None for its board's
    imbalance: float = 1.0  # Tokens of the fullest rank's experts over those of the mean
    lora: bool = False  # True if low-rank adapters alone are trained
    traces: tuple[Path, ...] = ()
    tokens: float | None = None
    price: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """Plans, and what a run with the best of them costs if its tokens were given."""

    planned: Planned
    cost: RunCost | None
    price: float | None
    tokens: float | None = None

    @property
    def best(self) -> LayoutPlan:
        return self.planned.best


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedBy:
    """A recipe, the fleet it would run on, and what it saves there in a year."""

    recipe: str
    workload: str
    proven_on: str
    cluster: PlannedCluster
    price: float
    saved: Saved


def planned(request: PlanRequest) -> Answered:
    """Plan what was asked; PlanError for what is missing, unknown or fits nowhere."""
    if request.model is None or request.cluster is None:
        raise PlanError(
            "give a model and a cluster: ratchet plan llama3-70b --cluster mi300x:8x16, or "
            "--savings RECIPE --fleet mi300x:10000 --price 2.0"
        )
    stack = find_stack(request.stack)
    cluster = _cluster(request.cluster, request)
    shape = find_shape(request.model, sequence=request.sequence)
    if request.imbalance != 1 and not shape.experts:
        raise PlanError(f"{shape.name} has no experts to balance: leave --imbalance out")
    shape = replace(shape, frozen=request.lora, imbalance=request.imbalance)
    if request.traces:
        from ratchet.scale.plan.calibrate import calibrated

        cluster = calibrated(cluster, request.traces)
    asked = make_asked(
        shape, cluster, stack, batch=request.batch, precisions=request.precisions,
        micro_batch=request.micro_batch, checkpointing=request.checkpointing,
        sharding=request.sharding,
    )  # fmt: skip
    if request.parallel is None:
        found = plan(asked)
    else:
        layout = parse_layout(request.parallel, cluster.world)
        if layout.sharding == "full" and request.sharding not in (None, "full"):
            raise PlanError(
                f"{request.parallel} shards fully, and --sharding is {request.sharding}: write dp "
                "instead of fsdp, or leave --sharding out"
            )
        if request.sharding is not None:
            layout = replace(layout, sharding=SHARDINGS[SHARDINGS.index(request.sharding)])
        found = plan_degrees(asked, layout)
    cost = None
    if request.tokens is not None:
        cost = cost_of(found.best, cluster, request.tokens, request.price)
    return Answered(planned=found, cost=cost, price=request.price, tokens=request.tokens)


def _cluster(words: str, request: PlanRequest) -> PlannedCluster:
    network, power_w = request.network_gb_per_s, request.power_w
    return parse_cluster(words, network_gb_per_s=network, power_w=power_w)


def trainable_within(request: PlanRequest, days: float, tokens_per_parameter: float) -> Trainables:
    """Return the largest model of the ladder that is trained in time, found by bisection.

    Raises PlanError without a cluster, and if not even the smallest model is.
    """
    if request.cluster is None:
        raise PlanError("--days needs a cluster: give, for example, --cluster a100:8x32")
    if request.model is not None or request.parallel is not None or request.tokens is not None:
        raise PlanError(
            "--days finds the model, its tokens and its layout: leave MODEL, --tokens and "
            "--parallel out"
        )
    cluster = _cluster(request.cluster, request)
    stack, sequence = find_stack(request.stack), request.sequence or 2048
    tried: dict[int, Trainable] = {}

    def in_time(hidden: int) -> bool:
        shape = ladder_shape(hidden, sequence)
        asked = make_asked(
            shape, cluster, stack, batch=request.batch, precisions=request.precisions
        )
        try:
            best = plan(asked).best
        except PlanError:  # it fits nowhere, and larger ones do not either
            return False
        tokens = tokens_per_parameter * shape.parameters
        cost = cost_of(best, cluster, tokens, request.price)
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
        price=request.price,
    )


def saved(path: Path, fleet: str | None, price: float | None) -> SavedBy:
    """Return what a recipe's proven ratio over torch.compile saves a fleet in a year.

    Raises PlanError without a fleet or a price, and for a recipe that proved no ratio.
    """
    from ratchet.train.recipe import Recipe

    if fleet is None or price is None:
        raise PlanError("--savings needs --fleet DEVICE:COUNT and --price MONEY: give both")
    recipe = Recipe.load(path)
    proven = recipe.speedup.get("vs_compile") or recipe.speedup.get("vs_written")
    if not proven:
        raise PlanError(
            f"{path} holds no proven ratio: give the recipe of an optimize that won something"
        )
    cluster = _fleet(fleet)
    ratio = (float(proven["low"]), float(proven["ratio"]), float(proven["high"]))
    # One device searched, for the default budget of half an hour.
    return SavedBy(
        recipe=str(path),
        workload=recipe.workload,
        proven_on=recipe.device_name,
        cluster=cluster,
        price=price,
        saved=savings(ratio, cluster, price, search_device_hours=0.5),
    )


def _fleet(text: str) -> PlannedCluster:
    """Return a fleet as a cluster; its devices need not fill whole nodes."""
    device, _, count = text.partition(":")
    if not count.isdigit() or not int(count):
        raise PlanError(f"fleet {text!r} is not DEVICE:COUNT: write, for example, mi300x:10000")
    return parse_cluster(f"{device}:1x{count}")
