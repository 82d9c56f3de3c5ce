"""Communication that no compute hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.trace.advice.finding import Finding, milliseconds, worth

if TYPE_CHECKING:
    from ratchet.trace.report import Report


def find(report: Report) -> Finding | None:
    """Exposed communication."""
    whole = report.identity
    if whole.overlap is None or not worth(whole.exposed_communication, whole.window):
        return None
    return Finding(
        name="exposed-communication",
        evidence=(
            f"{milliseconds(whole.exposed_communication)} of "
            f"{milliseconds(whole.communication)} communication is hidden by no compute "
            f"({whole.overlap:.1%} overlap)"
        ),
        gain=whole.exposed_communication,
        levers=(),
        remedy=(
            "start collectives earlier (DDP bucket_cap_mb, FSDP prefetch), send fewer bytes (bf16 "
            "gradients), or compare ranks: waiting for a late rank counts as communication"
        ),
    )
