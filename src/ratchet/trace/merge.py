"""Several ranks' traces merged into one Chrome trace: a process for each rank, on one clock.

What was found in them stands beside: steps, findings, the critical path, and collectives that
waited for a rank.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
import numpy as np
from msgspec import Raw

from ratchet.base.errors import TraceError
from ratchet.base.files import whole_file
from ratchet.trace.advice import advise
from ratchet.trace.analysis import analyse
from ratchet.trace.answers.report import Report, report
from ratchet.trace.ranks import SharedCollective, across, each_rank
from ratchet.trace.read import MERGED, protobuf_sort, read
from ratchet.trace.read.columns import DEVICE_KINDS, EPOCH, Kind, Trace
from ratchet.trace.read.rocprof import is_database, is_rocprof
from ratchet.trace.read.stream import raw_events
from ratchet.trace.read.times import MISSING, nanoseconds

_FLOWS = ("s", "t", "f")
_FOUND = "found: "  # Before the names of the threads with what was found
_PACKED = 3  # gzip's level: 1.2 times the smallest size, in a quarter of the time
_CATEGORIES = {
    Kind.OP: "cpu_op", Kind.RUNTIME: "cuda_runtime", Kind.KERNEL: "kernel",
    Kind.COPY: "gpu_memcpy", Kind.FILL: "gpu_memset", Kind.ANNOTATION: "user_annotation",
    Kind.DEVICE_ANNOTATION: "gpu_user_annotation", Kind.PYTHON: "python_function",
}  # fmt: skip
Fields = dict[str, Raw]


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedRank:
    """One rank's part of the merged trace."""

    rank: int
    file: str
    events: int
    shift: int  # Added to its times, in ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """The written file, its ranks and their clocks."""

    path: Path
    ranks: tuple[MergedRank, ...]
    aligned: bool
    """True if the ranks' clocks meet. If not, all ranks were moved to begin with the first."""
    faults: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class _Source:
    rank: int
    path: Path
    start: int
    end: int
    base: int
    device: str
    notes: list[_Note] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Note:
    """A slice that says what was found; its time is the rank's own."""

    lane: str
    name: str
    start: int
    duration: int
    said: dict[str, object]


def merge(folder: Path, out: Path, *, notes: bool = True) -> Merged:
    """Merge the traces of a folder, one for each rank, into one file for Perfetto or Chrome.

    Each rank becomes a process; its threads and streams keep their names. If the ranks' windows
    overlap, their clocks count as one. If not, the ranks are moved so that their windows begin
    together. Times stay exact to the nanosecond.

    `notes` adds what was found, on threads of its own. TraceError if nothing can be read, or if
    `out` lies in the folder of traces; FileError if it cannot be written.
    """
    if out.resolve().parent == folder.resolve():
        raise TraceError(f"--out {out} would be taken for a rank of {folder}: choose another")
    faults: list[str] = []
    sources, reports = [], {}
    for rank, path, trace in each_rank(folder, faults):
        faults += [f"{path.name}: {fault}" for fault in trace.faults]
        if notes:
            reports[rank] = replace(report(trace), rank=rank)
            whole = reports[rank].identity
        else:
            whole = analyse(trace).activity.whole()
        end, device = whole.start + whole.window, trace.device_name
        sources.append(
            _Source(
                rank=rank, path=path, start=whole.start, end=end, base=trace.epoch, device=device
            )
        )
    shared = across(reports).collectives
    for source in sources:
        if notes:
            source.notes += _notes(reports[source.rank], source.base, shared)
    shifts, aligned = _shifts(sources)
    with whole_file(out) as target, _packed(target, packed=out.suffix == ".gz") as file:
        written = _write(file, sources, shifts, faults.append)
    return Merged(
        path=out,
        ranks=tuple(
            MergedRank(rank=s.rank, file=s.path.name, events=n, shift=shift)
            for s, n, shift in zip(sources, written, shifts, strict=True)
        ),
        aligned=aligned,
        faults=tuple(dict.fromkeys(faults)),
    )


def _notes(found: Report, base: int, shared: Sequence[SharedCollective]) -> Iterator[_Note]:
    """Yield what was found in one rank's trace, with the times that it concerns."""
    said: dict[str, object]
    for step in found.steps:
        said = {f"{part}_ms": time / 1e6 for part, time in step.times.items()}
        yield _Note(
            lane="steps", name=step.label, start=step.start, duration=step.window,
            said={**said, "overlap": step.overlap},
        )  # fmt: skip
    whole = found.identity
    for place, finding in enumerate(advise(found)):
        said = {"gain_ms": finding.gain / 1e6, "evidence": finding.evidence,
                "remedy": finding.remedy, "levers": ", ".join(finding.levers)}  # fmt: skip
        yield _Note(
            lane=f"finding {place + 1}", name=f"{finding.name}: up to {finding.gain / 1e6:,.2f} ms",
            start=whole.start, duration=whole.window, said=said,
        )  # fmt: skip
    for stretch in found.critical_path.chain:
        yield _Note(
            lane="critical path", name=f"{stretch.kind}: {stretch.name}".rstrip(": "),
            start=stretch.start, duration=stretch.duration, said={"where": stretch.where},
        )  # fmt: skip
    for one in shared:
        if wait := one.waiting.get(found.rank or 0, 0):
            yield _Note(
                lane="waiting for ranks", name=f"{one.operation} waits for rank {one.late}",
                start=one.arrived[found.rank or 0] - base, duration=wait,
                said={"group": one.group, "number": one.index, "skew_ms": one.skew / 1e6,
                      "wire_ms": one.wire / 1e6},
            )  # fmt: skip


def _shifts(sources: list[_Source]) -> tuple[list[int], bool]:
    """Return the shift of each rank's times, and whether their clocks meet."""
    first = sources[0].base
    to_base = [source.base - first for source in sources]
    starts = [source.start + move for source, move in zip(sources, to_base, strict=True)]
    ends = [source.end + move for source, move in zip(sources, to_base, strict=True)]
    if max(starts) < min(ends) or len(sources) == 1:
        return to_base, True
    return [sources[0].start - source.start for source in sources], False


def _packed(file: BinaryIO, *, packed: bool) -> AbstractContextManager[BinaryIO]:
    if packed:
        return cast("AbstractContextManager[BinaryIO]", gzip.open(file, "wb", _PACKED))
    return contextlib.nullcontext(file)


def _write(
    file: BinaryIO, sources: list[_Source], shifts: list[int], note: Callable[[str], None]
) -> list[int]:
    """Write everything, and return the number of each rank's events."""
    about = [
        {"rank": s.rank, "file": s.path.name, "shift_ns": shift}
        for s, shift in zip(sources, shifts, strict=True)
    ]
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", EPOCH: sources[0].base, MERGED: about}
    file.write(json.dumps(head)[:-1].encode() + b', "traceEvents": [\n')
    written, flows = [], 0
    for source, shift in zip(sources, shifts, strict=True):
        lane = _Lanes(source, flows)
        count = 0
        for events in _pieces(source.path, note):
            lines = lane.moved(events, shift)
            count += len(lines)
            file.writelines(line + b",\n" for line in lines)
        for line in (*lane.notes(shift), *lane.names()):
            file.write(line + b",\n")
        flows += len(lane.flows)
        written.append(count)
    end = {"ph": "M", "name": "process_sort_index", "pid": sources[0].rank, "tid": 0,
           "args": {"sort_index": sources[0].rank}}  # fmt: skip
    file.write(json.dumps(end).encode() + b"\n]}\n")
    return written


def _pieces(path: Path, note: Callable[[str], None]) -> Iterator[list[Fields]]:
    if is_database(path) or is_rocprof(path) or protobuf_sort(path):
        yield list(chrome_events(read(path)))
        return
    for events in raw_events(path, dict[str, Raw], note):
        yield list(events)


def chrome_events(trace: Trace) -> Iterator[Fields]:
    """Yield the rows of another sort of trace as events of a Chrome trace."""
    on_device = np.isin(trace.kind, DEVICE_KINDS)
    for row in range(len(trace)):
        process, thread = trace.lanes[trace.lane[row]]
        event = {
            "ph": "X", "cat": _CATEGORIES.get(Kind(trace.kind[row]), "other"),
            "name": trace.string(row), "pid": process, "tid": thread,
        }  # fmt: skip
        fields = {key: Raw(msgspec.json.encode(value)) for key, value in event.items()}
        fields["ts"] = Raw(_microseconds(int(trace.start[row])))
        fields["dur"] = Raw(_microseconds(int(trace.duration[row])))
        if on_device[row]:
            given = {
                "device": int(trace.device[row]), "stream": int(trace.stream[row]),
                "correlation": int(trace.correlation[row]),
            }  # fmt: skip
            fields["args"] = Raw(msgspec.json.encode(given))
        yield fields


def _microseconds(time_ns: int) -> bytes:
    whole, rest = divmod(abs(time_ns), 1000)
    return f"{'-' * (time_ns < 0)}{whole}.{rest:03d}".encode()


class _Lanes:
    """One rank's processes and threads as the threads of one process."""

    def __init__(self, source: _Source, flows: int) -> None:
        self.source = source
        self.first_flow = flows
        self.flows: dict[tuple[bytes, bytes], int] = {}
        self.threads: dict[tuple[bytes, bytes], int] = {}
        self.said: dict[tuple[str, bytes, bytes], str] = {}
        """Names of processes and threads, by what they name."""
        self.pid = Raw(str(source.rank).encode())

    def moved(self, events: list[Fields], shift: int) -> list[bytes]:
        """Return the events as lines, on this rank's process and `shift` ns later; keep names."""
        kept = [event for event in events if not self._names(event)]
        if shift:
            timed = [event for event in kept if "ts" in event]
            times = nanoseconds([event["ts"] for event in timed]).tolist()
            for event, time in zip(timed, times, strict=True):
                if time != MISSING:
                    event["ts"] = Raw(_microseconds(time + shift))
        lines = []
        for event in kept:
            lane = (bytes(event.get("pid", b"")), bytes(event.get("tid", b"")))
            event["pid"] = self.pid
            event["tid"] = Raw(str(self.threads.setdefault(lane, len(self.threads))).encode())
            if "id" in event and bytes(event.get("ph", b"")).strip(b'"').decode() in _FLOWS:
                key = (bytes(event["id"]), bytes(event.get("cat", b"")))
                number = self.flows.setdefault(key, len(self.flows))
                event["id"] = Raw(str(self.first_flow + number).encode())
            lines.append(
                b"{" + b",".join(b'"%s":%s' % (k.encode(), v) for k, v in event.items()) + b"}"
            )
        return lines

    def notes(self, shift: int) -> Iterator[bytes]:
        """Yield what was found, on threads below the trace's own."""
        for note in self.source.notes:
            lane = (b"", json.dumps(f"{_FOUND}{note.lane}").encode())
            event = {
                "ph": "X", "cat": "ratchet", "name": note.name, "pid": self.source.rank,
                "tid": self.threads.setdefault(lane, len(self.threads)), "args": note.said,
            }  # fmt: skip
            times = b',"ts":%s,"dur":%s}' % (
                _microseconds(note.start + shift), _microseconds(note.duration),
            )  # fmt: skip
            yield json.dumps(event).encode()[:-1] + times

    def _names(self, event: Fields) -> bool:
        if bytes(event.get("ph", b"")) != b'"M"':
            return False
        what = bytes(event.get("name", b"")).strip(b'"').decode("utf-8", "replace")
        try:
            given = json.loads(bytes(event.get("args", b"{}")))
        except (ValueError, RecursionError):
            given = {}
        name = given.get("name", given.get("labels", "")) if isinstance(given, dict) else ""
        pid, tid = bytes(event.get("pid", b"")), bytes(event.get("tid", b""))
        self.said[what, pid, tid if what.startswith("thread") else b""] = str(name)
        return True

    def names(self) -> Iterator[bytes]:
        """Yield the names of the rank's process and threads, and their order."""
        label = f"rank {self.source.rank}"
        device = f" · {self.source.device}" if self.source.device else ""
        yield self._say("process_name", 0, {"name": label + device})
        yield self._say("process_labels", 0, {"labels": self.source.path.name})
        yield self._say("process_sort_index", 0, {"sort_index": self.source.rank})
        for (pid, tid), number in self.threads.items():
            thread = self.said.get(("thread_name", pid, tid), "") or tid.decode().strip('"')
            process = self.said.get(("process_labels", pid, b""), "")
            yield self._say("thread_name", number, {"name": f"{process} {thread}".strip()})
            # Streams come below threads, so that one reads from the launch down.
            on_device = "stream" in thread.lower() or process.startswith("GPU")
            below = 2 if thread.startswith(_FOUND) else int(on_device)
            yield self._say("thread_sort_index", number, {"sort_index": number + 10_000 * below})

    def _say(self, what: str, thread: int, given: dict[str, object]) -> bytes:
        made = {"ph": "M", "name": what, "pid": self.source.rank, "tid": thread, "args": given}
        return json.dumps(made).encode()
