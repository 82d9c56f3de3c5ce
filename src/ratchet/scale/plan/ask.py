"""A call of `ratchet plan`: its words, checked, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.base.errors import PlanError
from ratchet.scale.plan.cluster import PlannedCluster, parse_cluster
from ratchet.scale.plan.economics import RunCost, Saved, check_price, cost_of, savings
from ratchet.scale.plan.largest import Trainables, largest
from ratchet.scale.plan.layout import SHARDINGS, parse_layout
from ratchet.scale.plan.search import LayoutPlan, Planned, make_asked, plan, plan_degrees
from ratchet.scale.plan.shape import find_shape
from ratchet.scale.plan.stack import find_stack


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
    if request.price is not None:
        check_price(request.price)
    stack = find_stack(request.stack)
    cluster = parse_cluster(request.cluster, network_gb_per_s=request.network_gb_per_s)
    shape = find_shape(request.model, sequence=request.sequence)
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


def trainable_within(request: PlanRequest, days: float, tokens_per_parameter: float) -> Trainables:
    """Return the largest model that a cluster trains within some days; PlanError without one."""
    if request.cluster is None:
        raise PlanError("--days needs a cluster: give, for example, --cluster a100:8x32")
    if request.model is not None or request.parallel is not None or request.tokens is not None:
        raise PlanError(
            "--days finds the model, its tokens and its layout: leave MODEL, --tokens and "
            "--parallel out"
        )
    return largest(
        parse_cluster(request.cluster, network_gb_per_s=request.network_gb_per_s),
        find_stack(request.stack),
        days=days,
        tokens_per_parameter=tokens_per_parameter,
        sequence=request.sequence or 2048,
        batch=request.batch,
        precisions=request.precisions,
        price=request.price,
    )


def saved(path: Path, fleet: str | None, price: float | None) -> SavedBy:
    """Return what a recipe's proven ratio over torch.compile saves a fleet in a year.

    Raises PlanError without a fleet or a price, and for a recipe that proved no ratio.
    """
    from ratchet.train.recipe.recipe import Recipe

    if fleet is None or price is None:
        raise PlanError("--savings needs --fleet DEVICE:COUNT and --price MONEY: give both")
    check_price(price)
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
