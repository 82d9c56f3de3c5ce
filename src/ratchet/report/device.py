"""This machine and its measured ceilings, and what workloads reach on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ratchet.report import model as m
from ratchet.report.words import (
    ABSENT,
    common_unit,
    show_bandwidth,
    show_bytes,
    show_flops,
    show_rate,
    show_share,
)

if TYPE_CHECKING:
    from ratchet.devices.describe import DeviceReport, Paper
    from ratchet.workloads.bench import BenchResult


def bench_report(results: Sequence[BenchResult]) -> m.ResultReport:
    """Describe the result of `ratchet bench`: one row per workload."""
    unit = common_unit([row.step_time_s for row in results])
    counted = sorted({row.unit for row in results}, reverse=True)
    columns = (
        m.name("workload"),
        m.number(f"step, {unit.name}", "step_time_s", unit.show),
        m.number(f"{' or '.join(counted)}/s", "tokens_per_s", show_rate),
        m.number("MFU", "mfu", show_share),
        m.number("peak memory", "peak_memory_bytes", show_bytes),
    )
    warnings = (line for row in results for line in row.warnings)
    said = (m.Words(line, "warning") for line in warnings)
    return m.ResultReport(header=(m.ResultTable(columns, results), *said))


def device_report(report: DeviceReport) -> m.ResultReport:
    """Describe the result of `ratchet device`: the device, and the ceilings measured on it."""
    device, paper = report.device, report.paper
    caches = (f"{level} {show_bytes(size)}" for level, size in device.caches_bytes.items())
    facts = {
        "device": device.model,
        "kind": f"{device.kind}, {device.vendor} {device.runtime}".strip(),
        "cores": f"{device.cores} cores, {device.threads} threads",
        "instructions": ", ".join(device.isa) or ABSENT,
        "kernels for": report.target,
        "caches": ", ".join(caches) or ABSENT,
        "memory": show_bytes(device.memory_bytes),
    }
    ceilings = m.section("Measured ceilings", m.grid(("", "rate"), list(_ceilings(report))))
    said = (f"note: {one}" for one in report.notes)
    vendor = (
        m.section(f"Vendor's figures: {paper.name}", m.grid(("", "peak"), list(_peaks(paper))))
        if paper
        else None
    )
    sections = m.blocks(ceilings, vendor, *said)
    return m.ResultReport(header=(m.Facts(list(facts.items())),), sections=sections)


def _ceilings(report: DeviceReport) -> Iterator[tuple[str, str]]:
    for dtype, rate in report.gemm_flops_per_s.items():
        yield f"matrix product, {dtype}", show_flops(rate)
    for test, rates in (("copy", report.copy_bytes_per_s), ("triad", report.triad_bytes_per_s)):
        for level, rate in rates.items():
            yield f"{test}, {level}", show_bandwidth(rate)


def _peaks(paper: Paper) -> Iterator[tuple[str, str]]:
    for kind, rate in paper.peak_flops_per_s.items():
        yield kind, show_flops(rate)
    if paper.memory_bytes_per_s:
        yield "memory", show_bandwidth(paper.memory_bytes_per_s)
