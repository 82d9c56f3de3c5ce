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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ratchet.base.devices.catalogue import load
from ratchet.base.errors import PlanError
from ratchet.scale.plan.cluster import PlannedCluster, Rate
from ratchet.scale.plan.time import product_share
from ratchet.trace.answers.report import Report

DTYPES: Final = {"bf16": ("bf16", "fp16"), "fp8": ("fp8",)}
"""Precisions of a plan by those of a trace's products."""
PRODUCTS: Final = ("aten::mm", "aten::addmm")
MEMORY_BOUND: Final = 0.8
"""Share of a product's time that its bytes would take, from which its rate tells nothing."""
LARGE_FLOPS: Final = 10**10
"""Operations of one call from which a product's rate tells about the device, not the launch."""
LARGE_BYTES: Final = 16 << 20
"""The same for a collective's message."""
WAITING: Final = 0.1
"""Share of a link's rate below which a collective's time is a wait."""


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
        """Return the operations of one call."""
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
        own = [one for one in measured if one.precision == precision and precision in products]
        classes: dict[int, list[tuple[float, float]]] = {}
        for one in own:
            if (rate := implied_rate(cluster, one)) is not None:
                octave = round(math.log2(one.inner))
                classes.setdefault(octave, []).append((rate, one.total_s))
        if not classes:
            continue
        rates = {octave: _mean(found) for octave, found in sorted(classes.items())}
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


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the mean of rates, each weighted by its time."""
    total = sum(time for _, time in weighted)
    return sum(rate * time for rate, time in weighted) / total
