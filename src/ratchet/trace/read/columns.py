"""A trace as columns: one row per event, strings as numbers into a table, times in nanoseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Bool = NDArray[np.bool_]
Platform = Literal["cuda", "rocm", "xpu", "mtia", "cpu"]
PLATFORMS: dict[Platform, str] = {
    "cuda": "a CUDA device",
    "rocm": "a ROCm device",
    "xpu": "an XPU device",
    "mtia": "an MTIA device",
    "cpu": "a CPU",
}
EPOCH = "baseTimeNanoseconds"
"""Kineto's name for the time from which its stamps count."""


class Kind(IntEnum):
    """The kind of an event, whatever its profiler's version calls it."""

    OTHER = 0
    OP = 1
    RUNTIME = 2
    KERNEL = 3
    COPY = 4
    FILL = 5
    ANNOTATION = 6
    DEVICE_ANNOTATION = 7
    PYTHON = 8
    OVERHEAD = 9
    SYNC = 10


CATEGORIES = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "hip_api": Kind.RUNTIME,
    "hip_runtime_api": Kind.RUNTIME,
    "hsa_api": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "mtia_ccp_events": Kind.KERNEL,
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.FILL,
    "memset": Kind.FILL,
    "user_annotation": Kind.ANNOTATION,
    "gpu_user_annotation": Kind.DEVICE_ANNOTATION,
    "python_function": Kind.PYTHON,
    "python": Kind.PYTHON,
    "overhead": Kind.OVERHEAD,
    "cuda_sync": Kind.SYNC,
    "hip_sync": Kind.SYNC,
}
"""Category spellings of Kineto's versions, in lower case.

Kineto's own list (libkineto/include/ActivityType.h) treats each accelerator's categories as aliases
of runtime, driver and kernel.
"""
STEP = re.compile(r"^ProfilerStep\s*#")
"""Name of the profiler's mark around a step."""
DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.FILL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A defect of the file, and how the reader handled it."""

    what: str
    count: int = 1

    def __str__(self) -> str:
        return self.what if self.count == 1 else f"{self.what} ({self.count:,} times)"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceProperties:
    """Facts about one device from the trace."""

    index: int
    name: str
    memory_bytes: int
    compute_units: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ops:
    """Columns that only CPU ops have; `row` points into the events."""

    row: Int32
    dims: Int32
    types: Int32
    concrete: Int32
    sequence: Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class Collectives:
    """Columns of communication kernels and ops; `row` points into the events."""

    row: Int32
    name: Int32
    dtype: Int32
    group: Int32
    elements_in: Int64
    elements_out: Int64
    group_size: Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEvents:
    """Allocations (positive sizes) and frees (negative), in order of time."""

    time: Int64
    address: Int64
    size: Int64
    allocated: Int64
    reserved: Int64
    on_device: Bool
    device: Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One rank's events, sorted by start, the longer one first."""

    name: str
    strings: list[str]
    lanes: list[tuple[str, str]]
    """(process, thread) as written, by lane number."""
    kind: NDArray[np.uint8]
    text: Int32
    """The event's name, a number into `strings`."""
    start: Int64
    duration: Int64
    lane: Int32
    correlation: Int64
    external: Int64
    stream: Int32
    device: Int32
    size: Int64
    """Bytes that a copy or fill moved, -1 if the trace does not say."""
    ops: Ops
    collectives: Collectives
    memory: MemoryEvents
    devices: tuple[DeviceProperties, ...] = ()
    platform: Platform = "cpu"
    rank: int | None = None
    world_size: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def __len__(self) -> int:
        return self.start.size

    @property
    def end(self) -> Int64:
        return self.start + self.duration

    def rows(self, *kinds: Kind) -> NDArray[np.intp]:
        """Return the rows of these kinds, in order of time."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def string(self, row: SupportsIndex) -> str:
        """Return the name of the event in this row."""
        return self.strings[int(self.text[row])]

    def named(self, pattern: re.Pattern[str]) -> Bool:
        """Return for each string whether the pattern matches somewhere in it."""
        search = pattern.search
        return np.fromiter((search(s) is not None for s in self.strings), bool, len(self.strings))

    @property
    def device_name(self) -> str:
        """Name of the first device that has one; empty if none has."""
        return next((device.name for device in self.devices if device.name), "")

    @property
    def epoch(self) -> int:
        """The time at which the trace's clock read 0, in ns; 0 if unknown."""
        said = self.metadata.get(EPOCH, "")
        return int(said) if said.isdigit() else 0

    @property
    def on_device(self) -> bool:
        """True if any kernel, copy or fill was recorded."""
        return bool(np.isin(self.kind, DEVICE_KINDS).any())
