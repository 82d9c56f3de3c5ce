"""Trace files to columns: Chrome and Kineto JSON, rocprofv3's JSON, CSV, pftrace and rocpd, XPlane.

`read` picks the reader by the file's first bytes. A JSON file becomes a stream of typed events
(`stream`), which become columns (`gather`); a large one is shared by several processes (`shares`).
Defects of the file are in `Trace.faults`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ratchet.base.errors import TraceError
from ratchet.base.files import why_not_file
from ratchet.trace.read.columns import DeviceProperties, Kind, Platform, Trace
from ratchet.trace.read.perfetto import read_perfetto
from ratchet.trace.read.rocprof import (
    is_database,
    is_rocprof,
    is_table,
    not_read,
    read_database,
    read_rocprof,
    read_tables,
)
from ratchet.trace.read.shares import gather, gather_shared
from ratchet.trace.read.stream import beginning
from ratchet.trace.read.wire import fields, first_messages, string
from ratchet.trace.read.xplane import PLANE, read_xplane

MERGED = "merged"
"""The key under which a merged trace names its ranks."""
_OF_RANKS = "ranks stand merged here and count as one: report the folder of their traces"
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_HIP = re.compile(r"^(hip|hsa_|__hip)")
_CUDA = re.compile(r"^(cuda|cu[A-Z])")
_OF_CATEGORY: dict[str, Platform] = {"mtia_": "mtia", "xpu_": "xpu"}
_CAUSES: dict[Platform, str] = {
    "rocm": "torch built without roctracer or rocprofiler-sdk, rocprof or another profiler "
    "attached to the process, /dev/kfd not readable, or ROCPROFILER/HSA_TOOLS_LIB set",
    "cuda": "ProfilerActivity.CUDA left out, CUPTI's range profiler on (it takes counters, not "
    "times), another CUPTI client (nsys, ncu, dcgm) attached, or no permission for performance "
    "counters",
    "xpu": "ProfilerActivity.XPU left out",
    "mtia": "ProfilerActivity.MTIA left out",
    "tpu": "the program ran on another device",
}
"""Reasons why a run on an accelerator can leave no device work in its trace."""
_OF_PACKETS = frozenset({8, 10, 11, 12, 13, 33, 36, 41, 42, 58, 59, 60, 79, 87})
"""Fields of a Perfetto packet, with which no XPlane begins."""
_OF_XLA = re.compile(rb'"/(?:host:CPU|device:[A-Z]+:\d+)')
"""Names of XLA's planes, which its copy for Chrome has as names of processes."""
_FOREIGN = {
    ".nsys-rep": "a report of Nsight Systems",
    ".qdrep": "a report of Nsight Systems",
    ".ncu-rep": "a report of Nsight Compute",
    ".otf2": "an OTF2 archive",
    ".csv": "a table of another form than rocprofv3's traces",
    ".pickle": "a memory snapshot of torch",
    ".pkl": "a memory snapshot of torch",
    ".pt": "a file of torch.save",
}
"""Profiles of other formats, by the end of their names."""


def read(path: str | Path) -> Trace:
    """Read one rank's trace: Kineto or Chrome JSON, rocprofv3's JSON, pftrace or rocpd, or XPlane.

    All but rocpd may be gzip. TraceError if the file is missing or holds no trace at all. A damaged
    or truncated file is read as far as possible, and `faults` says what could not be read.
    """
    path = Path(path)
    if why := why_not_file(path):  # opening a FIFO could block for ever
        why = why if why.startswith("cannot be read") else f"cannot be read, since it {why}"
        raise TraceError(f"{path} {why}: give a trace's file")
    if is_database(path):
        return read_database(path)
    if is_rocprof(path):
        return read_rocprof(path)
    if is_table(path):
        return read_tables(path)
    reader = {"xplane": read_xplane, "perfetto": read_perfetto}.get(protobuf_sort(path))
    if reader is not None:
        return without_device_work(reader(path))
    if foreign := _FOREIGN.get(path.suffix.lower()):
        raise TraceError(not_read(path, foreign))
    return read_chrome(path)


def protobuf_sort(path: Path) -> Literal["xplane", "perfetto", ""]:
    """Return the sort of a protobuf trace by its first messages, or else by its name."""
    begin = beginning(path, 1 << 16)
    for text in first_messages(begin):
        for key, value in fields(text, lambda what: None):
            if key == 2 and PLANE.match(string(value)):
                return "xplane"
            if key in _OF_PACKETS:
                return "perfetto"
    if path.name.endswith((".xplane.pb", ".xplane.pb.gz")) and begin:
        return "xplane"
    return "perfetto" if path.suffix in (".pftrace", ".perfetto-trace") and begin else ""


def read_chrome(path: Path) -> Trace:
    gathered = gather_shared(path) or gather(path)
    gatherer = gathered.gatherer
    if gatherer.count == 0:
        raise TraceError(
            f"{path.name} has no event with a duration: record it again with the profiler running"
        )
    about = _around(gathered.header) | _around(gathered.footer)
    if not any(gatherer.kinds.values()):
        begin = beginning(path, 1 << 16)
        if b'"BeginNs"' in begin:
            raise TraceError(
                f"{path.name} is a Chrome trace of the first rocprof, which does not say which "
                "events are kernels: record it with rocprofv3"
            )
        if _OF_XLA.search(begin):
            raise TraceError(
                f"{path.name} is an XLA profile's copy for Chrome, which does not say which events "
                "are kernels: give the .xplane.pb beside it"
            )
        raise TraceError(
            f"{path.name} is a Chrome trace without an operator, a kernel or a mark: give one that "
            "torch's profiler wrote"
        )
    columns = gatherer.finish()
    devices = _devices(about.get("deviceProperties"))
    platform = _platform(about, gatherer.kinds, columns["strings"], bool(devices))
    trace = Trace(
        name=path.name,
        devices=devices,
        platform=platform,
        rank=_rank(about.get("distributedInfo"), path),
        metadata={k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()},
        **columns,
    )
    if MERGED in about:
        trace = replace(trace, faults=(*trace.faults, _OF_RANKS))
    return without_device_work(trace)


def without_device_work(trace: Trace) -> Trace:
    """Return the trace, with a fault that names likely causes if a GPU run has no device work."""
    launches = trace.rows(Kind.RUNTIME).size
    if trace.on_device or trace.platform == "cpu" or not (launches or trace.devices):
        return trace
    what = (
        f"no GPU events on a {trace.platform} run with {launches:,} runtime calls; "
        f"likely causes: {_CAUSES[trace.platform]}"
    )
    return replace(trace, faults=(*trace.faults, what))


def _around(text: bytes) -> dict[str, object]:
    """Read the keys of the object around the events, as far as possible."""
    inner = text.strip().lstrip(b"{],").rstrip().rstrip(b",}]").strip()
    for closing in (b"}", b"}}", b"]}", b"}]}"):
        try:
            value = json.loads(b"{" + inner + closing)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return {}


def _devices(value: object) -> tuple[DeviceProperties, ...]:
    given = value if isinstance(value, list) else []
    devices = [entry for entry in given if isinstance(entry, dict)]
    return tuple(
        DeviceProperties(
            name=str(device.get("name", "")),
            compute_units=units if isinstance(units := device.get("numSms"), int) else 0,
        )
        for device in devices
    )


def _platform(
    about: dict[str, object], categories: Iterable[object], strings: list[str], devices: bool
) -> Platform:
    place = about.get("distributedInfo")
    backend = str(place.get("backend", "")) if isinstance(place, dict) else ""
    for written in (backend.replace(":", "_"), *map(str, categories)):
        for prefix, platform in _OF_CATEGORY.items():
            if written.lower().startswith(prefix):
                return platform
    if any(key.startswith(("hip_", "roctracer", "rocprof")) for key in about):
        return "rocm"
    if any(key.startswith(("cuda_", "cupti")) for key in about):
        return "cuda"
    if any(_HIP.match(string) for string in strings):
        return "rocm"
    if devices or any(_CUDA.match(string) for string in strings):
        return "cuda"
    return "cpu"


def _rank(info: object, path: Path) -> int | None:
    """Return the rank from the trace, or from the file's name."""
    if isinstance(info, dict) and isinstance(rank := info.get("rank"), int):
        return rank
    named = _RANK_IN_NAME.search(path.name)
    return int(named[1]) if named else None


__all__ = ["read"]
