"""The roofline model: the best rate that two measured ceilings allow.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.errors import DeviceError

LOG = logging.getLogger(__name__)

Bound = Literal["compute", "memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """One compute ceiling and one bandwidth ceiling."""

    flops_per_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and self.bytes_per_s > 0):
            raise DeviceError(
                f"a roofline of {self.flops_per_s} FLOP/s and {self.bytes_per_s} bytes/s: "
                "both must be above 0; measure both ceilings first"
            )

    def time_bound_s(self, flops: float, size_bytes: float) -> float:
        """Return the least time for this much arithmetic and compulsory traffic."""
        return max(flops / self.flops_per_s, size_bytes / self.bytes_per_s)

    def bound(self, flops: float, size_bytes: float) -> Bound:
        """Return the one of the two that takes longer; a tie is compute."""
        return "compute" if flops / self.flops_per_s >= size_bytes / self.bytes_per_s else "memory"


def roofline(ceilings: Ceilings, *, dtype: str, working_set_bytes: float | None = None) -> Roofline:
    """Return a dtype's roofline at the cache level that a working set fits in (DRAM by default).

    DeviceError if the dtype has no measured ceiling.
    """
    if dtype not in ceilings.gemm_flops_per_s:
        known = ", ".join(ceilings.gemm_flops_per_s)
        raise DeviceError(f"no ceiling was measured for {dtype!r}: use one of {known}")
    return Roofline(
        flops_per_s=ceilings.gemm_flops_per_s[dtype],
        bytes_per_s=ceilings.bandwidth_bytes_per_s(working_set_bytes),
    )


def mfu(flops: float, time_s: float, ceilings: Ceilings | None, *, dtype: str) -> float:
    """Return the share of the measured GEMM ceiling that `flops` in `time_s` reached.

    `dtype` names the ceiling: the arithmetic that runs. A missing ceiling is logged and gives 0.
    """
    if not time_s > 0:
        raise DeviceError(f"MFU of a step of {time_s} s: the time must be above 0")
    rate = 0.0 if ceilings is None else ceilings.gemm_flops_per_s.get(dtype, 0.0)
    if rate <= 0:
        LOG.warning("no measured ceiling for %s: MFU is reported as 0", dtype)
        return 0.0
    return flops / time_s / rate
