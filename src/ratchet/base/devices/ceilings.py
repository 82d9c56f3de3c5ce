"""Measured ceilings of a device, cached by fingerprint, and the roofline that they give.

A ceiling is the rate of torch's own GEMM, copy and triad, not the register peak, so a better kernel
can exceed it. On a shared machine a run can only be too slow, never too fast, so each rate is the
median of the best quarter of its runs, and the best of up to TIMES measurements at different times:
in a bad minute every run may be half as fast.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ratchet.base.devices.probe import Device, level_bytes, short_hash, software_fingerprint
from ratchet.base.errors import DeviceError
from ratchet.base.files import cache_folder, write_whole
from ratchet.base.serialise import encoded

LOG = logging.getLogger(__name__)

FORMAT = 2
_measured_here: set[Path] = set()  # Files of the ceilings that this process measured
TIMES, APART_S = 3, 300.0
"""Measurements that a cached file holds the best of, and the least time from one to the next."""

Positive = Annotated[int, Meta(gt=0)]
Rates = Annotated[
    Mapping[str, Annotated[float, Meta(gt=0, le=sys.float_info.max)]], Meta(min_length=1)
]


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured rates of one device, for one software version and one thread count."""

    format: int = FORMAT
    device: str = ""  # The device's fingerprint
    software: str = ""
    threads: Positive = 1  # Threads that torch used
    gemm_flops_per_s: Rates  # By dtype: fp32, bf16 (and fp16 on a GPU)
    copy_bytes_per_s: Rates  # By level (l2, l3, dram); bytes read plus bytes written
    triad_bytes_per_s: Rates  # a = b + s * c: two reads and one write
    level_bytes: Mapping[str, Positive] = {}
    """Total size of each cache level, for the threads that measured."""
    times: Positive = 1  # Measurements of which these rates are the best

    def bandwidth_bytes_per_s(self, working_set_bytes: float | None = None) -> float:
        """Return the best rate of the level that a working set fits in; DRAM's by default.

        A level that measured slower than an outer one gets the outer one's rate, so a smaller
        working set never lowers the result.
        """
        rates = [self._best("dram")]
        if working_set_bytes is not None:
            fitting = [k for k, size in self.level_bytes.items() if working_set_bytes <= size]
            rates += [self._best(level) for level in fitting]
        return max(rates)

    def best_with(self, other: Ceilings) -> Ceilings:
        """Return the better rate of two measurements, each by itself."""
        rates: dict[str, dict[str, float]] = {}
        for field in ("gemm_flops_per_s", "copy_bytes_per_s", "triad_bytes_per_s"):
            mine, others = getattr(self, field), getattr(other, field)
            rates[field] = {
                name: max(of[name] for of in (mine, others) if name in of)
                for name in {**mine, **others}
            }
        return msgspec.structs.replace(self, **rates, times=self.times + other.times)

    def _best(self, level: str) -> float:
        rates = (self.copy_bytes_per_s, self.triad_bytes_per_s)
        return max((rate[level] for rate in rates if level in rate), default=0.0)


def measure(
    device: Device,
    cache: bool = True,
    *,
    again: Literal["", "due", "now"] = "",
    folder: Path | None = None,
) -> Ceilings:
    """Return a device's ceilings: from the cache, or measured in under 5 s.

    `cache=False` measures anew and replaces the cached values. `again` measures once more, now or
    where it is due (TIMES, APART_S; once a process), and keeps the best of each rate. A damaged or
    foreign file is measured anew; a folder that cannot be written is logged. DeviceError if memory
    runs out.
    """
    path = (folder or cache_folder("ceilings")) / f"{_key(device)}.json"
    known = _read(path, device) if cache else None
    if known is not None and not (again == "now" or (again == "due" and _is_due(path, known))):
        return known
    _measured_here.add(path)
    found = _measured(device)
    newest = _read(path, device) if known is not None else None  # another process may have written
    ceilings = found if newest is None else newest.best_with(found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encoded(ceilings, indent=1))
    except OSError as error:
        LOG.warning("measured ceilings are not kept: %s", error)
    return ceilings


def _measured(device: Device) -> Ceilings:
    # torch takes seconds to import; reading a cached file should not.
    from ratchet.base.devices.rates import copy, gemm, triad

    return Ceilings(
        device=device.fingerprint,
        software=software_fingerprint(),
        threads=_threads(),
        gemm_flops_per_s=gemm(device),
        copy_bytes_per_s=copy(device),
        triad_bytes_per_s=triad(device),
        level_bytes=level_bytes(device),
    )


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _key(device: Device) -> str:
    threads = _threads() if device.kind == "cpu" else 1
    return short_hash(
        {
            "format": FORMAT,
            "device": device.fingerprint,
            "software": software_fingerprint(),
            "threads": threads,
        }
    )


def _read(path: Path, device: Device) -> Ceilings | None:
    try:
        known = msgspec.json.decode(path.read_bytes(), type=Ceilings)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError):
        LOG.warning("cached ceilings at %s cannot be read: measuring again", path)
        return None
    mine = known.format == FORMAT and known.device == device.fingerprint
    return known if mine else None


def _is_due(path: Path, known: Ceilings) -> bool:
    """Return whether a cached file may be bettered by one more measurement."""
    if known.times >= TIMES or path in _measured_here:
        return False
    try:
        return time.time() - path.stat().st_mtime > APART_S
    except OSError:
        return False


# Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
# architectures", Communications of the ACM 52(4), 2009.


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
