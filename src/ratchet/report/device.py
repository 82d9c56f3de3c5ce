"""This machine and its measured ceilings, and what workloads reach on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from ratchet.report.model import (
    Facts,
    ResultReport,
    ResultTable,
    Words,
    blocks,
    grid,
    name,
    number,
    section,
)
from ratchet.report.terminal import print_report
from ratchet.report.words import (
    ABSENT,
    common_unit,
    show_bandwidth,
    show_bytes,
    show_flops,
    show_rate,
    show_share,
)


def print_bench(results: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print the result of `ratchet bench`: one row per workload."""
    unit = common_unit([row.get("step_time_s") or 0.0 for row in results])
    counted = sorted({str(row.get("unit", "tokens")) for row in results}, reverse=True)
    columns = (
        name("workload", lambda row: row.get("workload") or row.get("name")),
        number(f"step, {unit.name}", lambda row: row.get("step_time_s"), unit.show),
        number(f"{' or '.join(counted)}/s", lambda row: row.get("tokens_per_s"), show_rate),
        number("MFU", lambda row: row.get("mfu"), show_share),
        number("peak memory", lambda row: row.get("peak_memory_bytes"), show_bytes),
    )
    warnings = (line for row in results for line in row.get("warnings", ()))
    said = (Words(line, "warning") for line in warnings)
    print_report(ResultReport(header=(ResultTable(columns, results), *said)), console)


def print_device(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of `ratchet device`: the device, and the ceilings measured on it."""
    device, paper = report["device"], report.get("paper")
    caches = (f"{level} {show_bytes(v)}" for level, v in device.get("caches_bytes", {}).items())
    facts = {
        "device": device["model"],
        "kind": f"{device['kind']}, {device['vendor']} {device.get('runtime', '')}".strip(),
        "cores": f"{device['cores']} cores, {device['threads']} threads",
        "instructions": ", ".join(device["isa"]) or ABSENT,
        "kernels for": str(report.get("target", ABSENT)),
        "caches": ", ".join(caches) or ABSENT,
        "memory": show_bytes(device.get("memory_bytes", 0)),
    }
    ceilings = section("Measured ceilings", grid(("", "rate"), list(_ceilings(report))))
    said = (f"note: {one}" for one in report.get("notes", ()))
    vendor = paper and section(
        f"Vendor's figures: {paper['name']}", grid(("", "peak"), list(_peaks(paper)))
    )
    sections = blocks(ceilings, vendor, *said)
    print_report(ResultReport(header=(Facts(list(facts.items())),), sections=sections), console)


def _ceilings(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for dtype, rate in report["gemm_flops_per_s"].items():
        yield f"matrix product, {dtype}", show_flops(rate)
    for test in ("copy", "triad"):
        for level, rate in report[f"{test}_bytes_per_s"].items():
            yield f"{test}, {level}", show_bandwidth(rate)


def _peaks(paper: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind, rate in paper["peak_flops_per_s"].items():
        yield kind, show_flops(rate)
    if paper["memory_bytes_per_s"]:
        yield "memory", show_bandwidth(paper["memory_bytes_per_s"])
