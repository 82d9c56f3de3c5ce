"""Activation checkpointing: the forward runs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.trace.advice.finding import Finding, milliseconds, worth

if TYPE_CHECKING:
    from ratchet.trace.report import Report


def find(report: Report) -> Finding | None:
    """Device time of recomputed forwards, where there is memory to keep more."""
    gain = report.recompute.device
    if not worth(gain, report.identity.window):
        return None
    return Finding(
        name="recompute",
        evidence=(
            f"checkpointing recomputes {milliseconds(gain)} of forward work "
            f"({report.recompute.share:.1%} of the device time that ops launched)"
        ),
        gain=gain,
        levers=(),
        remedy="checkpoint fewer blocks, or only the cheap ones, if the peak leaves memory free",
    )
