"""Measured ceilings of a device, cached by fingerprint, and the roofline that they give.

A ceiling is the best rate that was seen here, not the register peak. It is a claim that any faster
measurement refutes: then it is measured anew at once (`unrefuted`). On a busy machine a run can
only be too slow, never too fast. So each rate is the median of the best quarter of its runs, and
the best of all measurements, of as many threads or fewer. A measurement says how busy the cores
were, and stays provisional until one was quiet.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ratchet.base.devices.cpuinfo import OthersUse
from ratchet.base.devices.gpu_use import gpu_use
from ratchet.base.devices.probe import Device, level_bytes, short_hash, software_fingerprint
from ratchet.base.errors import DeviceError
from ratchet.base.files import cache_folder, write_whole
from ratchet.base.serialise import encoded

LOG = logging.getLogger(__name__)

FORMAT = 3  # Files of 2 do not say how busy the cores were: they are not read
TIMES, APART_S = 3, 300.0
"""Quiet or not, a cached file holds the best of this many measurements, and the least time from one
to the next."""
QUIET: Final = 0.1
"""Share of the cores' time that others may take while a measurement still counts as quiet."""
_measured_here: dict[Path, tuple[float, bool]] = {}
"""Files of the ceilings that this process measured: the latest moment, and whether it was quiet."""

Positive = Annotated[int, Meta(gt=0)]
Rate = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Rates = Annotated[Mapping[str, Rate], Meta(min_length=1)]
RATES: Final = ("gemm_flops_per_s", "loop_flops_per_s", "copy_bytes_per_s", "triad_bytes_per_s")


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured rates of one device, for one software version and one thread count."""

    format: int = FORMAT
    device: str = ""  # The device's fingerprint
    software: str = ""
    threads: Positive = 1  # Threads that torch used
    gemm_flops_per_s: Rates  # By dtype: fp32, bf16 (and fp16 on a GPU)
    loop_flops_per_s: Mapping[str, Rate] = {}
    """Multiply-adds in registers, by dtype; none on a GPU, and without a C++ compiler."""
    copy_bytes_per_s: Rates  # By level (l2, l3, dram); bytes read plus bytes written
    triad_bytes_per_s: Rates  # a = b + s * c: two reads and one write
    level_bytes: Mapping[str, Positive] = {}
    """Total size of each cache level, for the threads that measured."""
    times: Positive = 1  # Measurements of which these rates are the best
    busy: Annotated[float, Meta(ge=0, le=1)] | None = None
    """The share of the cores' time, or of the GPU's, that others took in the quietest of them; None
    if the system does not tell."""

    @property
    def flops_per_s(self) -> dict[str, float]:
        """The best rate of each dtype, of a library's product or of the loop.

        A narrower type is not slower than fp32, which can hold its values.
        """
        of = (self.gemm_flops_per_s, self.loop_flops_per_s)
        return {
            name: max(one[kind] for one in of for kind in {name, "fp32"} if kind in one)
            for name in of[0]
        }

    @property
    def provisional(self) -> str:
        """Why these rates may be too low, as a clause; empty once one measurement was quiet."""
        if self.busy is None or self.busy <= QUIET:
            return ""
        return f"other work took {self.busy:.0%} of this machine while its ceilings were measured"

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

    def bound_s(self, flops: float, size_bytes: float) -> float:
        """Return the least seconds for these operations, of the fastest dtype, and these bytes."""
        memory_s = size_bytes / self.bandwidth_bytes_per_s(size_bytes)
        return max(flops / max(self.flops_per_s.values()), memory_s)

    def best_with(self, other: Ceilings) -> Ceilings:
        """Return the better rate of two measurements, each by itself."""
        rates = {
            field: {
                name: max(of[name] for of in (mine, others) if name in of)
                for name in {**mine, **others}
            }
            for field in RATES
            for mine, others in [(getattr(self, field), getattr(other, field))]
        }
        return msgspec.structs.replace(self, **rates)

    def _best(self, level: str) -> float:
        rates = (self.copy_bytes_per_s, self.triad_bytes_per_s)
        return max((rate[level] for rate in rates if level in rate), default=0.0)


Again = Literal["", "due", "now", "refuted"]


def measure(device: Device, *, again: Again = "", folder: Path | None = None) -> Ceilings:
    """Return a device's ceilings: from the cache, or measured in some 5 s.

    `again` measures once more, now or where it is due, and keeps the best of each rate. It is due
    until TIMES measurements were made and one of them was quiet; at least APART_S apart, and once a
    process. Those that were `refuted` do not count as measurements, nor as quiet. What was measured
    with fewer threads counts too. A damaged or foreign file is measured anew; a folder that cannot
    be written is logged. DeviceError if memory runs out.
    """
    path = _path(device, folder)
    known = _read(path, device)
    if known is not None and (again == "" or (again == "due" and not _is_due(path, known))):
        return _with_fewer_threads(path, known, device)
    found = _measured(device)
    _measured_here[path] = (time.monotonic(), not found.provisional)
    newest = _read(path, device) if known is not None else None  # another process may have written
    ceilings = found if newest is None else _both(newest, found, refuted=again == "refuted")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encoded(ceilings, indent=1))
    except OSError as error:
        LOG.warning("measured ceilings are not kept: %s", error)
    return _with_fewer_threads(path, ceilings, device)


def unrefuted(
    device: Device,
    known: Ceilings,
    is_beaten: Callable[[Ceilings], bool],
    *,
    folder: Path | None = None,
) -> Ceilings:
    """Return ceilings that no measurement refutes if it can be helped, else the best known ones.

    `is_beaten` says whether something was measured here that is faster than given ceilings allow.
    Then they are measured anew at once, unless this process did so in a quiet moment of the last
    APART_S, or memory runs out.
    """
    if not is_beaten(known):
        return known
    newest = known
    try:
        newest = measure(device, folder=folder)  # another process may have bettered them
        measured_s, quiet = _measured_here.get(_path(device, folder), (-math.inf, False))
        if not is_beaten(newest) or (quiet and time.monotonic() - measured_s < APART_S):
            return newest
        return measure(device, again="refuted", folder=folder)
    except DeviceError as error:
        LOG.warning("the ceilings are too low and were not measured anew: %s", error)
        return newest


def _measured(device: Device) -> Ceilings:
    # torch takes seconds to import; reading a cached file should not.
    from ratchet.base.devices import rates

    use = OthersUse() if device.kind == "cpu" else None
    before = None if use is not None else _gpu_share(device.index)
    found = Ceilings(
        device=device.fingerprint,
        software=software_fingerprint(),
        threads=_threads(device),
        gemm_flops_per_s=rates.gemm(device),
        loop_flops_per_s=rates.multiply_add(device),
        copy_bytes_per_s=rates.copy(device),
        triad_bytes_per_s=rates.triad(device),
        level_bytes=level_bytes(device),
        busy=before if use is None else use.share(),
    )
    if use is None or found.threads == 1 or not found.provisional:
        return found
    with rates.on_one_thread():  # two threads wait for each other where cores are busy
        alone = {"copy_bytes_per_s": rates.copy(device), "triad_bytes_per_s": rates.triad(device)}
    return found.best_with(msgspec.structs.replace(found, **alone))


def _gpu_share(index: int) -> float | None:
    """Return the share of the last moments in which others had a GPU at work; None if unknown."""
    use = gpu_use(index)
    return 0.0 if use.processes == 0 else use.busy


def _threads(device: Device) -> int:
    import torch

    return torch.get_num_threads() if device.kind == "cpu" else 1


def _path(device: Device, folder: Path | None) -> Path:
    """Return the file of a device's ceilings; its name ends with the number of threads."""
    software = software_fingerprint()
    key = short_hash({"format": FORMAT, "device": device.fingerprint, "software": software})
    return (folder or cache_folder("ceilings")) / f"{key}-{_threads(device)}.json"


def _both(known: Ceilings, found: Ceilings, *, refuted: bool) -> Ceilings:
    """Return what measurements of as many threads tell; those before may have been refuted."""
    if refuted:
        return found.best_with(known)
    quietest = min((one.busy for one in (known, found) if one.busy is not None), default=None)
    times = known.times + found.times
    return msgspec.structs.replace(known.best_with(found), times=times, busy=quietest)


def _with_fewer_threads(path: Path, known: Ceilings, device: Device) -> Ceilings:
    """Return the rates with those of fewer threads where they are better."""
    head, _, own = path.stem.rpartition("-")
    for other in path.parent.glob(f"{head}-*.json"):
        threads = other.stem.rpartition("-")[2]
        if threads.isdigit() and int(threads) < int(own):
            found = _read(other, device)
            known = known if found is None else known.best_with(found)
    return known


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
    if path in _measured_here or (known.times >= TIMES and not known.provisional):
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
    rates = ceilings.flops_per_s
    if dtype not in rates:
        known = ", ".join(rates)
        raise DeviceError(f"no ceiling was measured for {dtype!r}: use one of {known}")
    return Roofline(
        flops_per_s=rates[dtype],
        bytes_per_s=ceilings.bandwidth_bytes_per_s(working_set_bytes),
    )


def above(ceilings: Ceilings, reached: float, dtype: str) -> bool:
    """Return whether a rate, in FLOP/s, is above its ceiling; False without one for the dtype."""
    return reached > ceilings.flops_per_s.get(dtype, math.inf)


def mfu(flops: float, time_s: float, ceilings: Ceilings | None, *, dtype: str) -> float:
    """Return the share of the measured ceiling that `flops` in `time_s` reached.

    `dtype` names the ceiling: the arithmetic that runs. A missing ceiling is logged and gives 0.
    """
    if not time_s > 0:
        raise DeviceError(f"MFU of a step of {time_s} s: the time must be above 0")
    rate = 0.0 if ceilings is None else ceilings.flops_per_s.get(dtype, 0.0)
    if rate <= 0:
        LOG.warning("no measured ceiling for %s: MFU is reported as 0", dtype)
        return 0.0
    return flops / time_s / rate
