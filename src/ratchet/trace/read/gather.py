"""Decoded events to columns, piece by piece; each piece becomes arrays and is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from ratchet.trace.read.columns import (
    DEVICE_KINDS,
    STEP,
    Collectives,
    Int64,
    Kind,
    Kinds,
    MemoryEvents,
    NamedLaunches,
    Numbers,
    Ops,
    Parts,
    Written,
    integers,
    numbered,
)
from ratchet.trace.read.stream import (
    NO_ARGUMENTS,
    NOTHING,
    AnyEvent,
    Event,
    Unused,
    WorkArguments,
    WorkEvent,
)
from ratchet.trace.read.times import CLIPPED, FAR, MISSING, clipped, far_outside, nanoseconds

GPU_DEVICE_TYPES = (1, 6, 12, 15, 19, 20)
"""c10::DeviceType of CUDA, HIP, XPU, HPU, MTIA and PrivateUse1: those with device memory."""
_NO_OTHERS = (WorkEvent, Unused)
_LONGEST = 2**59  # 18 years in ns: a longer duration is not valid


@dataclass(kw_only=True, slots=True)
class Row:
    """One event of a format that has no columns; times in ns, -1 for what is not known."""

    name: str
    start: int
    end: int
    lane: tuple[str, str]
    kind: Kind = Kind.ANNOTATION
    correlation: int = -1
    stream: int = -1
    device: int = -1
    size: int = -1


class Gatherer:
    """Takes lists of events and becomes the columns of a `Trace`."""

    def __init__(self) -> None:
        self.strings = Numbers()
        self.written = Written(self.strings)
        self.lanes = Numbers()
        self.kinds = Kinds()
        self.faults: Counter[str] = Counter()
        self.count = 0
        self.main = {
            name: Parts(dtype)
            for name, dtype in {
                "kind": np.uint8,
                "text": np.int32,
                "start": np.int64,
                "duration": np.int64,
                "lane": np.int32,
                "correlation": np.int64,
                "external": np.int64,
                "stream": np.int32,
                "device": np.int32,
                "size": np.int64,
            }.items()
        }
        self.op = {name: Parts(np.int64) for name in Ops.__slots__}
        self.collective = {name: Parts(np.int64) for name in Collectives.__slots__}
        self.launch = {name: Parts(np.int64) for name in NamedLaunches.__slots__}
        self.memory = {name: Parts(np.int64) for name in MemoryEvents.__slots__}
        self.open: dict[int, list[Event]] = {}
        self.streams_known = True
        """False if all streams of a device may share one number: what overlaps is then right."""

    def note(self, what: str) -> None:
        self.faults[what] += 1

    def add(self, events: Sequence[AnyEvent]) -> None:
        work = [e for e in events if type(e) is WorkEvent or (type(e) is Event and e.ph == "X")]
        others = [e for e in events if not isinstance(e, _NO_OTHERS) and e.ph != "X"]
        if others:
            self._add_others(others)
        if work:
            self._add_work(work)

    def add_rows(
        self,
        kind: Kind | NDArray[np.integer],
        names: Sequence[str],
        start: Int64,
        end: Int64,
        lanes: Sequence[tuple[str, str]],
        **columns: Int64,
    ) -> None:
        """Take rows with times in nanoseconds. `columns` are as in `Trace`; missing ones are -1."""
        if not len(names):
            return
        values: dict[str, NDArray[Any]] = {
            "kind": np.broadcast_to(np.asarray(kind, dtype=np.uint8), (len(names),)),
            "text": np.array(self._number(names)),
            "start": start,
            "duration": self._mend(end - start),
            "lane": np.array([self.lanes[lane] for lane in lanes]),
            **columns,
        }
        for name, part in self.main.items():
            values.setdefault(name, np.full(len(names), -1))
            given = values[name]
            part.add(_narrow(given) if part.dtype == np.int32 else given)
        self.count += len(names)

    def add_each(self, rows: Sequence[Row]) -> None:
        """Take rows one by one; what a damaged file claims may not fit into 64 bits."""

        def column(name: str) -> Int64:
            values = [getattr(row, name) for row in rows]
            return np.array([v if abs(v) < 2**62 else -1 for v in values], dtype=np.int64)

        more = {name: column(name) for name in ("correlation", "stream", "device", "size")}
        names, lanes = [row.name for row in rows], [row.lane for row in rows]
        self.add_rows(column("kind"), names, column("start"), column("end"), lanes, **more)

    def add_ops(self, rows: NDArray[np.integer]) -> None:
        """Say that these rows are ops, whose arguments were not recorded."""
        nothing = np.full(rows.size, self.written[b""])
        self.op["row"].add(rows)
        for name in ("dims", "types", "concrete"):
            self.op[name].add(nothing)
        self.op["sequence"].add(np.full(rows.size, -1))

    def _number(self, values: Iterable[object]) -> Sequence[int]:
        """Number the strings; other values are turned into strings."""
        values = list(values)
        try:
            return numbered(self.strings, values)
        except TypeError:
            return numbered(self.strings, [v if isinstance(v, str) else str(v) for v in values])

    def _add_work(self, work: Sequence[Any], duration: Int64 | None = None) -> None:
        if duration is None:
            both = nanoseconds([*[event.ts for event in work], *[event.dur for event in work]])
            start, duration = both[: len(work)], both[len(work) :]
        else:
            start = nanoseconds([event.ts for event in work])
        lost = start == MISSING
        if lost.any():
            self.faults["an event without a start time was left out"] += int(lost.sum())
            keep = ~lost
            work = list(compress(work, keep.tolist()))
            start, duration = start[keep], duration[keep]
            if not work:
                return
        categories = [event.cat for event in work]
        try:
            kinds = numbered(self.kinds, categories)
        except TypeError:
            kinds = numbered(self.kinds, list(map(str, categories)))
        kind = np.frombuffer(bytes(kinds), dtype=np.uint8)
        given = [event.args or NO_ARGUMENTS for event in work]
        columns = self.main
        columns["kind"].add(kind)
        columns["text"].add(integers(self._number([event.name for event in work])))
        columns["start"].add(start)
        columns["duration"].add(self._mend(duration))
        columns["lane"].add(self._lanes(work))
        columns["correlation"].add(integers([a.correlation for a in given]))
        columns["external"].add(integers([a.external for a in given]))
        self._add_device(kind, given)
        self._add_ops(kind, given)
        self._add_collectives(given)
        self._add_launches(given)
        self.count += len(work)

    def _mend(self, duration: Int64) -> Int64:
        none = (duration == MISSING) | (duration > _LONGEST)
        negative = (duration < 0) & ~none
        for what, wrong in (("without a", none), ("with a negative", negative)):
            if wrong.any():
                self.faults[f"an event {what} duration was read as 0 ns long"] += int(wrong.sum())
        return np.where(none | negative, 0, duration)

    def _lanes(self, events: Sequence[Event | WorkEvent]) -> Int64:
        lanes = self.lanes
        try:
            return integers([lanes[event.pid, event.tid] for event in events])
        except TypeError:
            return integers([lanes[str(e.pid), str(e.tid)] for e in events])

    def _add_device(self, kind: NDArray[np.uint8], given: Sequence[WorkArguments]) -> None:
        stream = np.full(kind.size, -1, dtype=np.int32)
        device, size = stream.copy(), np.full(kind.size, -1, dtype=np.int64)
        chosen = np.isin(kind, DEVICE_KINDS)
        if chosen.any():
            own = list(compress(given, chosen.tolist()))
            stream[chosen] = _narrow(integers([a.stream for a in own]))
            device[chosen] = _narrow(integers([a.device for a in own]))
            size[chosen] = integers([a.bytes for a in own])
        self.main["stream"].add(stream)
        self.main["device"].add(device)
        self.main["size"].add(size)

    def _add_ops(self, kind: NDArray[np.uint8], given: Sequence[WorkArguments]) -> None:
        chosen = kind == Kind.OP
        if not chosen.any():
            return
        own = list(compress(given, chosen.tolist()))
        self.op["row"].add(np.flatnonzero(chosen) + self.count)
        self.op["dims"].add(self._texts([a.dims for a in own]))
        self.op["types"].add(self._texts([a.types for a in own]))
        self.op["concrete"].add(self._texts([a.concrete for a in own]))
        self.op["sequence"].add(integers([a.sequence for a in own]))

    def _texts(self, values: list[Raw]) -> Int64:
        written = self.written
        if values.count(NOTHING) == len(values):
            return np.full(len(values), written[b""])
        texts = b"\0".join(values).split(b"\0")
        if len(texts) != len(values):
            texts = list(map(bytes, values))
        return integers(numbered(written, texts))

    def _add_collectives(self, given: Sequence[WorkArguments]) -> None:
        names = [a.collective for a in given]
        if names.count("") == len(names):
            return
        rows = [i for i, name in enumerate(names) if name]
        own = [given[row] for row in rows]
        columns = self.collective
        columns["row"].add(np.array(rows) + self.count)
        columns["name"].add(np.array(self._number(a.collective for a in own)))
        columns["dtype"].add(np.array(self._number(a.dtype for a in own)))
        columns["group"].add(np.array(self._number(a.group for a in own)))
        columns["elements_in"].add(integers([a.elements_in for a in own]))
        columns["elements_out"].add(integers([a.elements_out for a in own]))
        columns["group_size"].add(integers([a.group_size for a in own]))

    def _add_launches(self, given: Sequence[WorkArguments]) -> None:
        names = [a.kernel for a in given]
        if names.count("") == len(names):
            return
        rows = [i for i, name in enumerate(names) if name]
        self.launch["row"].add(np.array(rows) + self.count)
        self.launch["name"].add(np.array(self._number(names[row] for row in rows)))
        self.launch["grid"].add(self._texts([given[row].grid for row in rows]))

    def _add_others(self, events: Sequence[Any]) -> None:
        memory = [e for e in events if e.ph == "i" and e.name == "[memory]" and e.args]
        if memory:
            self._add_memory(memory)
        for event in events:
            if event.ph in ("B", "E"):
                self._add_half(event)
            elif not isinstance(event.ph, str) or not event.ph:
                self.note("an event without a phase was left out")

    def _add_half(self, event: Event) -> None:
        """Pair a begin with an end event, which Chrome's format allows in place of a duration."""
        lane = int(self._lanes([event])[0])
        if event.ph == "B":
            self.open.setdefault(lane, []).append(event)
        elif self.open.get(lane):
            begun = self.open[lane].pop()
            times = nanoseconds([begun.ts, event.ts])
            if MISSING not in times:
                self._add_work([begun], times[1:] - times[:1])
        else:
            self.note("an end event without its begin was left out")

    def _add_memory(self, events: Sequence[Any]) -> None:
        given = [event.args for event in events]
        self.memory["time"].add(nanoseconds([event.ts for event in events]))
        self.memory["address"].add(integers([a.address for a in given]))
        self.memory["size"].add(integers([a.size for a in given]))
        self.memory["allocated"].add(integers([a.allocated for a in given]))
        self.memory["reserved"].add(integers([a.reserved for a in given]))
        self.memory["on_device"].add(
            np.isin(integers([a.device_type for a in given]), GPU_DEVICE_TYPES)
        )
        self.memory["device"].add(integers([a.device_id for a in given]))

    def parts(self) -> Iterator[Any]:
        """Yield everything, piece by piece, for another gatherer's `absorb`, and drop it here."""
        yield {
            "count": self.count,
            "strings": list(self.strings),
            "lanes": list(self.lanes),
            "categories": list(self.kinds),
            "faults": self.faults,
        }
        for table in self._tables():
            for part in table.values():
                yield part.join()

    def absorb(self, parts: Iterator[Any]) -> None:
        """Take the parts of a gatherer that read the events after ours."""
        about = next(parts)
        strings = integers(self._number(about["strings"]))
        lanes = integers([self.lanes[lane] for lane in about["lanes"]])
        for table in self._tables():
            for name, part in table.items():
                values = next(parts)
                if name == "lane":
                    values = lanes[values]
                elif name == "row":
                    values = values + self.count
                elif name in _STRINGS:
                    values = strings[values]
                part.add(values)
        numbered(self.kinds, about["categories"])
        self.count += about["count"]
        self.faults.update(about["faults"])

    def _near(
        self, start: Int64, duration: Int64, kind: NDArray[np.uint8], order: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Return the order without the events that lie far outside every step."""
        is_step = np.array([STEP.match(str(key)) is not None for key in self.strings], dtype=bool)
        step = is_step[self.main["text"].held[order]] & (kind[order] == Kind.ANNOTATION)
        begins = start[order]
        far = far_outside(begins, begins + duration[order], kind[order], step)
        if far.any():
            self.faults[FAR] += int(far.sum())
        return order[~far]

    def _tables(self) -> tuple[dict[str, Parts], ...]:
        return self.main, self.op, self.collective, self.launch, self.memory

    def finish(self) -> dict[str, Any]:
        """Return the columns as arguments of `Trace`, sorted by start, then the longer first."""
        left = sum(len(events) for events in self.open.values())
        if left:
            self.faults["a begin event without its end was left out"] += left
        start, duration = self.main["start"].join(), self.main["duration"].join()
        kind = self.main["kind"].held
        if self.streams_known:
            lane, stream = self.main["lane"].held, self.main["stream"].held
            duration, cut = clipped(start, duration, kind, lane, stream)
            self.faults.update({CLIPPED: cut} if cut else {})
        order = self._near(start, duration, kind, _in_order(start, duration))
        place = np.full(start.size, -1, dtype=np.int32)
        place[order] = np.arange(order.size, dtype=np.int32)
        columns: dict[str, Any] = {"start": start[order], "duration": duration[order]}
        del start, duration
        for name, part in self.main.items():
            if name not in columns:
                columns[name] = part.join(order)
        columns["ops"] = Ops(**_placed(self.op, place))
        columns["collectives"] = Collectives(**_placed(self.collective, place))
        columns["launches"] = NamedLaunches(**_placed(self.launch, place))
        time = self.memory["time"].join()
        memory = _sorted(self.memory, "time", time, np.argsort(time, kind="stable"))
        memory["on_device"] = memory["on_device"].astype(bool)
        columns["memory"] = MemoryEvents(**memory)
        columns["strings"] = [key if isinstance(key, str) else str(key) for key in self.strings]
        columns["lanes"] = [(str(process), str(thread)) for process, thread in self.lanes]
        columns["faults"] = tuple(
            what if count == 1 else f"{what} ({count:,} times)"
            for what, count in self.faults.items()
        )
        return columns


def _in_order(start: Int64, duration: Int64) -> NDArray[np.int32]:
    """Sort events by start, the longer first among those that start together."""
    order = np.argsort(start, kind="stable")
    together = np.flatnonzero(np.diff(start[order]) == 0)
    if together.size:
        tied = np.union1d(together, together + 1)
        rows = order[tied]
        order[tied] = rows[np.lexsort((-duration[rows], start[rows]))]
    return order.astype(np.int32)


def _narrow(values: Int64) -> Int64:
    """Fold values into 32 bits (a stream may be an address)."""
    return np.where(np.abs(values) < 2**31, values, values & 0x7FFFFFFF)


def _placed(parts: dict[str, Parts], place: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Sort the columns of a part table by the events that its rows point at, if they are kept."""
    row = place[parts["row"].join()]
    order = np.argsort(row, kind="stable")
    order = order[row[order] >= 0]
    return {
        name: values.astype(np.int32) if name in ("row", *_STRINGS) else values
        for name, values in _sorted(parts, "row", row, order).items()
    }


_STRINGS = ("text", "dims", "types", "concrete", "name", "dtype", "group", "grid")


def _sorted(
    parts: dict[str, Parts], key: str, keys: NDArray[Any], order: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Join the columns in this order; that of the key is given, as it was joined already."""
    return {name: keys[order] if name == key else part.join(order) for name, part in parts.items()}
