"""This machine and its measured ceilings, and what workloads reach on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ratchet.base.show import model as m
from ratchet.base.show.words import (
    ABSENT,
    show_bandwidth,
    show_bytes,
    show_flops,
)

if TYPE_CHECKING:
    from ratchet.base.devices.describe import DeviceReport, Paper


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
