"""Flight-recorder dumps of PyTorch's collectives, one file a rank.

torch writes a pickle of plain values (`TORCH_FR_DUMP_TEMP_FILE`, `_dump_fr_trace`), or JSON. A dump
comes from somebody's machine, so nothing but plain values is unpickled.
"""

from __future__ import annotations

import gc
import io
import itertools
import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from ratchet.base import Json
from ratchet.base.errors import RanksError
from ratchet.base.files import why_not_file
from ratchet.scale.ranks.beside import Beside, is_text, read_text, text_of

MOST_BYTES: Final = 1 << 30
OWN_FRAMES: Final = re.compile(
    r"[/\\](torch|typing_extensions|contextlib|threading|runpy)[/\\.]|^<frozen "
)
"""Files of frames that tell nothing about the training script."""
DEFAULT_GROUP: Final = ("default_pg", "")
STATES: Final = ("", "scheduled", "started", "completed")
"""States of a call that torch writes; empty if a dump has none."""
EARLIER_NS: Final = 300 * 10**9
"""Pause between the calls of two runs: more than clocks of hosts differ, and less than the ten
minutes after which a hanging collective times out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calling:
    """An operation with its tensors and the line that called it; calls that are alike share one."""

    operation: str  # all_reduce, broadcast, send 0->1, ...
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    stack: tuple[str, ...]  # `file:line in function` of the training script, the innermost first

    @property
    def where(self) -> str:
        return self.stack[0] if self.stack else "a line that was not recorded"


class CollectiveCall(NamedTuple):
    """One collective, or one send or receive, as a rank called it."""

    what: Calling
    sequence: int  # Its number among the group's collectives, or among its sends and receives
    order: int  # Its place among all calls of the rank; operations of one batch share it
    is_p2p: bool
    is_done: bool
    is_started: bool  # A device began it; recorded with TORCH_NCCL_ENABLE_TIMING alone
    created_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpedGroup:
    """A process group as one rank knew it."""

    name: str
    description: str  # What its maker called it; empty if that is not known
    ranks: tuple[int, ...]  # Its ranks by their numbers in the group; empty if not recorded
    calls: tuple[CollectiveCall, ...]
    last_enqueued: int  # Number of its last collective; -1 if not recorded

    @property
    def title(self) -> str:
        return f"{self.name} ({self.description})" if self.description else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Dump:
    path: Path
    rank: int
    version: str
    groups: dict[str, DumpedGroup]
    backends: frozenset[str]
    is_whole: bool  # The ring buffer has lost no call

    @property
    def span_ns(self) -> tuple[int, int]:
        """Return when its first and its last call were made."""
        times = [call.created_ns for group in self.groups.values() for call in group.calls]
        return (min(times), max(times)) if times else (0, 0)

    @property
    def is_gloo(self) -> bool:
        """Return whether gloo made it, which records no state, no send and few groups' members."""
        return "gloo" in self.backends or (not self.backends and "" in self.groups)

    def last(self) -> tuple[DumpedGroup, CollectiveCall] | None:
        pairs = [(group, call) for group in self.groups.values() for call in group.calls]
        return max(pairs, key=lambda pair: pair[1].order, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """All that was read of a job."""

    dumps: tuple[Dump, ...]  # By rank
    faults: tuple[str, ...]  # A line for each file that cannot be read
    broken: frozenset[int]  # The ranks that those files name
    beside: Beside


class _Plain(pickle.Unpickler):
    """An unpickler that makes no objects."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which no dump does")


def read_dumps(paths: Sequence[Path]) -> Read:
    """Return the dumps of files and folders, and what logs and stacks beside them say.

    Logs that say something do without dumps. Raises RanksError if there are neither, if two dumps
    are of one rank, or if they are of different runs.
    """
    dumps: list[Dump] = []
    faults: list[str] = []
    broken: set[int] = set()
    beside = Beside.nothing()
    known: dict[object, Calling] = {}
    collects = gc.isenabled()
    gc.disable()  # millions of small objects that all stay
    try:
        for path, is_named in _files(paths):
            try:
                raw = _raw(path)
                if is_text(raw):
                    beside = beside.joined(read_text(path, text_of(raw), is_named=is_named))
                else:
                    dumps.append(_dump(path, raw, known))
            except RanksError as error:
                faults.append(str(error))
                if (rank := rank_in(path)) is not None:
                    broken.add(rank)
    finally:
        if collects:
            gc.enable()
    faults += [
        f"{path} is no flight-recorder dump and no log in which a rank ends or times out"
        for path in beside.unknown
    ]
    if not dumps and (beside.timed_out or beside.ended):
        return Read(dumps=(), faults=tuple(faults), broken=frozenset(broken), beside=beside)
    if not dumps:
        said = f" ({faults[0]})" if faults else ""
        raise RanksError(
            f"{', '.join(map(str, paths))} holds no flight-recorder dump{said}: give the files "
            "that TORCH_FR_DUMP_TEMP_FILE names, or a log in which a rank ends or times out"
        )
    if not any(group.calls or dump.is_gloo for dump in dumps for group in dump.groups.values()):
        logs = "".join(
            f" ({one.path.name} says that rank {one.rank} ended: {one.said})"
            for one in beside.ended[:1]
        )
        raise RanksError(
            f"{', '.join(map(str, paths))} holds dumps without a call, which say nothing{logs}: "
            "set TORCH_FR_BUFFER_SIZE=2000 before the job starts, and dump again after it hung"
        )
    dumps.sort(key=lambda dump: dump.rank)
    left = {dump.path for dump in _left_over(dumps)}
    faults += [
        f"{path} ends five minutes or more before the others begin, so it is from an earlier run"
        for path in sorted(left)
    ]
    old, dumps = ([d for d in dumps if (d.path in left) is is_left] for is_left in (True, False))
    broken |= {dump.rank for dump in old} - {dump.rank for dump in dumps}
    _check_one_run(dumps)
    return Read(dumps=tuple(dumps), faults=tuple(faults), broken=frozenset(broken), beside=beside)


def _files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """Return the files, each with whether it was named itself."""
    found: list[tuple[Path, bool]] = []
    for path in paths:
        try:
            found += (
                [
                    (one, False)
                    for one in sorted(path.rglob("*"))
                    if one.is_file() and not one.name.startswith(".")
                ]
                if path.is_dir()
                else [(path, True)]
            )
        except OSError as error:
            raise RanksError(f"{path} cannot be read: {error.strerror}") from error
    return found


def read_dump(path: Path) -> Dump:
    """Return one dump; RanksError for a file that is none, is cut short or names no rank."""
    return _dump(path, _raw(path), {})


def _raw(path: Path) -> bytes:
    if why := why_not_file(path):  # reading a FIFO or a device could last for ever
        raise RanksError(f"{path} {why}: give a dump's file")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RanksError(f"{path} has more than {MOST_BYTES} bytes: give one dump a file")
        return path.read_bytes()
    except OSError as error:
        raise RanksError(f"{path} cannot be read: {error.strerror}") from error


def rank_in(path: Path) -> int | None:
    """Return the rank that a file's name ends with, or has after `rank`."""
    number = re.search(r"(\d+)(?:\.\w+)?$|rank[_-]?(\d+)", path.name)
    return int(number[1] or number[2]) if number else None


def _dump(path: Path, raw: bytes, known: dict[object, Calling]) -> Dump:
    document = _document(path, raw)
    if not isinstance(document, dict) or not isinstance(document.get("entries", []), list):
        raise RanksError(f"{path} is no flight-recorder dump: it holds no entries")
    if "entries" not in document and "pg_config" not in document:
        raise RanksError(f"{path} is no flight-recorder dump: it holds no entries")
    rank = document.get("rank", rank_in(path))
    if rank is None:
        raise RanksError(f"{path} names no rank: let its name end with the rank's number")
    entries = document.get("entries", [])
    try:
        names = (str(entry["profiling_name"]) for entry in entries)
        found = Dump(
            path=path,
            rank=int(rank),
            version=str(document.get("version", "")),
            groups=_groups(document, entries, known),
            backends=frozenset(name.partition(":")[0] for name in names if ":" in name),
            is_whole=not entries or int(entries[0].get("record_id", 0)) <= 1,
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        raise RanksError(
            f"{path} is damaged (an entry is none that torch writes): dump again"
        ) from error
    listed = {one for group in found.groups.values() for one in group.ranks}
    if listed and found.rank not in listed:
        raise RanksError(
            f"{path} is named as rank {found.rank}, which its groups of ranks {min(listed)} to "
            f"{max(listed)} lack: let its name end with the rank's number"
        )
    return found


def _document(path: Path, raw: bytes) -> Json:
    if not raw:
        raise RanksError(f"{path} is no flight-recorder dump: it is empty, so dump again")
    try:
        if raw[:1] in (b"{", b"["):
            return json.loads(raw)
        return _Plain(io.BytesIO(raw)).load()
    except (
        pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, TypeError,
        AttributeError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        known = isinstance(error, (pickle.UnpicklingError, EOFError))
        said = " ".join(str(error).split())[:120] if known else "neither a pickle nor JSON"
        raise RanksError(
            f"{path} is no flight-recorder dump and may be cut short ({said})"
        ) from error


class _Entry(NamedTuple):
    """An entry of a dump with what decides which call it belongs to."""

    order: int
    fields: dict[str, Json]
    is_p2p: bool
    sequence: int


def _groups(
    document: dict[str, Json], entries: Sequence[dict[str, Json]], known: dict[object, Calling]
) -> dict[str, DumpedGroup]:
    """Return the groups that a dump configures or uses, by name."""
    configured = document.get("pg_config") or {}
    held: dict[str, list[_Entry]] = {name: [] for name in configured}
    described: dict[str, str] = {}
    ids: dict[str, str] = {}
    for order, entry in enumerate(entries):
        name, *description = entry.get("process_group") or ("0",)
        name = str(name)
        described.setdefault(name, str(description[0]) if description else "")
        ids.setdefault(name, str(entry.get("pg_id", name)))
        is_p2p = bool(entry.get("is_p2p", _peers(_operation(entry)) is not None))
        field = "p2p_seq_id" if is_p2p else "collective_seq_id"
        number = entry[field if field in entry else "seq_id"]
        held.setdefault(name, []).append(_Entry(order, entry, is_p2p, int(number)))
    if "" in held and (not held[""] or "0" in held) and len(held) > 1:
        del held[""]  # gloo configures its default group under an empty name
    ids = _ids(configured, ids)
    statuses = document.get("pg_status") or {}
    stacks: dict[object, tuple[str, ...]] = {}
    return {
        name: _group(
            name, described.get(name), configured, found, statuses.get(ids.get(name, "")) or {},
            known, stacks,
        )
        for name, found in held.items()
    }  # fmt: skip


def _ids(configured: dict[str, Json], used: dict[str, str]) -> dict[str, str]:
    """Return each group's number on this rank, by which `pg_status` knows it.

    A rank numbers its groups in the order of their making, which is that of their names where those
    are numbers. That guess is taken if it holds for every group whose number is recorded.
    """
    if not all(name.isdigit() for name in configured):
        return used
    guessed = {name: str(place) for place, name in enumerate(sorted(configured, key=int))}
    agree = all(guessed.get(name, number) == number for name, number in used.items())
    return {**guessed, **used} if agree else used


def _group(
    name: str, description: str | None, configured: dict[str, Json], entries: Sequence[_Entry],
    status: dict[str, Json], known: dict[object, Calling], stacks: dict[object, tuple[str, ...]],
) -> DumpedGroup:  # fmt: skip
    config = configured.get(name)
    if config is None and (description in DEFAULT_GROUP or name == "0"):
        config = configured.get("")
    config = config if isinstance(config, dict) else {}
    if description is None:
        description = str(config.get("desc", ""))
    listed = config.get("ranks") or "[]"
    has_p2p = any(entry.is_p2p for entry in entries)
    # The status counts collectives, and sends and receives, in one field.
    completed, enqueued = (
        -1 if has_p2p else int(status.get(field, -1))
        for field in ("last_completed_collective", "last_enqueued_collective")
    )
    batches: dict[tuple[bool, int], list[_Entry]] = {}
    for entry in entries:
        batches.setdefault((entry.is_p2p, entry.sequence), []).append(entry)
    calls: list[CollectiveCall] = []
    for (is_p2p, sequence), batch in batches.items():
        calls += _calls(batch, not is_p2p and sequence <= completed, known, stacks)
    return DumpedGroup(
        name=name,
        description="" if description in ("undefined", *DEFAULT_GROUP) else description,
        ranks=tuple(map(int, json.loads(listed) if isinstance(listed, str) else listed)),
        calls=tuple(_ended_before(calls)),
        last_enqueued=enqueued,
    )


def _operation(entry: dict[str, Json]) -> str:
    named = str(entry["profiling_name"])
    return named.partition(":")[2] or named


def _calls(
    batch: Sequence[_Entry], has_completed: bool, known: dict[object, Calling],
    stacks: dict[object, tuple[str, ...]],
) -> list[CollectiveCall]:  # fmt: skip
    """Return the calls of entries with one number: one collective, or a batch of sends.

    Operations that are started together are recorded one by one and never end; the entry
    `coalesced` after them has the state of all.
    """
    last = batch[-1].fields
    state = str(last.get("state", ""))
    if state not in STATES:
        raise ValueError(state)
    is_retired = bool(last.get("retired", False))
    is_gloo = str(last["profiling_name"]).startswith("gloo:")  # marks an end by retiring alone
    is_done = state == "completed" or has_completed or (is_retired and (is_gloo or not state))
    inner = [entry for entry in batch if "coalesced" not in _operation(entry.fields)]
    told = [_calling(entry.fields, known, stacks) for entry in inner or batch[-1:]]
    if len(told) > 1 and not batch[0].is_p2p:
        told = [_joined(told, known)]
    return [
        CollectiveCall(
            what=what,
            sequence=batch[0].sequence,
            order=batch[0].order,
            is_p2p=batch[0].is_p2p,
            is_done=is_done,
            is_started=state == "started",
            created_ns=int(batch[0].fields.get("time_created_ns") or 0),
        )
        for what in told
    ]


def _ended_before(calls: Sequence[CollectiveCall]) -> list[CollectiveCall]:
    """Mark what ended because a later call did: a group does one thing after the other.

    Sends and receives do so for each other end. A batch whose end is recorded under another number
    ends all before it.
    """
    ended: set[str] = set()
    found = []
    for call in reversed(calls):
        operation = call.what.operation
        lane = operation if call.is_p2p else ""
        if call.is_done:
            ended.add(lane)
        elif lane in ended or (call.is_p2p and "coalesced" in ended):
            call = call._replace(is_done=True)
        found.append(call)
    return found[::-1]


def _joined(told: Sequence[Calling], known: dict[object, Calling]) -> Calling:
    """Return collectives that were started together, as one."""
    made = Calling(
        operation=" + ".join(dict.fromkeys(one.operation for one in told)),
        inputs=tuple(itertools.chain.from_iterable(one.inputs for one in told)),
        outputs=tuple(itertools.chain.from_iterable(one.outputs for one in told)),
        dtypes=tuple(dict.fromkeys(itertools.chain.from_iterable(one.dtypes for one in told))),
        stack=told[0].stack,
    )
    return known.setdefault(made, made)


def _calling(
    entry: dict[str, Json], known: dict[object, Calling], stacks: dict[object, tuple[str, ...]]
) -> Calling:
    operation = _operation(entry)
    inputs = tuple(map(tuple, entry.get("input_sizes") or ()))
    outputs = tuple(map(tuple, entry.get("output_sizes") or ()))
    dtypes = tuple(entry.get("input_dtypes") or ()) or tuple(entry.get("output_dtypes") or ())
    frames = entry.get("frames") or ()
    place = tuple(map(id, frames))  # frames are shared in a dump, which outlives this
    stack = stacks.get(place)
    if stack is None:
        stack = stacks[place] = _stack(frames)
    key = (operation, inputs, outputs, dtypes, stack)
    found = known.get(key)
    if found is None:
        sizes, made = (tuple(tuple(map(int, one)) for one in all_) for all_ in (inputs, outputs))
        found = known[key] = Calling(
            operation=operation, inputs=sizes, outputs=made, dtypes=tuple(map(str, dtypes)),
            stack=stack,
        )  # fmt: skip
    return found


def _stack(frames: Sequence[dict[str, Json]]) -> tuple[str, ...]:
    told = [
        (str(one.get("filename", "")), f"{one.get('line', '?')} in {one.get('name', '?')}")
        for one in frames
    ]
    own = [pair for pair in told if not OWN_FRAMES.search(pair[0])] or told
    return tuple(f"{file}:{rest}" for file, rest in own)


def _peers(operation: str) -> tuple[int, int] | None:
    """Return (from, to) of `send 0->1` or `recv 1<-0`, as numbers in the group."""
    _, _, ends = operation.partition(" ")
    for mark in ("->", "<-"):
        a, found, b = ends.partition(mark)
        if found and a.isdigit() and b.isdigit():
            return (int(a), int(b)) if mark == "->" else (int(b), int(a))
    return None


def ends_of(call: CollectiveCall, rank: int, members: Sequence[int]) -> tuple[int, int] | None:
    """Return the ranks (from, to) of a send or receive of `rank`; None if they are not known.

    A record counts ranks inside the group, so 0 is the group's first.
    """
    peers = _peers(call.what.operation)
    if peers is None:
        return None
    own = peers[0] if call.what.operation.startswith("send") else peers[1]
    if max(peers) < len(members) and members[own] == rank:
        return members[peers[0]], members[peers[1]]
    return peers if own == rank and (not members or set(peers) <= set(members)) else None


def _check_one_run(dumps: Sequence[Dump]) -> None:
    """Raise RanksError unless all dumps can be of one run."""
    for one, other in itertools.pairwise(dumps):
        if one.rank == other.rank:
            raise RanksError(
                f"{one.path} and {other.path} are both of rank {one.rank}: give one run's dumps"
            )
        if one.version != other.version:
            raise RanksError(
                f"{one.path} has version {one.version} and {other.path} {other.version}: give "
                "dumps of one run, with one version of torch"
            )
    worlds = [(dump, group) for dump in dumps if (group := dump.groups.get("0")) and group.ranks]
    for (one, own), (other, its) in itertools.pairwise(worlds):
        if len(own.ranks) != len(its.ranks) and not (one.is_gloo or other.is_gloo):
            raise RanksError(
                f"{one.path} is of a job of {len(own.ranks)} ranks and {other.path} of one of "
                f"{len(its.ranks)}: give one run's dumps"
            )


def _left_over(dumps: Sequence[Dump]) -> list[Dump]:
    """Return the dumps of an earlier run, which ended long before all others made a call."""
    timed = sorted((dump for dump in dumps if dump.span_ns[1]), key=lambda dump: dump.span_ns)
    ends = itertools.accumulate((dump.span_ns[1] for dump in timed), max)
    gaps = [
        place
        for place, (end, later) in enumerate(zip(ends, timed[1:], strict=False), start=1)
        if later.span_ns[0] - end > EARLIER_NS
    ]
    return timed[: gaps[-1]] if gaps else []
