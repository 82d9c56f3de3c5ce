"""Count the items in one step, for rates: tokens if the author counts them, else samples."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.train.workloads.micro_batches import samples_of
from ratchet.train.workloads.workload import Batch, Unit, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """The number of `unit` in one step."""

    per_step: int
    unit: Unit


def count(workload: Workload, batch: Batch) -> Counted:
    """Count the items in one step, which takes as many batches as it accumulates.

    Without `tokens_per_batch`, the leading dimension of `batch`'s first tensor is the number of
    samples in each.
    """
    if workload.tokens_per_batch is not None:
        tokens = workload.tokens_per_batch * workload.accumulate
        return Counted(per_step=tokens, unit=workload.unit)
    unit: Unit = "samples" if workload.unit == "tokens" else workload.unit
    samples = max(samples_of(batch), 1)
    return Counted(per_step=samples * workload.accumulate, unit=unit)
