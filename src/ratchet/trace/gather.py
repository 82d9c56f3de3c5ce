"""Decoded events into columns, piece by piece: each piece becomes arrays, then is let go."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Raw
from numpy.typing import DTypeLike, NDArray

from ratchet.trace.columns import (
    CATEGORIES,
    DEVICE_KINDS,
    Collectives,
    Fault,
    Flows,
    Int64,
    Kind,
    MemoryEvents,
    Ops,
)
from ratchet.trace.digits import MISSING, nanoseconds
from ratchet.trace.events import NO_ARGUMENTS, Arguments, Event

GPU_DEVICE_TYPES = (1, 6, 12, 20)
"""c10::DeviceType of CUDA, HIP, XPU and PrivateUse1: an allocation on one is device memory."""
_LINKS = ("ac2g", "async_cpu_to_gpu", "async_gpu")
_PAIRS = ("fwdbwd", "forward_backward", "fwd_bwd")
_FAR = 2**62
_LONGEST = 2**59
"""18 years in ns: a longer duration is none."""


class Numbers(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Written(dict[bytes, int]):
    """The number of a JSON value's text, however its writer laid it out."""

    def __init__(self, strings: Numbers) -> None:
        self.strings = strings

    def __missing__(self, raw: bytes) -> int:
        text = raw.decode("utf-8", "replace")
        with contextlib.suppress(ValueError):
            text = json.dumps(json.loads(text))
        number = self[raw] = self.strings[text]
        return number


class Kinds(dict[Any, int]):
    """The Kind of a category as written; what is not known is OTHER."""

    def __missing__(self, key: Any) -> int:
        kind = self[key] = int(CATEGORIES.get(str(key).lower(), Kind.OTHER))
        return kind


class Parts:
    """One column that grows by arrays."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.arrays: list[NDArray[Any]] = []

    def add(self, values: NDArray[Any]) -> None:
        self.arrays.append(np.asarray(values).astype(self.dtype, copy=False))

    def join(self, order: NDArray[Any] | None = None) -> NDArray[Any]:
        """The whole column, in `order` where given; the parts are let go."""
        whole = np.concatenate(self.arrays) if self.arrays else np.zeros(0, dtype=self.dtype)
        self.arrays = []
        return whole if order is None else whole[order]


def integers(values: Sequence[Any]) -> Int64:
    """Whatever a writer put down as a number, as int64; -1 where it is none."""
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -_FAR < number < _FAR else -1


class Gatherer:
    """Takes lists of events and becomes the columns of a `Trace`."""

    def __init__(self) -> None:
        self.strings = Numbers()
        self.written = Written(self.strings)
        self.lanes = Numbers()
        self.kinds = Kinds()
        self.faults: Counter[str] = Counter()
        self.processes: dict[str, str] = {}
        self.threads: dict[tuple[str, str], str] = {}
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
        self.memory = {name: Parts(np.int64) for name in MemoryEvents.__slots__}
        self.flow = {name: Parts(np.int64) for name in Flows.__slots__}
        self.open: dict[int, list[Event]] = {}

    def note(self, what: str) -> None:
        """Count one fault."""
        self.faults[what] += 1

    def add(self, events: list[Event]) -> None:
        """Take one piece."""
        spans = [event for event in events if event.ph == "X"]
        if len(spans) < len(events):
            self._add_others([event for event in events if event.ph != "X"])
        if spans:
            self._add_spans(spans)

    def add_rows(
        self,
        kind: Kind | NDArray[Any],
        names: Sequence[str],
        start: Int64,
        end: Int64,
        lanes: Sequence[tuple[str, str]],
        **columns: Int64,
    ) -> None:
        """Take rows whose times are nanoseconds already; `columns` as in `Trace`, else -1."""
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

    def _number(self, values: Iterable[Any]) -> list[int]:
        """Each string's number; what is no string is written as one."""
        values = list(values)
        numbers = self.strings
        try:
            return [numbers[value] for value in values]
        except TypeError:
            return [numbers[v if isinstance(v, str) else str(v)] for v in values]

    def _add_spans(self, spans: list[Event], duration: Int64 | None = None) -> None:
        start = nanoseconds([event.ts for event in spans])
        if duration is None:
            duration = nanoseconds([event.dur for event in spans])
        lost = start == MISSING
        if lost.any():
            self.faults["an event without a start time was left out"] += int(lost.sum())
            keep = np.flatnonzero(~lost)
            spans = [spans[i] for i in keep]
            start, duration = start[keep], duration[keep]
            if not spans:
                return
        duration = self._mend(duration)
        kinds = self.kinds
        try:
            kind = np.array([kinds[event.cat] for event in spans], dtype=np.uint8)
        except TypeError:
            kind = np.array([kinds[str(event.cat)] for event in spans], dtype=np.uint8)
        given = [event.args or NO_ARGUMENTS for event in spans]
        columns = self.main
        columns["kind"].add(kind)
        columns["text"].add(np.array(self._number(event.name for event in spans)))
        columns["start"].add(start)
        columns["duration"].add(duration)
        columns["lane"].add(self._lanes(spans))
        columns["correlation"].add(integers([a.correlation for a in given]))
        external = integers([a.external for a in given])
        columns["external"].add(external)
        self._add_device(kind, given)
        self._add_ops(kind, given)
        self._add_collectives(given)
        self.count += len(spans)

    def _mend(self, duration: Int64) -> Int64:
        none = (duration == MISSING) | (duration > _LONGEST)
        negative = (duration < 0) & ~none
        if none.any():
            self.faults["an event without a duration counts as 0 ns long"] += int(none.sum())
        if negative.any():
            self.faults["an event with a negative duration counts as 0 ns long"] += int(
                negative.sum()
            )
        return np.where(none | negative, 0, duration)

    def _lanes(self, events: list[Event]) -> NDArray[np.int32]:
        lanes = self.lanes
        try:
            return np.array([lanes[event.pid, event.tid] for event in events], dtype=np.int32)
        except TypeError:
            return np.array([lanes[str(e.pid), str(e.tid)] for e in events], dtype=np.int32)

    def _add_device(self, kind: NDArray[np.uint8], given: list[Arguments]) -> None:
        stream = np.full(kind.size, -1, dtype=np.int32)
        device, size = stream.copy(), np.full(kind.size, -1, dtype=np.int64)
        rows = np.flatnonzero(np.isin(kind, DEVICE_KINDS))
        if rows.size:
            own = [given[row] for row in rows]
            stream[rows] = _narrow(integers([a.stream for a in own]))
            device[rows] = _narrow(integers([a.device for a in own]))
            size[rows] = integers([a.bytes for a in own])
        self.main["stream"].add(stream)
        self.main["device"].add(device)
        self.main["size"].add(size)

    def _add_ops(self, kind: NDArray[np.uint8], given: list[Arguments]) -> None:
        rows = np.flatnonzero(kind == Kind.OP)
        if not rows.size:
            return
        own = [given[row] for row in rows]
        self.op["row"].add(rows + self.count)
        self.op["dims"].add(np.array(self._texts([a.dims for a in own])))
        self.op["types"].add(np.array(self._texts([a.types for a in own])))
        self.op["concrete"].add(np.array(self._texts([a.concrete for a in own])))
        self.op["sequence"].add(integers([a.sequence for a in own]))
        self.op["forward_thread"].add(integers([a.forward_thread for a in own]))

    def _texts(self, values: list[Raw]) -> list[int]:
        written = self.written
        return [written[value] for value in map(bytes, values)]

    def _add_collectives(self, given: list[Arguments]) -> None:
        rows = [i for i, a in enumerate(given) if a.collective]
        if not rows:
            return
        own = [given[row] for row in rows]
        columns = self.collective
        columns["row"].add(np.array(rows) + self.count)
        columns["name"].add(np.array(self._number(a.collective for a in own)))
        columns["dtype"].add(np.array(self._number(a.dtype for a in own)))
        columns["group"].add(np.array(self._number(a.group for a in own)))
        columns["elements_in"].add(integers([a.elements_in for a in own]))
        columns["elements_out"].add(integers([a.elements_out for a in own]))
        columns["group_size"].add(integers([a.group_size for a in own]))

    def _add_others(self, events: list[Event]) -> None:
        flows = [e for e in events if e.ph in ("s", "f") and e.cat in (*_LINKS, *_PAIRS)]
        if flows:
            self._add_flows(flows)
        memory = [e for e in events if e.ph == "i" and e.name == "[memory]" and e.args]
        if memory:
            self._add_memory(memory)
        for event in events:
            if event.ph == "M" and event.args is not None:
                if event.name == "process_name":
                    self.processes[str(event.pid)] = str(event.args.name)
                elif event.name == "thread_name":
                    self.threads[str(event.pid), str(event.tid)] = str(event.args.name)
            elif event.ph in ("B", "E"):
                self._add_half(event)
            elif not isinstance(event.ph, str) or not event.ph:
                self.note("an event without a phase was left out")

    def _add_half(self, event: Event) -> None:
        """Begin and end events, which Chrome's format allows in place of one with a duration."""
        lane = int(self._lanes([event])[0])
        if event.ph == "B":
            self.open.setdefault(lane, []).append(event)
        elif self.open.get(lane):
            begun = self.open[lane].pop()
            times = nanoseconds([begun.ts, event.ts])
            if MISSING not in times:
                self._add_spans([begun], times[1:] - times[:1])
        else:
            self.note("an end event without its begin was left out")

    def _add_flows(self, flows: list[Event]) -> None:
        self.flow["id"].add(integers([event.id for event in flows]))
        self.flow["time"].add(nanoseconds([event.ts for event in flows]))
        self.flow["lane"].add(self._lanes(flows))
        self.flow["start"].add(np.array([event.ph == "s" for event in flows]))
        self.flow["backward"].add(np.array([event.cat in _PAIRS for event in flows]))

    def _add_memory(self, events: list[Event]) -> None:
        given = [event.args or NO_ARGUMENTS for event in events]
        self.memory["time"].add(nanoseconds([event.ts for event in events]))
        self.memory["address"].add(integers([a.address for a in given]))
        self.memory["size"].add(integers([a.size for a in given]))
        self.memory["allocated"].add(integers([a.allocated for a in given]))
        self.memory["reserved"].add(integers([a.reserved for a in given]))
        self.memory["on_device"].add(
            np.isin(integers([a.device_type for a in given]), GPU_DEVICE_TYPES)
        )
        self.memory["device"].add(integers([a.device_id for a in given]))

    def finish(self) -> dict[str, Any]:
        """The columns, sorted by start and then the longer first: keyword arguments of `Trace`."""
        left = sum(len(events) for events in self.open.values())
        if left:
            self.faults["a begin event without its end was left out"] += left
        start, duration = self.main["start"].join(), self.main["duration"].join()
        order = np.lexsort((-duration, start)).astype(np.int32)
        place = np.empty_like(order)
        place[order] = np.arange(order.size, dtype=np.int32)
        columns: dict[str, Any] = {"start": start[order], "duration": duration[order]}
        del start, duration
        for name, part in self.main.items():
            if name not in columns:
                columns[name] = part.join(order)
        columns["ops"] = Ops(**_placed(self.op, place))
        columns["collectives"] = Collectives(**_placed(self.collective, place))
        columns["memory"] = MemoryEvents(**_timed(self.memory, ("on_device",)))
        columns["flows"] = Flows(**_timed(self.flow, ("start", "backward")))
        columns["strings"] = [key if isinstance(key, str) else str(key) for key in self.strings]
        columns["lanes"] = [(str(process), str(thread)) for process, thread in self.lanes]
        columns["faults"] = tuple(Fault(what=w, count=n) for w, n in self.faults.items())
        return columns


def _narrow(values: Int64) -> Int64:
    """Values that fit 32 bits; others (a stream's address) are folded into them."""
    return np.where(np.abs(values) < 2**31, values, values & 0x7FFFFFFF)


def _placed(parts: dict[str, Parts], place: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Columns of a part table, in the order of the events that its rows point at."""
    row = place[parts["row"].join()]
    order = np.argsort(row, kind="stable")
    columns = {"row": row[order]}
    for name, part in parts.items():
        if name != "row":
            columns[name] = part.join(order)
    return {
        name: values.astype(np.int32) if name in _TEXTS else values
        for name, values in columns.items()
    }


_TEXTS = ("row", "dims", "types", "concrete", "name", "dtype", "group")


def _timed(parts: dict[str, Parts], flags: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    time = parts["time"].join()
    order = np.argsort(time, kind="stable")
    columns = {"time": time[order]}
    for name, part in parts.items():
        if name != "time":
            values = part.join(order)
            columns[name] = values.astype(bool) if name in flags else values
    if "lane" in columns:
        columns["lane"] = columns["lane"].astype(np.int32)
    return columns
