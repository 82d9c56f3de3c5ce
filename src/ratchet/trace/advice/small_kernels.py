"""Many kernels shorter than what it takes to start them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.trace.advice.finding import Finding, milliseconds, worth

if TYPE_CHECKING:
    from ratchet.trace.report import Report


def find(report: Report) -> Finding | None:
    """Small device work and the gaps between queued kernels."""
    launches = report.launches
    # Without a known launch every gap counts as the device's own, which says nothing about kernels.
    gaps = report.idle.turn_around if launches.count else 0
    gain = gaps + launches.small_time // 2
    gain = min(gain, report.identity.window)
    if not launches.small or not worth(gain, report.identity.window):
        return None
    return Finding(
        name="small-kernels",
        evidence=(
            f"{launches.small:,} pieces of device work are shorter than "
            f"{launches.small_below / 1000:g} µs ({milliseconds(launches.small_time)} together, "
            f"{milliseconds(gaps)} in gaps of up to 10 µs between queued work)"
        ),
        gain=gain,
        levers=("compile", "fused-optimizer", "foreach-optimizer"),
        remedy="fuse elementwise chains and optimizer updates",
    )
