"""Checkpoint activations: saves memory at the cost of time."""

from ratchet.optimize.levers.base import Situation, field_lever

SHORT = 0.8
"""Share of the device's memory above which a step counts as short of memory."""


def _applies(situation: Situation) -> str | None:
    if situation.written.checkpointing != "none":
        return "the step already checkpoints its activations"
    if situation.peak_memory_bytes < SHORT * situation.memory_bytes:
        share = situation.peak_memory_bytes / max(situation.memory_bytes, 1)
        return (
            f"memory is not short ({share:.0%} of the device's is used), and recomputing costs time"
        )
    return None


LEVER = field_lever(
    "checkpointing",
    "selective",
    name="activation-checkpointing",
    summary="matrix products saved, everything else recomputed during backward",
    expected="a fraction of the activation memory for a few percent of time",
    source="Chen et al. 2016 (sublinear memory cost); Korthikanti et al. 2022 (selective)",
    applies=_applies,
    default=False,
)
