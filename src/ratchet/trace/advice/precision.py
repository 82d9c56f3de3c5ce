"""Matrix multiplies that run in fp32 on a device with faster units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.trace.advice.finding import Finding, milliseconds, worth

if TYPE_CHECKING:
    from ratchet.trace.report import Report

ASSUMED_SPEEDUP = 2
"""What a narrower type is taken to give. Without a source: a cautious figure, so that the finding
ranks; the lever's own measurement decides."""


def find(report: Report) -> Finding | None:
    """Time in fp32 matrix kernels."""
    slow = [row for row in report.matmuls if row.kernel == "fp32" and row.inputs in ("fp32", "")]
    time = min(sum(row.time for row in slow), report.identity.compute)
    gain = time - time // ASSUMED_SPEEDUP
    if not report.on_device or not worth(gain, report.identity.window):
        return None
    return Finding(
        name="fp32-matmuls",
        evidence=(
            f"{milliseconds(time)} in {sum(row.count for row in slow):,} fp32 matrix kernels, most "
            f"of it in {slow[0].op or slow[0].example}"
        ),
        gain=gain,
        levers=("bf16-autocast", "bf16-weights", "matmul-precision"),
        remedy="lower the precision of matrix multiplies where the loss allows it",
    )
