"""XPlane protobuf to columns: the profiles of JAX and XLA, `*.xplane.pb`.

Field numbers: openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto. Stats, lines and
planes have the names that XLA's profiler gives them (tsl/profiler/utils/xplane_schema.cc).
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from ratchet.base.devices import catalogue
from ratchet.base.errors import TraceError
from ratchet.trace.read import wire
from ratchet.trace.read.columns import DEVICE_KINDS, DeviceProperties, Kind, Platform, Trace
from ratchet.trace.read.gather import Gatherer, Row
from ratchet.trace.read.rocprof import kernel_kind
from ratchet.trace.read.stream import unpack
from ratchet.trace.read.wire import Note, fields, message, number, signed, string

PLANE = re.compile(r"^/(host|device):|^Task Environment$")
_DEVICE = re.compile(r"^/device:(?P<sort>GPU|TPU)[^:]*:(?P<index>\d{1,9})")
_STREAM = re.compile(r"^Stream #(?P<stream>\d{1,18})")
_RUNTIME = re.compile(r"^(hip|__hip|hsa_|cuda[A-Z]|cu[A-Z])")
_COPY = re.compile(r"^(Memcpy|MemcpyH2D|MemcpyD2H|MemcpyD2D|MemcpyP2P)")
_SIZE = re.compile(r"\bsize:(\d{1,18})")
_TPU_WORK: Final = ("XLA Ops", "Async XLA Ops")
"""The lines of a TPU that hold its work; others show the same again by module, step and scope."""
_MOST_TEXT = 1 << 20  # Bytes of a text that was packed
_GFX = {(9, 4): "gfx942", (9, 5): "gfx950", (9, 0): "gfx90a"}
_PS = 1000
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}".encode()
Stat = int | float | str


@dataclass(slots=True)
class _Plane:
    name: str = ""
    lines: list[bytes] = field(default_factory=list)
    events: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """Name and stats of each sort of event."""
    stats: dict[int, str] = field(default_factory=dict)
    own: list[bytes] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class _Row(Row):
    op: str = ""  # The HLO op that it is for


def read_xplane(path: Path) -> Trace:
    """Read a profile; TraceError if it holds no event with a duration.

    Kernels and copies are the events on a GPU's streams, and a TPU's ops. A runtime call is wrapped
    in an op of the name of its HLO, which XLA records with the call or with its kernel. A mark with
    a step's number is a step.
    """
    gatherer = Gatherer()
    text = b"".join(unpack(path, gatherer.note))
    rows: list[_Row] = []
    devices: dict[int, DeviceProperties] = {}
    vendors: Counter[str] = Counter()
    for key, value in fields(text, gatherer.note, whole=False):
        if key == 1:
            plane = _plane(value, gatherer.note)
            rows += _rows(plane, gatherer.note)
            _add_device(plane, devices, vendors, gatherer.note)
        elif key in (2, 3):
            gatherer.note(f"the profiler said: {string(value)[:200]}")
    if not any(row.end > row.start for row in rows):
        if gatherer.faults:
            why = "was saved as text, which replaces bytes" if _REPLACED in text else "is damaged"
            raise TraceError(f"{path.name} {why}: copy it again as a binary file")
        raise TraceError(
            f"{path.name} is an XPlane profile without an event that has a duration: record it "
            "again with the program running"
        )
    _add(gatherer, rows)
    columns = gatherer.finish()
    names = [devices.get(index) for index in range(max(devices, default=-1) + 1)]
    on_device = any(row.kind in DEVICE_KINDS for row in rows)
    return Trace(
        name=path.name,
        platform=_platform(vendors, rows) if on_device else "cpu",
        devices=tuple(one or DeviceProperties(name="", compute_units=0) for one in names),
        **columns,
    )


def _plane(value: int | bytes, note: Note) -> _Plane:
    plane = _Plane()
    for key, held in message(value, note):
        if key == 2:
            plane.name = string(held)
        elif key == 3 and isinstance(held, bytes):
            plane.lines.append(held)
        elif key in (4, 5):
            entry = dict(message(held, note))
            about = dict(message(entry.get(2, b""), note))
            identity = number(entry.get(1, about.get(1, 0)))
            if key == 5:
                plane.stats[identity] = string(about.get(2, b""))
            else:
                stats = b"" if 5 not in about else entry.get(2, b"")
                name = string(about.get(2, b"")) or string(about.get(4, b""))
                plane.events[identity] = name, stats if isinstance(stats, bytes) else b""
        elif key == 6 and isinstance(held, bytes):
            plane.own.append(held)
    return plane


def _stat(text: int | bytes, names: dict[int, str], note: Note) -> tuple[str, Stat]:
    found = dict(message(text, note))
    name = names.get(number(found.get(1, 0)), "")
    for key, value in found.items():
        if key == 2 and isinstance(value, int):
            return name, wire.double(value)
        if key in (3, 4):
            return name, signed(number(value))
        if key in (5, 6):
            return name, string(value)
        if key == 7:
            return name, names.get(number(value), "")
        if key == 8 and isinstance(value, bytes):
            try:
                packed = zlib.decompressobj(wbits=31).decompress(value, _MOST_TEXT)
            except zlib.error:
                continue
            return name, packed.decode("utf-8", "replace")
    return name, ""


def _rows(plane: _Plane, note: Note) -> list[_Row]:
    device = _DEVICE.match(plane.name)
    if device is None and not plane.name.startswith("/host:CPU"):
        return []
    shared = {
        identity: dict(_stat(value, plane.stats, note) for key, value in fields(stats, note)
                       if key == 5)
        for identity, (_, stats) in plane.events.items() if stats
    }  # fmt: skip
    found: list[_Row] = []
    for text in plane.lines:
        line = list(fields(text, note))
        about = {key: value for key, value in line if key != 4}
        name = string(about.get(2, b"")) or string(about.get(11, b""))
        stream = _STREAM.match(name)
        if device is not None and stream is None and name not in _TPU_WORK:
            continue
        zero = signed(number(about.get(3, 0)))
        for key, value in line:
            if key != 4:
                continue
            event = list(message(value, note))
            once = {key: signed(number(held)) for key, held in event if key != 4}
            identity = once.get(1, 0)
            stats = dict(shared.get(identity, {}))
            stats |= dict(_stat(held, plane.stats, note) for key, held in event if key == 4)
            if 5 in once and 2 not in once:
                continue  # Only counted
            begin = once.get(2, 0)
            row = _Row(
                name=plane.events.get(identity, ("", b""))[0] or f"event {identity}",
                start=zero + begin // _PS,
                end=zero + (begin + max(once.get(3, 0), 0)) // _PS,
                lane=(plane.name, name or str(about.get(1, ""))),
            )
            _tell(row, stats, device, stream)
            found.append(row)
    return found


def _tell(
    row: _Row,
    stats: dict[str, Stat],
    device: re.Match[str] | None,
    stream: re.Match[str] | None,
) -> None:
    """Tell what an event is by its plane, its line, its name and its stats."""
    correlation = stats.get("correlation_id", -1)
    row.correlation = int(correlation) if isinstance(correlation, int) else -1
    row.op = str(stats.get("hlo_op", ""))
    if device is not None:
        row.device, row.stream = int(device["index"]) % 2**31, 0
        if stream is not None:
            row.stream = int(stream["stream"]) % 2**31
        row.name = row.name.removesuffix(".kd")
        row.kind = kernel_kind(row.name)
        details = str(stats.get("memcpy_details", stats.get("memset_details", "")))
        if _COPY.match(row.name) or "memcpy_details" in stats:
            row.kind = Kind.COPY
        elif row.name.startswith("Memset") or "memset_details" in stats:
            row.kind = Kind.FILL
        if size := _SIZE.search(details):
            row.size = int(size[1])
    elif _RUNTIME.match(row.name):
        row.kind = Kind.RUNTIME
    elif row.name.startswith("$"):
        row.kind, row.name = Kind.PYTHON, row.name[1:]
    elif row.op:
        row.kind = Kind.OP
    elif isinstance(step := stats.get("step_num"), int):
        row.name = f"ProfilerStep#{step}"


def _add(gatherer: Gatherer, rows: list[_Row]) -> None:
    """Add the rows, and an op around each runtime call whose HLO op is known."""
    by_correlation = {
        row.correlation: row.op
        for row in rows
        if row.kind in DEVICE_KINDS and row.op and row.correlation > 0
    }
    ops = []
    for row in rows:
        op = row.op or by_correlation.get(row.correlation, "")
        if row.kind == Kind.RUNTIME and op and row.correlation > 0:
            ops.append(replace(row, name=op, kind=Kind.OP, correlation=-1))
    first = gatherer.count
    gatherer.add_each([*ops, *rows])
    kinds = np.array([row.kind for row in (*ops, *rows)])
    gatherer.add_ops(first + np.flatnonzero(kinds == Kind.OP))


def _platform(vendors: Counter[str], rows: list[_Row]) -> Platform:
    if vendors["AMD"] or any(row.name.startswith(("hip", "__amd_rocclr")) for row in rows):
        return "rocm"
    return "tpu" if any(row.lane[0].startswith("/device:TPU") for row in rows) else "cuda"


def _add_device(
    plane: _Plane, devices: dict[int, DeviceProperties], vendors: Counter[str], note: Note
) -> None:
    found = _DEVICE.match(plane.name)
    if found is None or int(found["index"]) > 4096:
        return
    stats = dict(_stat(text, plane.stats, note) for text in plane.own)
    vendor = str(stats.get("device_vendor", ""))
    vendors[vendor] += 1
    name = str(stats.get("device_type_string", "")) or _model(stats) or vendor
    units = stats.get("core_count", 0)
    devices[int(found["index"])] = DeviceProperties(
        name=name, compute_units=units if isinstance(units, int) else 0
    )


def _model(stats: dict[str, Stat]) -> str:
    """Return the one device of the catalogue with these units, this memory and this target."""
    major, minor = stats.get("compute_cap_major"), stats.get("compute_cap_minor")
    if not (isinstance(major, int) and isinstance(minor, int)):
        return ""
    amd = stats.get("device_vendor") == "AMD"
    target = _GFX.get((major, minor), "") if amd else f"sm_{major}{minor}"
    memory = stats.get("memory_size", 0)
    fitting = []
    for one in catalogue.load().of_target(target):
        size, seen = one.memory_bytes(), memory if isinstance(memory, int) else 0
        near = size is not None and abs(seen / size - 1) < 0.1
        if near and one.units == stats.get("core_count"):
            fitting.append(one.name)
    return fitting[0] if len(fitting) == 1 else ""
