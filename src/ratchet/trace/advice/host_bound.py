"""The CPU launches work more slowly than the device does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.trace.advice.finding import Finding, milliseconds, worth

if TYPE_CHECKING:
    from ratchet.trace.report import Report


def find(report: Report) -> Finding | None:
    """Idle time that ends with a launch that came late."""
    gain = report.idle.host_bound
    if not report.on_device or not worth(gain, report.identity.window):
        return None
    return Finding(
        name="host-bound",
        evidence=(
            f"the device idles {milliseconds(gain)} before work that the CPU launched late "
            f"({report.launches.count:,} launches)"
        ),
        gain=gain,
        levers=("compile", "compile-max-autotune", "fused-optimizer", "foreach-optimizer"),
        remedy="launch less: compile the step, capture it in a graph, or raise the batch size",
    )
