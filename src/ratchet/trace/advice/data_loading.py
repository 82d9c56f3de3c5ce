"""The device waits for data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.trace.advice.finding import Finding, milliseconds, worth

if TYPE_CHECKING:
    from ratchet.trace.report import Report


def find(report: Report) -> Finding | None:
    """Idle time while the CPU is in a data loader."""
    gain = report.idle.data_loading
    if not worth(gain, report.identity.window):
        return None
    return Finding(
        name="data-loading",
        evidence=f"the device idles {milliseconds(gain)} while the CPU loads data",
        gain=gain,
        levers=(),
        remedy="raise the loader's num_workers and prefetch_factor, and set pin_memory",
    )
