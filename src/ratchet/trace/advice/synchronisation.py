"""The CPU waits for the device, and the device then for the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.trace.advice.finding import Finding, milliseconds, worth

if TYPE_CHECKING:
    from ratchet.trace.report import Report


def find(report: Report) -> Finding | None:
    """Idle time around synchronising calls."""
    gain = report.idle.synchronisation
    if not worth(gain, report.identity.window):
        return None
    return Finding(
        name="synchronisation",
        evidence=f"the device idles {milliseconds(gain)} while the CPU is in a synchronising call",
        gain=gain,
        levers=(),
        remedy="read losses and masks less often: .item(), .cpu() and nonzero wait for the device",
    )
