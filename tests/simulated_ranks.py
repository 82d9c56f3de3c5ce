"""A job of many ranks that is not there: their programs, run until all wait, and their dumps.

A job is data, tensor and pipeline parallel. Each rank has a program of collectives, sends and
receives; a fault changes one rank's program, stops the rank, or stops its device. The dumps have
the layout that torch's flight recorder writes: pickled, or JSON, of several versions.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SCRIPT = "/job/train.py"
LINES = {"step": 40, "forward": 10, "backward": 20, "reduce": 30}


@dataclass(kw_only=True)
class Call:
    """One operation in a rank's program. A batch of sends and receives is one."""

    family: str  # WORLD, TP, DP, PP
    operation: str
    line: int
    function: str = "step"
    size: int = 64
    dtype: str = "BFloat16"
    ends: tuple[tuple[str, int], ...] = ()  # ("send", rank) and ("recv", rank)
    is_done: bool = False
    met: set[object] = field(default_factory=set, init=False)  # Ends of it that came to their other

    @property
    def where(self) -> str:
        return f"{SCRIPT}:{self.line} in {self.function}"


@dataclass(kw_only=True)
class Rank:
    """A rank with its program; it runs until `stops_at`, its device until `device_stops_at`."""

    number: int
    program: list[Call]
    stops_at: int | None = None
    device_stops_at: int | None = None
    dump: str = "whole"  # whole, none, cut
    issued: int = 0


@dataclass(kw_only=True)
class Job:
    """A job of `data * pipeline * tensor` ranks."""

    data: int = 4
    tensor: int = 2
    pipeline: int = 2
    steps: int = 3
    micro_batches: int = 2
    ahead: int = 0  # Calls that a rank makes before the first of them ends
    is_batched: bool = False  # Sends and receives are made in batches
    has_timing: bool = False  # Devices' starts are recorded
    version: str = "2.10"
    form: str = "pickle"
    buffer: int = 2000
    ranks: list[Rank] = field(default_factory=list)
    views: dict[int, dict[str, tuple[str, tuple[int, ...]]]] = field(default_factory=dict)
    """For each rank, the name and the members of its group of each family."""

    def __post_init__(self) -> None:
        world = self.data * self.tensor * self.pipeline
        self.ranks = [Rank(number=one, program=list(self._program(one))) for one in range(world)]
        self.views = {one: {"WORLD": ("0", tuple(range(world)))} for one in range(world)}
        for name, (family, members) in enumerate(self._made_groups(world), start=1):
            for one in members:
                self.views[one][family] = (str(name), members)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return a rank's stage, replica and part of the tensors."""
        stage, rest = divmod(rank, self.data * self.tensor)
        return stage, *divmod(rest, self.tensor)

    def _made_groups(self, world: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        for family, fixed in (("TP", (0, 1)), ("DP", (0, 2)), ("PP", (1, 2))):
            found: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for rank in range(world):
                found[tuple(self.place(rank)[axis] for axis in fixed)].append(rank)
            yield from ((family, tuple(members)) for members in found.values() if len(members) > 1)

    def _program(self, rank: int) -> Iterator[Call]:
        stage, _, _ = self.place(rank)
        near = self.data * self.tensor
        last = self.pipeline - 1
        for _ in range(self.steps):
            for way, ends in (("forward", (stage > 0, stage < last, near)),
                              ("backward", (stage < last, stage > 0, -near))):  # fmt: skip
                comes, goes, far = ends
                line = LINES[way]
                for _ in range(self.micro_batches):
                    if comes:
                        yield Call(family="PP", operation="recv", line=line, function=way,
                                   ends=(("recv", rank - far),))  # fmt: skip
                    if self.tensor > 1:
                        yield Call(family="TP", operation="all_reduce", line=line + 1, function=way)
                        yield Call(family="TP", operation="all_reduce", line=line + 2, function=way)
                    if goes:
                        yield Call(family="PP", operation="send", line=line + 3, function=way,
                                   ends=(("send", rank + far),))  # fmt: skip
            if self.data > 1:
                for bucket in range(2):
                    yield Call(family="DP", operation="_reduce_scatter_base", size=128,
                               line=LINES["reduce"] + bucket, function="reduce")  # fmt: skip
                yield Call(family="DP", operation="_all_gather_base", line=LINES["reduce"] + 2,
                           function="reduce", size=32)  # fmt: skip
            yield Call(family="WORLD", operation="all_reduce", line=LINES["step"], size=1,
                       dtype="Float")  # fmt: skip

    def find(self, rank: int, family: str, line: int, step: int = 1) -> int:
        """Return the place of a call in a rank's program: the first of a step with that line."""
        own = self.ranks[rank].program
        ends = [place for place, call in enumerate(own) if call.family == "WORLD"]
        start = ends[step - 1] + 1 if step else 0
        return next(place for place in range(start, len(own))
                    if (own[place].family, own[place].line) == (family, line))  # fmt: skip

    def change(self, rank: int, place: int, **changed: Any) -> Call:
        """Change a call of a rank's program; return the call as it was."""
        was = self.ranks[rank].program[place]
        self.ranks[rank].program[place] = replace(was, **changed)
        return was

    def run(self) -> Job:
        """Let every rank call, and every meeting end that can, until nothing moves."""
        while any([self._issue(rank) for rank in self.ranks]) or self._meet():
            pass
        return self

    def _issue(self, rank: Rank) -> bool:
        start = rank.issued
        while rank.issued < len(rank.program) and rank.issued != rank.stops_at:
            made = rank.program[: rank.issued]
            if sum(not call.is_done for call in made[-self.ahead - 1 :]) > self.ahead:
                break
            rank.issued += 1
        return rank.issued > start

    def _meet(self) -> bool:
        """End what all its ranks have come to and are free for; return whether something ended."""
        came: dict[object, list[tuple[Rank, Call, bool]]] = defaultdict(list)
        for rank in self.ranks:
            counts: dict[object, int] = defaultdict(int)
            is_free = True
            for place, call in enumerate(rank.program[: rank.issued]):
                is_free = is_free and place != rank.device_stops_at
                name, members = self.views[rank.number][call.family]
                for key in _keys(rank.number, call, (name, members)):
                    counts[key] += 1
                    if not call.is_done and key not in call.met:
                        came[(key, counts[key])].append((rank, call, is_free))
                is_free = is_free and call.is_done
        moved = False
        for (key, _), calls in came.items():  # type: ignore[misc]
            size = 2 if key[0] == "pair" else len(key[2])
            alike = {(c.operation * (not c.ends), c.size, c.dtype) for _, c, _ in calls}
            if len(calls) == size and len(alike) == 1 and all(free for *_, free in calls):
                for _, call, _ in calls:
                    call.met.add(key)
                    call.is_done = len(call.met) == max(1, len(call.ends))
                    moved = True
        return moved

    def write(self, folder: Path) -> Path:
        """Write a dump for each rank that leaves one."""
        folder.mkdir(exist_ok=True)
        for rank in self.ranks:
            if rank.dump == "none":
                continue
            document = self.document(rank)
            is_json = self.form == "json"
            raw = json.dumps(document).encode() if is_json else pickle.dumps(document, protocol=2)
            path = folder / f"nccl_trace_rank_{rank.number}"
            path.write_bytes(raw[: len(raw) // 2] if rank.dump == "cut" else raw)
        return folder

    def document(self, rank: Rank) -> dict[str, Any]:
        """Return what a rank's flight recorder holds."""
        views = self.views[rank.number]
        config, status, entries = {}, {}, []
        order = sorted(views, key=lambda family: int(views[family][0]))
        word: Callable[[int], Any] = str if self.form == "json" else int
        for family in order:
            name, members = views[family]
            description = "default_pg" if family == "WORLD" else family
            config[name] = {"name": name, "desc": description, "ranks": str(list(members))}
        numbers: dict[tuple[str, bool], int] = defaultdict(int)
        ended: dict[str, int] = defaultdict(int)
        frames = {}
        has_begun = False
        for place, call in enumerate(rank.program[: rank.issued]):
            name, members = views[call.family]
            is_p2p = bool(call.ends)
            numbers[(call.family, is_p2p)] += 1
            number = numbers[(call.family, is_p2p)]
            if call.is_done and not is_p2p:
                ended[call.family] = number
            state = "completed" if call.is_done else "scheduled"
            if not call.is_done and not has_begun:
                has_begun = True
                stopped = rank.device_stops_at is not None and place >= rank.device_stops_at
                state = "started" if self.has_timing and not stopped else "scheduled"
            stack = frames.setdefault((call.line, call.function), [
                {"name": "wrapper", "filename": "/site-packages/torch/distributed/c10d_logger.py",
                 "line": 81},
                {"name": call.function, "filename": SCRIPT, "line": call.line},
                {"name": "main", "filename": SCRIPT, "line": 90},
            ])  # fmt: skip
            common = {
                "frames": stack, "pg_id": order.index(call.family),
                "process_group": (name, config[name]["desc"]),
                "collective_seq_id": numbers[(call.family, False)],
                "p2p_seq_id": numbers[(call.family, True)], "op_id": place + 1,
                "time_created_ns": 1_700_000_000_000_000_000 + 1_000_000 * place + rank.number,
                "input_sizes": [[call.size]], "input_dtypes": [call.dtype],
                "output_sizes": [[call.size]], "output_dtypes": [call.dtype],
                "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
                "timeout_ms": 600000, "is_p2p": is_p2p,
            }  # fmt: skip
            if self.form == "json":
                del common["frames"]
            titles = [_title(members, rank.number, end) for end in call.ends] or [call.operation]
            is_batch = self.is_batched and is_p2p
            for title in titles:
                entries.append(common | {
                    "profiling_name": f"nccl:{title}",
                    "state": "scheduled" if is_batch else state,
                    "retired": call.is_done and not is_batch,
                })  # fmt: skip
            if is_batch:
                entries.append(common | {
                    "profiling_name": "nccl:coalesced", "state": state, "retired": call.is_done,
                    "input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": [],
                })  # fmt: skip
        for place, family in enumerate(order):
            if numbers[(family, False)] or numbers[(family, True)]:
                enqueued = numbers[(family, False)] or numbers[(family, True)]
                status[str(place)] = {
                    "last_enqueued_collective": word(enqueued),
                    "last_started_collective": word(-1),
                    "last_completed_collective": word(ended[family] or -1),
                }
        for place, entry in enumerate(entries):
            entry["record_id"] = place
        document = {"version": self.version, "pg_config": config, "pg_status": status,
                    "entries": entries[-self.buffer :]}  # fmt: skip
        return _of_version(document, self.version)


def _keys(rank: int, call: Call, group: tuple[str, tuple[int, ...]]) -> Iterator[tuple[Any, ...]]:
    if not call.ends:
        yield ("all", *group)
    for way, other in call.ends:
        yield ("pair", group[0], (rank, other) if way == "send" else (other, rank))


def _title(members: tuple[int, ...], rank: int, end: tuple[str, int]) -> str:
    own, other = members.index(rank), members.index(end[1])
    return f"send {own}->{other}" if end[0] == "send" else f"recv {own}<-{other}"


def _of_version(document: dict[str, Any], version: str) -> dict[str, Any]:
    """Leave out what older versions do not write."""
    minor = int(version.partition(".")[2])
    if minor >= 10:
        document["comm_lib_version"] = ""
    if minor < 4:
        for entry in document["entries"]:
            for name in ("timeout_ms", "input_dtypes", "output_dtypes"):
                del entry[name]
    if minor < 3:
        del document["pg_status"]
    return document
