"""A trace as columns: one row per event, strings as numbers into a table, times in nanoseconds."""

from __future__ import annotations

import contextlib
import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ratchet.base import Json, drawn_by

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Bool = NDArray[np.bool_]
Platform = Literal["cuda", "rocm", "xpu", "mtia", "tpu", "cpu"]
PLATFORMS: dict[Platform, str] = {
    "cuda": "a CUDA device",
    "rocm": "a ROCm device",
    "xpu": "an XPU device",
    "mtia": "an MTIA device",
    "tpu": "a TPU",
    "cpu": "a CPU",
}
EPOCH = "baseTimeNanoseconds"  # Kineto's name for the time from which its stamps count


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
    spelling: kind
    for kind, spellings in {
        Kind.OP: "cpu_op operator",
        Kind.RUNTIME: "runtime driver cuda_runtime cuda_driver hip_runtime hip_api hip_runtime_api "
        "hsa_api xpu_runtime xpu_driver mtia_runtime privateuse1_runtime privateuse1_driver",
        Kind.KERNEL: "kernel mtia_ccp_events",
        Kind.COPY: "gpu_memcpy memcpy",
        Kind.FILL: "gpu_memset memset",
        Kind.ANNOTATION: "user_annotation",
        Kind.DEVICE_ANNOTATION: "gpu_user_annotation",
        Kind.PYTHON: "python_function python",
        Kind.OVERHEAD: "overhead",
        Kind.SYNC: "cuda_sync hip_sync",
    }.items()
    for spelling in spellings.split()
}
"""Category spellings of Kineto's versions, in lower case.

Kineto's own list (libkineto/include/ActivityType.h) treats each accelerator's categories as aliases
of runtime, driver and kernel.
"""
STEP = re.compile(r"^ProfilerStep\s*#")
"""Name of the profiler's mark around a step."""
DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.FILL)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceProperties:
    """Facts about one device from the trace."""

    name: str
    compute_units: int  # 0 if unknown


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
class NamedLaunches:
    """Runtime calls that name the kernel they launch, as HIP's do; `row` points into the events."""

    row: Int32
    name: Int32
    grid: Int32  # As written: blocks in three dimensions


def _no_launches() -> NamedLaunches:
    nothing = np.empty(0, dtype=np.int32)
    return NamedLaunches(row=nothing, name=nothing, grid=nothing)


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
    lanes: list[tuple[str, str]]  # (process, thread) as written, by lane number
    kind: NDArray[np.uint8]
    text: Int32  # The event's name, a number into `strings`
    start: Int64
    duration: Int64
    lane: Int32
    correlation: Int64
    external: Int64
    stream: Int32
    device: Int32
    size: Int64  # Bytes that a copy or fill moved, -1 if the trace does not say
    ops: Ops
    collectives: Collectives
    memory: MemoryEvents
    launches: NamedLaunches = field(default_factory=_no_launches)
    devices: tuple[DeviceProperties, ...] = ()
    platform: Platform = "cpu"
    rank: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()  # Defects of the file, and how the reader handled each

    _repr_html_ = drawn_by("ratchet.trace.show:whole_report")

    def __len__(self) -> int:
        return self.start.size

    @property
    def end(self) -> Int64:
        return self.start + self.duration

    def rows(self, *kinds: Kind) -> NDArray[np.intp]:
        return np.flatnonzero(np.isin(self.kind, kinds))

    def string(self, row: SupportsIndex) -> str:
        return self.strings[int(self.text[row])]

    def thread(self, lane: int) -> str:
        """Return the name of a lane: its thread, or its process if that is all that is known."""
        process, thread = self.lanes[lane]
        return f"thread {thread}" if thread else f"process {process}"

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


# Building blocks of a reader: numbers for keys that repeat, and columns that grow.

_FAR = 2**62
_FIRST_ROWS = 1 << 10


class Numbers(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class Written(dict[bytes, int]):
    """Numbers JSON values, whatever their layout."""

    def __init__(self, strings: Numbers) -> None:
        self.strings = strings

    def __missing__(self, raw: bytes) -> int:
        text = raw.decode("utf-8", "replace")
        with contextlib.suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text))
        number = self[raw] = self.strings[text]
        return number


class Kinds(dict[Any, int]):
    """Maps categories as written to a Kind; unknown ones are OTHER."""

    def __missing__(self, key: object) -> int:
        kind = self[key] = int(CATEGORIES.get(str(key).lower(), Kind.OTHER))
        return kind


class Parts:
    """One column that grows.

    Its memory is one block, which goes back to the system when the column is done. Many small
    arrays would leave as much again behind, in pieces too small to reuse.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._let_go()

    def _let_go(self) -> None:
        self._held: NDArray[Any] = np.empty(0, dtype=self.dtype)
        self._count = 0

    def add(self, values: NDArray[Any]) -> None:
        end = self._count + values.size
        if end > self._held.size:
            # Memory that is allocated but not written to takes no space.
            grown = np.empty(max(end, 2 * self._held.size, _FIRST_ROWS), dtype=self.dtype)
            grown[: self._count] = self._held[: self._count]
            self._held = grown
        self._held[self._count : end] = values
        self._count = end

    @property
    def held(self) -> NDArray[Any]:
        """The column so far; do not change it."""
        return self._held[: self._count]

    def join(self, order: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the whole column, in `order` if given, and drop it here."""
        whole = self._held[: self._count]
        self._let_go()
        return whole if order is None else whole[order]


def numbered(table: dict[Any, int], keys: Sequence[object]) -> Sequence[int]:
    """Return the number of each key; TypeError for a key that cannot be hashed (a list)."""
    if len(keys) < 2:
        return [table[key] for key in keys]
    numbers: Sequence[int] = itemgetter(*keys)(table)
    return numbers


def integers(values: Sequence[Json]) -> Int64:
    """Convert whatever a writer used as a number to int64; -1 if it is not a number."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Json) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -_FAR < number < _FAR else -1
