"""The figures that workloads reach on this machine, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.base.show import model as m
from ratchet.base.show.words import common_unit, show_bytes, show_rate, show_share

if TYPE_CHECKING:
    from ratchet.train.workloads.bench import BenchResult


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
