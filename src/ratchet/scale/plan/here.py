"""Layouts by the formulas of a plan, beside those that `bench --parallel` measured on this machine.

Nothing is known of this machine's links and of what a small eager step sustains, so two rows set
the rates: the one that communicates least sets that of products, and the one that exposes most sets
that of the links, but for pipelines, which wait for their stages. The former also sets the memory
of a process beside the model. The other rows are predicted, and their errors are told. Ranks on a
CPU share its cores and its memory's bandwidth.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ratchet.base.devices import ceilings
from ratchet.base.devices.probe import Device, probe
from ratchet.base.errors import PlanError
from ratchet.scale.parallel.bench import ParallelBench, recorded
from ratchet.scale.plan.cluster import PlannedCluster, Rate
from ratchet.scale.plan.layout import Layout, columns
from ratchet.scale.plan.search import Evaluated, PlanQuestion, evaluate
from ratchet.scale.plan.shape import Shape, find_shape
from ratchet.scale.plan.stack import WRITTEN_FP32
from ratchet.train.workloads.parallel import ParallelLayout, parse_parallel

LEAST_ROWS: Final = 3
"""Layouts from which on something is predicted: two set the rates."""
SLOWEST, FASTEST = 1e-6, 1e6
"""Range of the factors on the measured ceilings that are searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedLayout:
    """One layout: measured here, and predicted."""

    layout: str
    step_s: float
    predicted_s: float
    exposed_s: float
    """Communication that nothing hides; on a CPU, with the waits for other ranks."""
    predicted_exposed_s: float
    memory_bytes: float
    predicted_bytes: float
    sets: str = ""
    """The rate that this row sets; empty if it is predicted."""

    @property
    def step_error(self) -> float:
        """Return the predicted time over the measured one, less 1."""
        return self.predicted_s / self.step_s - 1

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.memory_bytes - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedPlan:
    """The layouts of a model that were measured here, and what the formulas make of them."""

    model: str
    device: str
    rows: tuple[CheckedLayout, ...]
    left_out: dict[str, str]
    """Layouts that a plan does not know, and why."""

    @property
    def step_error(self) -> float:
        """Return the median error of the predicted steps, without a sign."""
        return statistics.median(abs(one.step_error) for one in self.rows if not one.sets)

    @property
    def memory_error(self) -> float:
        return statistics.median(abs(one.memory_error) for one in self.rows if not one.sets)


def checked_here(model: str, *, device: str = "auto", ledger: str | None = None) -> CheckedPlan:
    """Check a plan against the layouts of a workload that this machine's ledger holds.

    Raises PlanError for a model without a shape and for fewer than three layouts.
    """
    shape, here = find_shape(model), probe(device)
    return check(shape, recorded(model, device=device, ledger=ledger), here)


def check(shape: Shape, rows: Sequence[ParallelBench], here: Device) -> CheckedPlan:
    """Predict measured layouts; PlanError if fewer than three of them can be planned."""
    left_out = {one.layout: why for one in rows if (why := _why_not(parse_parallel(one.layout)))}
    known = sorted((one for one in rows if one.layout not in left_out), key=_exposed_share)
    if len(known) < LEAST_ROWS:
        raise PlanError(
            f"this machine's ledger holds {len(known)} layouts of {shape.name} that a plan knows, "
            f"and two set the rates: measure {LEAST_ROWS} or more, as by ratchet bench "
            f"{shape.name} --parallel fsdp=2"
        )
    whole = [one for one in known if parse_parallel(one.layout).pp == 1]  # others wait for stages
    least, most = known[0], (whole or known)[-1]
    cluster, base_bytes = _cluster_of(shape, here, least, most)
    sets = {least.layout: "products", most.layout: "links"}
    found = []
    for one in known:
        told = _predicted(shape, cluster, one)
        found.append(
            CheckedLayout(
                layout=one.layout,
                step_s=one.step_time_s,
                predicted_s=float(told.times.total[0]),
                exposed_s=one.exposed_communication_s,
                predicted_exposed_s=_exposed_s(told),
                memory_bytes=one.peak_memory_bytes,
                predicted_bytes=base_bytes + float(told.memory.total[0]),
                sets=sets.get(one.layout, ""),
            )
        )
    return CheckedPlan(model=shape.name, device=here.model, rows=tuple(found), left_out=left_out)


def _why_not(layout: ParallelLayout) -> str:
    if layout.dp > 1 and layout.fsdp > 1:
        return "a plan has no copies of shards (HSDP)"
    return "a plan has no zero-bubble schedule" if layout.schedule == "zero-bubble" else ""


def _exposed_share(one: ParallelBench) -> tuple[bool, float]:
    return one.world > 1, one.exposed_communication_s / one.step_time_s


def _cluster_of(
    shape: Shape, here: Device, least: ParallelBench, most: ParallelBench
) -> tuple[PlannedCluster, float]:
    """Return this machine with the rates that two rows set, and the bytes of a process."""
    measured = ceilings.measure(here, again="due")
    flops = measured.gemm_flops_per_s["fp32"]
    link = measured.copy_bytes_per_s["dram"] / 2
    rate, copied = Rate(per_s=flops, source="measured"), measured.copy_bytes_per_s["dram"]
    cluster = PlannedCluster(
        name="here",
        device=here.model,
        local=max(least.world, most.world),
        nodes=1,
        products={"bf16": rate},  # those of the step, which is in fp32
        peak={"bf16": flops},
        memory_bytes=float(here.memory_bytes),
        memory=Rate(per_s=copied, source="measured"),
        fabric=Rate(per_s=link, source="set by one row"),
        mesh=False,
        network=Rate(per_s=link, source="set by one row"),
        units=1,
        power_w=1.0,
        collective=1.0,
    )
    own_s = least.step_time_s - least.exposed_communication_s
    for _ in range(2):  # the first guess of the links changes the rate of products, and back
        cluster = _fitted(
            partial(_with_rate, cluster, flops),
            lambda one: _computing_s(_predicted(shape, one, least)) - own_s,
        )
        cluster = _fitted(
            partial(_with_link, cluster, link),
            lambda one: _exposed_s(_predicted(shape, one, most)) - most.exposed_communication_s,
        )
    told = float(_predicted(shape, cluster, least).memory.total[0])
    return cluster, least.peak_memory_bytes - told


def _fitted(
    make: Callable[[float], PlannedCluster], too_long_by: Callable[[PlannedCluster], float]
) -> PlannedCluster:
    """Return the cluster of the factor on a rate with which a time is as measured."""
    low, high = SLOWEST, FASTEST
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if too_long_by(make(middle)) > 0 else (low, middle)
    return make(high)


def _with_rate(cluster: PlannedCluster, flops_per_s: float, factor: float) -> PlannedCluster:
    rate = Rate(per_s=flops_per_s * factor, source="set by one row")
    return replace(cluster, products={"bf16": rate})


def _with_link(cluster: PlannedCluster, bytes_per_s: float, factor: float) -> PlannedCluster:
    rate = Rate(per_s=bytes_per_s * factor, source="set by one row")
    return replace(cluster, fabric=rate, network=rate)


def _predicted(shape: Shape, cluster: PlannedCluster, one: ParallelBench) -> Evaluated:
    layout = parse_parallel(one.layout)
    sequence = one.sequence or shape.sequence
    shape = replace(shape, sequence=sequence)
    batch = one.items_per_step // sequence
    cluster = replace(cluster, local=layout.world)
    if one.ranks[0].device == "cpu":  # the ranks share its cores
        shared = {
            name: replace(rate, per_s=rate.per_s / layout.world)
            for name, rate in cluster.products.items()
        }
        memory = replace(cluster.memory, per_s=cluster.memory.per_s / layout.world)
        cluster = replace(cluster, products=shared, memory=memory)
    asked = PlanQuestion(shape=shape, cluster=cluster, stack=WRITTEN_FP32, batch=batch)
    planned = Layout(
        dp=layout.data,
        tp=layout.tp,
        pp=layout.pp,
        vpp=layout.vpp,
        cp=layout.cp,
        ep=layout.ep,
        micro_batch=max(1, batch // (layout.data * layout.micro)),
        sharding="full" if layout.fsdp > 1 else "none",
    )
    return evaluate(asked, columns([planned]))


def _exposed_s(told: Evaluated) -> float:
    """Return what a rank's trace shows as exposed: collectives, and waits in a pipeline."""
    times = told.times
    parts = (times.tensor, times.context, times.experts, times.data, times.pipeline, times.bubble)
    return float(sum(part[0] for part in parts))


def _computing_s(told: Evaluated) -> float:
    return float(told.times.total[0]) - _exposed_s(told)
