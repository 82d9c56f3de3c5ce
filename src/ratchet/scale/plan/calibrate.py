"""A cluster whose rates come from profiler traces instead of catalogues and assumptions.

A measured product [rows, inner] x [inner, columns] of t seconds implies the sustained rate

    2 rows columns inner / (t share(rows, columns, inner))

with the model's own share of waves and inner sizes. Products are classed by inner size, in octaves.
A class has the mean of their rates by time, with which its predicted time in all is the measured
one. The cluster's rate is that of the class that sustains most, and the others keep their share of
it. Products that the memory's bandwidth bounds tell nothing of the rate.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ratchet.base.devices import ceilings
from ratchet.base.devices.catalogue import load
from ratchet.base.devices.probe import Device, probe
from ratchet.base.errors import PlanError
from ratchet.scale.parallel.bench import ParallelBench, recorded
from ratchet.scale.plan.cluster import PlannedCluster, Rate
from ratchet.scale.plan.layout import WRITTEN_FP32, Layout, columns
from ratchet.scale.plan.search import Evaluated, PlanQuestion, evaluate
from ratchet.scale.plan.shape import Shape, find_shape
from ratchet.scale.plan.time import product_share
from ratchet.trace.answers.report import Report
from ratchet.train.workloads.parallel import ParallelLayout, parse_parallel

DTYPES: Final = {"bf16": ("bf16", "fp16"), "fp8": ("fp8",)}
"""Precisions of a plan by those of a trace's products."""
PRODUCTS: Final = ("aten::mm", "aten::addmm")
MEMORY_BOUND: Final = 0.8
"""Share of a product's time that its bytes would take, from which its rate tells nothing."""
LARGE_FLOPS: Final = 10**10
"""Operations of one call from which a product's rate tells about the device, not the launch."""
LARGE_BYTES: Final = 16 << 20  # The same for a collective's message
WAITING: Final = 0.1  # Share of a link's rate below which a collective's time is a wait


def calibrated(cluster: PlannedCluster, paths: Sequence[Path]) -> PlannedCluster:
    """Return the cluster with the rates of products and links that traces show.

    What the traces do not show keeps its rate. Raises PlanError for a trace of another device and
    for traces that show neither products nor collectives.
    """
    from ratchet.trace import report
    from ratchet.trace.read import read

    reports = []
    for path in paths:
        found = report(read(path))
        _check_device(cluster, found, path)
        reports.append(found)
    changed = _with_products(cluster, reports)
    changed = _with_links(changed, reports)
    if changed == cluster:
        raise PlanError(
            f"{', '.join(map(str, paths))} shows no large products in bf16 or fp8 with shapes and "
            "no collectives with sizes: record a training step with shapes"
        )
    return changed


def _check_device(cluster: PlannedCluster, found: Report, path: Path) -> None:
    entry = load().match(found.device) if found.device else None
    word = cluster.device.split()[0]
    if entry.name != cluster.device if entry else word not in re.split(r"[\s_-]", found.device):
        raise PlanError(
            f"{path} is of {found.device or 'no named device'}, and the cluster has "
            f"{cluster.device}: give traces of that device"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredProduct:
    """A product of a trace: its sizes and the device seconds of one call and of all."""

    rows: int
    columns: int
    inner: int
    precision: str
    call_s: float
    total_s: float

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.inner


def products_of(report: Report) -> list[MeasuredProduct]:
    """Return the large bf16, fp16 and fp8 products of two matrices that a trace shows."""
    found = []
    for row in report.roofline:
        precision = next((name for name, one in DTYPES.items() if row.dtype in one), None)
        sizes = _sizes(row.shapes) if row.name in PRODUCTS else None
        if (
            precision is None
            or sizes is None
            or not row.time
            or row.flops < LARGE_FLOPS * row.count
        ):
            continue
        (rows, inner), (_, columns) = sizes
        found.append(
            MeasuredProduct(
                rows=rows,
                columns=columns,
                inner=inner,
                precision=precision,
                call_s=row.time / row.count / 1e9,
                total_s=row.time / 1e9,
            )
        )
    return found


def _sizes(shapes: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the sizes of the first two matrices among an op's arguments."""
    matrices = [tuple(one) for one in json.loads(shapes) if isinstance(one, list) and len(one) == 2]
    if len(matrices) < 2 or matrices[0][1] != matrices[1][0]:
        return None
    return matrices[0], matrices[1]


def _with_products(cluster: PlannedCluster, reports: Iterable[Report]) -> PlannedCluster:
    measured = [one for report in reports for one in products_of(report)]
    products, by_inner = dict(cluster.products), cluster.by_inner
    for precision in DTYPES:
        known = [one for one in measured if one.precision == precision and precision in products]
        classes: dict[int, list[tuple[float, float]]] = {}
        for one in known:
            if (rate := implied_rate(cluster, one)) is not None:
                octave = round(math.log2(one.inner))
                classes.setdefault(octave, []).append((rate, one.total_s))
        if not classes:
            continue
        rates = {
            octave: statistics.fmean([rate for rate, _ in own], [time_s for _, time_s in own])
            for octave, own in sorted(classes.items())
        }
        best = max(rates.values())
        if precision == "bf16":  # fp8's products keep bf16's shares
            by_inner = tuple((2.0**octave, rate / best) for octave, rate in rates.items())
        said = ", ".join(f"{rate / best:.0%} at {2**octave}" for octave, rate in rates.items())
        source = (
            f"{sum(map(len, classes.values()))} products of the given traces, "
            f"{best / products[precision].per_s:.2f} of the rate without them; by inner size {said}"
        )
        products[precision] = Rate(per_s=best, source=source)
    if products == cluster.products:
        return cluster
    return replace(cluster, products=products, by_inner=by_inner)


def implied_rate(cluster: PlannedCluster, one: MeasuredProduct) -> float | None:
    """Return the sustained FLOP/s behind a measured product; None if bandwidth bounds it."""
    moved = 2.0 * (one.rows * one.inner + one.inner * one.columns + one.rows * one.columns)
    if moved / cluster.memory.per_s > MEMORY_BOUND * one.call_s:
        return None
    sizes = (np.asarray(float(size)) for size in (one.rows, one.columns, one.inner))
    return float(one.flops / (one.call_s * product_share(cluster, *sizes)))


def _with_links(cluster: PlannedCluster, reports: Iterable[Report]) -> PlannedCluster:
    rows = [row for report in reports for row in report.collectives]
    large = [row for row in rows if row.size_bytes >= LARGE_BYTES and row.bus_bandwidth > 0]
    inside = [row.bus_bandwidth for row in large if row.ranks <= cluster.local]
    outside = [row.bus_bandwidth / cluster.local for row in large if row.ranks > cluster.local]
    return replace(
        cluster,
        fabric=_link(cluster.fabric, inside, cluster.collective),
        network=_link(cluster.network, outside, cluster.collective),
    )


def _link(rate: Rate, measured: Sequence[float], collective: float) -> Rate:
    """Return the link's rate by the fastest collective: the others wait more for slow ranks.

    Bus bandwidth is what collectives reach, a share `collective` of the link. Where even the
    fastest is far below the rate, all of them wait, and the rate stays.
    """
    if not measured:
        return rate
    fastest, count = max(measured) / collective, len(measured)
    share = fastest / rate.per_s
    if share < WAITING:
        return replace(
            rate,
            source=f"{rate.source}; {count} collectives of the given traces reach {share:.1%} of "
            "it, too little for a link, so they were left out",
        )
    source = f"the fastest of {count} collectives of the given traces, {share:.2f} of the rate "
    return Rate(per_s=fastest, source=source + "without them")


# Layouts by the formulas of a plan, beside those that `bench --parallel` measured on this machine.
#
# Nothing is known of this machine's links and of what a small eager step sustains, so two rows set
# the rates: the one that communicates least sets that of products, and the one that exposes most
# sets that of the links, but for pipelines, which wait for their stages. The former also sets the
# memory of a process beside the model. The other rows are predicted, and their errors are told.
# Ranks on a CPU share its cores and its memory's bandwidth.

LEAST_ROWS: Final = 3  # Layouts from which on something is predicted: two set the rates
SLOWEST, FASTEST = 1e-6, 1e6  # Range of the factors on the measured ceilings that are searched


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedLayout:
    """One layout: measured here, and predicted."""

    layout: str
    step_s: float
    predicted_s: float
    exposed_s: float  # Communication that nothing hides; on a CPU, with the waits for other ranks
    predicted_exposed_s: float
    memory_bytes: float
    predicted_bytes: float
    sets: str = ""  # The rate that this row sets; empty if it is predicted

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
    left_out: dict[str, str]  # Layouts that a plan does not know, and why

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
    known = sorted(
        (one for one in rows if one.layout not in left_out),
        key=lambda one: (one.world > 1, one.exposed_communication_s / one.step_time_s),
    )
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


def _cluster_of(
    shape: Shape, here: Device, least: ParallelBench, most: ParallelBench
) -> tuple[PlannedCluster, float]:
    """Return this machine with the rates that two rows set, and the bytes of a process."""
    measured = ceilings.measure(here, again="due")
    flops = measured.gemm_flops_per_s["fp32"]
    link = measured.copy_bytes_per_s["dram"] / 2
    cluster = PlannedCluster(
        name="here",
        device=here.model,
        local=max(least.world, most.world),
        nodes=1,
        products={"bf16": Rate(per_s=flops, source="measured")},  # of the step, in fp32
        peak={"bf16": flops},
        memory_bytes=float(here.memory_bytes),
        memory=Rate(per_s=2 * link, source="measured"),
        fabric=Rate(per_s=link, source="set by one row"),
        mesh=False,
        network=Rate(per_s=link, source="set by one row"),
        units=1,
        power_w=1.0,
        collective=1.0,
    )

    def with_rate(factor: float) -> PlannedCluster:
        rate = Rate(per_s=flops * factor, source="set by one row")
        return replace(cluster, products={"bf16": rate})

    def with_link(factor: float) -> PlannedCluster:
        rate = Rate(per_s=link * factor, source="set by one row")
        return replace(cluster, fabric=rate, network=rate)

    def computes_too_long(tried: PlannedCluster) -> bool:
        told = _predicted(shape, tried, least)
        computing_s = float(told.times.total[0]) - _exposed_s(told)
        return computing_s > least.step_time_s - least.exposed_communication_s

    def exposes_too_long(tried: PlannedCluster) -> bool:
        return _exposed_s(_predicted(shape, tried, most)) > most.exposed_communication_s

    for _ in range(2):  # the first guess of the links changes the rate of products, and back
        cluster = _fitted(with_rate, computes_too_long)
        cluster = _fitted(with_link, exposes_too_long)
    told = float(_predicted(shape, cluster, least).memory.total[0])
    return cluster, least.peak_memory_bytes - told


def _fitted(
    make: Callable[[float], PlannedCluster], too_long: Callable[[PlannedCluster], bool]
) -> PlannedCluster:
    """Return the cluster of the factor on a rate with which a time is as measured."""
    low, high = SLOWEST, FASTEST
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if too_long(make(middle)) else (low, middle)
    return make(high)


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
