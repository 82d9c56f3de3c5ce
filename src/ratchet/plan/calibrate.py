"""A cluster whose rates come from profiler traces instead of catalogues and assumptions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ratchet.base.errors import PlanError
from ratchet.devices.catalogue import load
from ratchet.plan.cluster import PlannedCluster, Rate
from ratchet.trace.answers.report import Report

DTYPES: Final = {"bf16": ("bf16", "fp16"), "fp8": ("fp8",)}
"""Precisions of a plan by those of a trace's products."""
LARGE_FLOPS: Final = 10**9
"""Operations of one call from which a product's rate tells about the device, not the launch."""
LARGE_BYTES: Final = 1 << 20
"""The same for a collective's message."""
UPPER: Final = 0.75
"""Quantile over time of the rates that a trace shows: what the device sustains when it is fed."""


def calibrated(cluster: PlannedCluster, paths: Sequence[Path]) -> PlannedCluster:
    """Return the cluster with the rates of products and links that traces show.

    What the traces do not show keeps its rate. Raises PlanError for a trace of another device and
    for traces that show neither products nor collectives.
    """
    from ratchet.trace import report
    from ratchet.trace.read.file import read

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


def _with_products(cluster: PlannedCluster, reports: Iterable[Report]) -> PlannedCluster:
    rows = [row for report in reports for row in report.roofline]
    products = dict(cluster.products)
    for precision, dtypes in DTYPES.items():
        large = [
            (row.flops / row.time * 1e9, row.time)
            for row in rows
            if row.dtype in dtypes and row.time and row.flops / max(row.count, 1) >= LARGE_FLOPS
        ]
        if large and precision in products:
            products[precision] = Rate(
                per_s=_upper(large), source=f"{len(large)} products of the given traces"
            )
    return replace(cluster, products=products) if products != cluster.products else cluster


def _with_links(cluster: PlannedCluster, reports: Iterable[Report]) -> PlannedCluster:
    rows = [row for report in reports for row in report.collectives]
    large = [row for row in rows if row.size_bytes >= LARGE_BYTES and row.bus_bandwidth > 0]
    # A collective's time holds the wait for the slowest rank, so most count alike.
    inside = [(row.bus_bandwidth, 1) for row in large if row.ranks <= cluster.local]
    outside = [(row.bus_bandwidth, 1) for row in large if row.ranks > cluster.local]
    changed = cluster
    if inside:
        # Bus bandwidth is already what collectives reach.
        per_s = _upper(inside) / cluster.collective
        source = f"{len(inside)} collectives of the given traces"
        changed = replace(changed, fabric=Rate(per_s=per_s, source=source))
    if outside:
        per_s = _upper(outside) / cluster.collective / cluster.local
        source = f"{len(outside)} collectives of the given traces"
        changed = replace(changed, network=Rate(per_s=per_s, source=source))
    return changed


def _upper(weighted: Sequence[tuple[float, int]]) -> float:
    """Return the quantile of rates, each weighted by its time."""
    ordered = sorted(weighted)
    times = np.cumsum([time for _, time in ordered])
    at = int(np.searchsorted(times, UPPER * times[-1]))
    return ordered[min(at, len(ordered) - 1)][0]
