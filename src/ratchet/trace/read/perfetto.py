"""Perfetto's protobuf to columns: `.pftrace` of rocprofv3, and track events of other producers.

Field numbers: google/perfetto, protos/perfetto/trace: trace_packet.proto, clock_snapshot.proto,
interned_data/interned_data.proto, track_event/*.proto. Tracks, categories and arguments have the
names of rocprofiler-sdk, source/lib/output/generatePerfetto.cpp.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ratchet.base.errors import TraceError
from ratchet.trace.read.columns import DEVICE_KINDS, Kind, Platform, Trace
from ratchet.trace.read.gather import Gatherer, Row
from ratchet.trace.read.rocprof import kernel_kind
from ratchet.trace.read.stream import unpack
from ratchet.trace.read.wire import (
    BYTES,
    CUT_OFF,
    DAMAGED,
    Note,
    fields,
    message,
    number,
    signed,
    string,
    varint,
)

_BEGIN, _END = 1, 2  # TrackEvent.Type
_CLEARED: Final = 1  # TracePacket.SequenceFlags
_PACKET_KEY: Final = 1 << 3 | BYTES  # Trace.packet
_MOST_PACKED: Final = 1 << 26  # Bytes of packets that were packed together
_PIECE: Final = 50_000
_WORK = re.compile(
    r"^(?P<sort>COMPUTE|COPY to) .*?\[(?P<agent>\d{1,9})\](?:.*\[(?P<queue>\d{1,9})\])?"
)
_THREAD = re.compile(r"^THREAD \d+ \((\d+)\)")
_RUNTIME: Final = frozenset({"hip_api", "hip_runtime_api", "hip_compiler_api", "hsa_api"})


@dataclass(slots=True)
class _Sequence:
    """The state of one writer: names by number, clocks, defaults."""

    categories: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    clocks: dict[int, list[int]] = field(default_factory=dict)
    """Last time of each clock that counts from the packet before, in ns."""
    units: dict[int, int] = field(default_factory=dict)
    clock: int = 0
    track: int = 0


@dataclass(slots=True)
class _Track:
    name: str = ""
    pid: int = 0
    tid: int = 0
    parent: int = 0


@dataclass(slots=True)
class _Slice:
    name: str
    category: str
    start: int
    track: int
    said: dict[str, int | str]
    end: int = 0


@dataclass(slots=True)
class _Reader:
    note: Note
    sequences: dict[int, _Sequence] = field(default_factory=lambda: defaultdict(_Sequence))
    tracks: dict[int, _Track] = field(default_factory=lambda: defaultdict(_Track))
    open: dict[int, list[_Slice]] = field(default_factory=lambda: defaultdict(list))
    slices: list[_Slice] = field(default_factory=list)

    def packet(self, text: bytes, depth: int = 0) -> None:
        kept: dict[int, int | bytes] = {}
        for key, value in fields(text, self.note):
            if key == 50 and isinstance(value, bytes) and depth == 0:
                self._unpack(value)
            else:
                kept[key] = value
        sequence = self.sequences[number(kept.get(10, 0))]
        if number(kept.get(13, 0)) & _CLEARED or kept.get(41):
            sequence.__init__()  # type: ignore[misc]
        if 59 in kept:
            defaults = dict(message(kept[59], self.note))
            sequence.clock = number(defaults.get(58, sequence.clock))
            of_events = dict(message(defaults.get(11, b""), self.note))
            sequence.track = number(of_events.get(11, sequence.track))
        if 6 in kept:
            self._clocks(sequence, kept[6])
        if 12 in kept:
            self._interned(sequence, kept[12])
        if 60 in kept:
            self._described(kept[60])
        if 11 in kept:
            self._event(sequence, kept)

    def _unpack(self, value: bytes) -> None:
        try:
            packed = zlib.decompressobj()
            text = packed.decompress(value, _MOST_PACKED)
        except zlib.error:
            self.note("packets that were packed are damaged")
            return
        for key, held in fields(text, self.note):
            if key == 1 and isinstance(held, bytes):
                self.packet(held, depth=1)

    def _clocks(self, sequence: _Sequence, value: int | bytes) -> None:
        for key, held in message(value, self.note):
            if key == 1:
                clock = dict(message(held, self.note))
                identity, unit = number(clock.get(1, 0)), number(clock.get(4, 1)) or 1
                sequence.units[identity] = unit
                if clock.get(3):
                    sequence.clocks[identity] = [number(clock.get(2, 0)) * unit]

    def _interned(self, sequence: _Sequence, value: int | bytes) -> None:
        tables = {1: sequence.categories, 2: sequence.names, 3: sequence.arguments,
                  29: sequence.texts}  # fmt: skip
        for key, held in message(value, self.note):
            if key in tables:
                entry = dict(message(held, self.note))
                tables[key][number(entry.get(1, 0))] = string(entry.get(2, b""))

    def _described(self, value: int | bytes) -> None:
        found = dict(message(value, self.note))
        track = self.tracks[number(found.get(1, 0))]
        track.name = string(found.get(2, b"")) or string(found.get(10, b"")) or track.name
        track.parent = number(found.get(5, track.parent))
        for key in (3, 4):
            if key in found:
                about = dict(message(found[key], self.note))
                track.pid = number(about.get(1, track.pid))
                if key == 4:
                    track.tid = number(about.get(2, track.tid))
                    track.name = track.name or string(about.get(5, b""))
                else:
                    track.name = track.name or string(about.get(6, b""))

    def _time(self, sequence: _Sequence, packet: dict[int, int | bytes]) -> int:
        clock = number(packet.get(58, sequence.clock))
        time = number(packet.get(8, 0)) * sequence.units.get(clock, 1)
        if clock in sequence.clocks:
            last = sequence.clocks[clock]
            last[0] += time
            return last[0]
        return time

    def _event(self, sequence: _Sequence, packet: dict[int, int | bytes]) -> None:
        time = self._time(sequence, packet)
        event: dict[int, int | bytes] = {}
        said: dict[str, int | str] = {}
        for key, value in message(packet[11], self.note):
            if key == 4:
                self._argument(sequence, value, said)
            else:
                event.setdefault(key, value)
        kind = number(event.get(9, 0))
        track = number(event.get(11, sequence.track))
        if kind == _BEGIN:
            category = string(event.get(22, b""))
            name = string(event.get(23, b""))
            self.open[track].append(
                _Slice(
                    name=name or sequence.names.get(number(event.get(10, 0)), ""),
                    category=category or sequence.categories.get(number(event.get(3, 0)), ""),
                    start=time,
                    track=track,
                    said=said,
                )
            )
        elif kind == _END:
            if not self.open[track]:
                self.note("an end event without its begin was left out")
                return
            begun = self.open[track].pop()
            begun.said |= said
            begun.end = time
            self.slices.append(begun)

    def _argument(
        self, sequence: _Sequence, value: int | bytes, said: dict[str, int | str]
    ) -> None:
        name = ""
        for key, held in message(value, self.note):
            if key in (1, 10):
                name = string(held) or sequence.arguments.get(number(held), "")
            elif key in (2, 3, 7):
                said[name] = number(held)
            elif key == 4:
                said[name] = signed(number(held))
            elif key == 6:
                said[name] = string(held)
            elif key == 17:
                said[name] = sequence.texts.get(number(held), "")

    def lane(self, track: int) -> tuple[str, str]:
        own = self.tracks[track]
        parent = self.tracks[own.parent] if own.parent != track else own
        thread = _THREAD.match(own.name)
        tid = thread[1] if thread else str(own.tid or "")
        return str(own.pid or parent.pid or ""), tid or own.name or f"track {track}"


def read_perfetto(path: Path) -> Trace:
    """Read a trace; TraceError if it holds no slice.

    The file is read in blocks, and one packet is in memory at a time.
    """
    gatherer = Gatherer()
    reader = _Reader(gatherer.note)
    platform: Platform = "cpu"
    for text in _packets(path, gatherer.note):
        reader.packet(text)
        if len(reader.slices) >= _PIECE:
            platform = _add(gatherer, reader, platform)
    platform = _add(gatherer, reader, platform)
    left = sum(map(len, reader.open.values()))
    if left:
        gatherer.faults["a begin event without its end was left out"] += left
    if not gatherer.count:
        raise TraceError(
            f"{path.name} is a Perfetto trace without slices of track events: record it with "
            "rocprofv3 --output-format pftrace"
        )
    streams = gatherer.main["stream"].held
    gatherer.streams_known = bool(streams.max(initial=0) > 0)
    return Trace(name=path.name, platform=platform, **gatherer.finish())


def _packets(path: Path, note: Note) -> Iterator[bytes]:
    held = b""
    wanted = 0  # Bytes without which the packet that was begun is not whole
    blocks: list[bytes] = []
    size = 0
    for block in unpack(path, note):
        blocks.append(block)
        size += len(block)
        if size < wanted:
            continue
        held = b"".join(blocks)
        at = 0
        while True:
            try:
                key, body = varint(held, at)
                length, body = varint(held, body)
            except ValueError:
                wanted = len(held) - at + 1
                if wanted > 2 * 10 + 1:
                    note(DAMAGED)
                    return
                break
            if key != _PACKET_KEY:
                note(DAMAGED)
                return
            if body + length > len(held):
                wanted = body + length - at
                break
            yield held[body : body + length]
            at = body + length
        held = held[at:]
        blocks, size = [held], len(held)
    if size:
        note(CUT_OFF)


def _add(gatherer: Gatherer, reader: _Reader, platform: Platform) -> Platform:
    """Add the slices read so far to the columns, and return the platform that they tell."""
    rows = [_row(reader, one) for one in reader.slices]
    reader.slices = []
    gatherer.add_each(rows)
    return "rocm" if any(row.kind != Kind.ANNOTATION for row in rows) else platform


def _row(reader: _Reader, one: _Slice) -> Row:
    said, found = one.said, _WORK.match(reader.tracks[one.track].name)
    row = Row(
        name=one.name,
        start=_number(said.get("begin_ns", one.start)),
        end=_number(said.get("end_ns", one.end)),
        lane=reader.lane(one.track),
        correlation=_number(said.get("corr_id")),
    )
    if one.category == "kernel_dispatch" or (found and found["sort"] == "COMPUTE"):
        row.kind = kernel_kind(one.name)
    elif one.category == "memory_copy" or found:
        row.kind, row.size = Kind.COPY, _number(said.get("copy_bytes"))
    elif one.category in _RUNTIME:
        row.kind = Kind.RUNTIME
    if row.kind in DEVICE_KINDS:
        row.device, row.stream = (
            (int(found["agent"]), int(found["queue"] or 0)) if found else (0, 0)
        )
        row.lane = f"GPU {row.device}", str(row.stream)
    return row


def _number(value: object) -> int:
    """Return a whole number; -1 for anything else."""
    return value if isinstance(value, int) else -1
