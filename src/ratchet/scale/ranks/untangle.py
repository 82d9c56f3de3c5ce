"""The collective that ranks disagree on, from their flight-recorder dumps."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn

from ratchet.base import Json
from ratchet.base.errors import RanksError
from ratchet.base.show import model as m

# Flight-recorder dumps of PyTorch's collectives, one file a rank.
#
# torch writes a pickle of plain values (`TORCH_FR_DUMP_TEMP_FILE`, `_dump_fr_trace`), or JSON. A
# dump comes from somebody's machine, so nothing but plain values is unpickled.

MOST_BYTES: Final = 1 << 30
OWN_FRAMES: Final = re.compile(r"[/\\](torch|typing_extensions|contextlib|threading)[/\\.]")
"""Files of frames that tell nothing about the training script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCall:
    """One collective, or one send or receive, as a rank called it."""

    operation: str  # all_reduce, broadcast, send 0->1, ...
    sequence: int  # Its number among the group's collectives, or among its sends and receives
    is_p2p: bool
    inputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str  # scheduled, started or completed
    retired: bool
    created_ns: int
    stack: tuple[str, ...]  # `file:line in function` of the training script, the innermost first

    @property
    def is_done(self) -> bool:
        """Return whether it ended; gloo marks that by retiring the entry."""
        return self.retired or self.state == "completed"

    @property
    def where(self) -> str:
        """Return the line that called it."""
        return self.stack[0] if self.stack else "a place without a recorded stack"


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpedGroup:
    """A process group as one rank knew it."""

    ranks: tuple[int, ...]  # Its ranks; empty if the dump does not say
    calls: tuple[CollectiveCall, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dump:
    """All that one rank's dump holds."""

    path: Path
    rank: int
    version: str
    groups: dict[str, DumpedGroup]

    @property
    def span_ns(self) -> tuple[int, int]:
        """Return when its first and its last call were made."""
        times = [call.created_ns for group in self.groups.values() for call in group.calls]
        return (min(times), max(times)) if times else (0, 0)


class _Plain(pickle.Unpickler):
    """An unpickler that makes no objects."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which no dump does")


def read_dumps(paths: Sequence[Path]) -> tuple[list[Dump], list[str]]:
    """Return the dumps of files and folders by rank, and a line for each that cannot be read.

    Raises RanksError if there are none, if two are of one rank, or if they are of different runs.
    """
    dumps, faults = [], []
    for path in _files(paths):
        try:
            dumps.append(read_dump(path))
        except RanksError as error:
            faults.append(str(error))
    if not dumps:
        said = f" ({faults[0]})" if faults else ""
        raise RanksError(
            f"{', '.join(map(str, paths))} holds no flight-recorder dump{said}: give the files "
            "that TORCH_FR_DUMP_TEMP_FILE names"
        )
    if not any(group.calls for dump in dumps for group in dump.groups.values()):
        raise RanksError(
            f"{', '.join(map(str, paths))} holds dumps without a call, which say nothing: set "
            "TORCH_FR_BUFFER_SIZE=2000 before the job starts, and dump again after it hung"
        )
    dumps.sort(key=lambda dump: dump.rank)
    _check_one_run(dumps)
    return dumps, faults


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        try:
            found += (
                sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
            )
        except OSError as error:
            raise RanksError(f"{path} cannot be read: {error.strerror}") from error
    return found


def read_dump(path: Path) -> Dump:
    """Return one dump; RanksError for a file that is none, is cut short or names no rank."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RanksError(f"{path} has more than {MOST_BYTES} bytes: give one dump a file")
        raw = path.read_bytes()
    except OSError as error:
        raise RanksError(f"{path} cannot be read: {error.strerror}") from error
    document = _document(path, raw)
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise RanksError(f"{path} is no flight-recorder dump: it holds no entries")
    rank = document.get("rank")
    number = re.search(r"(\d+)(?:\.\w+)?$", path.name)
    if rank is None and number is None:
        raise RanksError(f"{path} names no rank: let its name end with the rank's number")
    try:
        return Dump(
            path=path,
            rank=int(rank if rank is not None else number[1]),  # type: ignore[index]
            version=str(document.get("version", "")),
            groups=_groups(document),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RanksError(
            f"{path} is damaged (an entry is none that torch writes): dump again"
        ) from error


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
        said = " ".join(str(error).split())[:120] or type(error).__name__
        raise RanksError(
            f"{path} is no flight-recorder dump and may be cut short ({said})"
        ) from error


def _groups(document: dict[str, Json]) -> dict[str, DumpedGroup]:
    configured, statuses = document.get("pg_config") or {}, document.get("pg_status") or {}
    calls: dict[str, list[CollectiveCall]] = {}
    for entry in document.get("entries", []):
        name = str((entry.get("process_group") or ("0",))[0])
        done = statuses.get(str(entry.get("pg_id", name))) or statuses.get(name) or {}
        calls.setdefault(name, []).append(_call(entry, done.get("last_completed_collective", -1)))
    return {
        name: DumpedGroup(ranks=_ranks(configured, name, len(calls)), calls=tuple(found))
        for name, found in calls.items()
    }


def _ranks(configured: object, name: str, count: int) -> tuple[int, ...]:
    """Return a group's ranks; gloo leaves the default group's name empty."""
    if not isinstance(configured, dict):
        return ()
    entry = configured.get(name) or (configured.get("") if count == 1 else None)
    listed = entry.get("ranks", "[]") if isinstance(entry, dict) else "[]"
    values = json.loads(listed) if isinstance(listed, str) else listed
    return tuple(sorted(int(one) for one in values))


def _call(entry: dict[str, Json], last_completed: int) -> CollectiveCall:
    """Return an entry's call; collectives up to `last_completed` of its group have ended."""
    is_p2p = bool(entry.get("is_p2p", False))
    named = str(entry["profiling_name"])
    sequence = int(entry["p2p_seq_id" if is_p2p else "collective_seq_id"])
    return CollectiveCall(
        operation=named.partition(":")[2] or named,
        sequence=sequence,
        is_p2p=is_p2p,
        inputs=tuple(tuple(map(int, sizes)) for sizes in entry.get("input_sizes") or ()),
        dtypes=tuple(map(str, entry.get("input_dtypes") or ())),
        state=str(entry.get("state", "")),
        retired=bool(entry.get("retired", False)) or (not is_p2p and sequence <= last_completed),
        created_ns=int(entry.get("time_created_ns") or 0),
        stack=_stack(entry.get("frames") or ()),
    )


def _stack(frames: Sequence[dict[str, Json]]) -> tuple[str, ...]:
    told = [
        (str(one.get("filename", "")), f"{one.get('line', '?')} in {one.get('name', '?')}")
        for one in frames
    ]
    own = [pair for pair in told if not OWN_FRAMES.search(pair[0])] or told
    return tuple(f"{file}:{rest}" for file, rest in own)


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
    for name in {name for dump in dumps for name in dump.groups}:
        told = {dump.groups[name].ranks: dump for dump in dumps if name in dump.groups}
        told.pop((), None)
        if len(told) > 1:
            (first, a), (second, b) = list(told.items())[:2]
            raise RanksError(
                f"group {name} has the ranks {list(first)} in {a.path} and {list(second)} in "
                f"{b.path}: give dumps of one run"
            )
    spans = [dump.span_ns for dump in dumps if dump.span_ns[1]]
    if spans and max(start for start, _ in spans) - min(end for _, end in spans) > 86400 * 10**9:
        raise RanksError("the dumps lie more than a day apart: give dumps of one run")


Kind = Literal["operation", "order", "dtype", "shape", "missing", "unfinished", "p2p"]
SAME_SIZES: Final = (
    "all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "allgather", "reduce_scatter",
    "_all_gather_base", "_reduce_scatter_base", "barrier",
)  # fmt: skip
"""Operations whose tensors have the same sizes on every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """One collective on which ranks disagree, or at which some wait for others."""

    kind: Kind
    group: str
    sequence: int
    said: str  # The fault, in a sentence
    remedy: str
    stacks: dict[int, tuple[str, ...]]
    """For each rank of interest, the stack of its call, or of its last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Untangled:
    """Findings from the dumps of a job."""

    ranks: tuple[int, ...]
    missing_dumps: tuple[int, ...]  # Ranks of the largest group that left no dump
    calls: int
    found: tuple[Disagreement, ...]  # At most one a group, the earliest first
    faults: tuple[str, ...]  # Files that could not be read


def untangle(dumps: Sequence[Dump], faults: Sequence[str] = ()) -> Untangled:
    """Return the first disagreement of each group."""
    names = sorted({name for dump in dumps for name in dump.groups})
    found = [one for name in names if (one := _of_group(dumps, name))]
    known = {rank for dump in dumps for group in dump.groups.values() for rank in group.ranks}
    here = tuple(dump.rank for dump in dumps)
    return Untangled(
        ranks=here,
        missing_dumps=tuple(sorted(known - set(here))),
        calls=sum(len(group.calls) for dump in dumps for group in dump.groups.values()),
        found=tuple(sorted(found, key=lambda one: (one.kind == "unfinished", one.sequence))),
        faults=tuple(faults),
    )


def _of_group(dumps: Sequence[Dump], name: str) -> Disagreement | None:
    calls = {
        dump.rank: {call.sequence: call for call in dump.groups[name].calls if not call.is_p2p}
        for dump in dumps
        if name in dump.groups
    }
    members = next((dump.groups[name].ranks for dump in dumps if name in dump.groups), ())
    for dump in dumps:  # a member that never called anything in this group
        if dump.rank in members and dump.rank not in calls:
            calls[dump.rank] = {}
    return _first_collective(name, calls) or _first_p2p(dumps, name)


def _first_collective(
    name: str, calls: dict[int, dict[int, CollectiveCall]]
) -> Disagreement | None:
    held = [own for own in calls.values() if own]
    if not held:
        return None
    # Each rank keeps the last calls alone, so the comparison starts where all have something.
    first = max(min(own) for own in held)
    last = max(max(own) for own in held)
    for sequence in range(first, last + 1):
        made = {rank: own[sequence] for rank, own in calls.items() if sequence in own}
        if not made:
            continue
        if differing := _differing(name, sequence, made, calls):
            return differing
        if absent := sorted(set(calls) - set(made)):
            return _absent(name, sequence, made, absent, calls)
    return _unfinished(name, calls)


def _differing(
    name: str,
    sequence: int,
    made: dict[int, CollectiveCall],
    calls: dict[int, dict[int, CollectiveCall]],
) -> Disagreement | None:
    by_operation = _grouped({rank: call.operation for rank, call in made.items()})
    if len(by_operation) > 1:
        told = "; ".join(
            f"{_named(ranks)} called {operation} at {made[ranks[0]].where}"
            for operation, ranks in by_operation.items()
        )
        crossed = _crossed(sequence, made, calls)
        return _disagreement(
            "order" if crossed else "operation", name, sequence, made, told,
            "call the same collectives in the same order on every rank; look for a branch that "
            "depends on the rank or on data",
        )  # fmt: skip
    operation = next(iter(made.values())).operation
    by_dtype = _grouped({rank: ", ".join(call.dtypes) for rank, call in made.items()})
    if len(by_dtype) > 1:
        told = "; ".join(f"{_named(ranks)}: {dtype}" for dtype, ranks in by_dtype.items())
        return _disagreement(
            "dtype", name, sequence, made, f"{operation} got different dtypes, {told}",
            "cast to one dtype before the call",
        )  # fmt: skip
    if operation not in SAME_SIZES:
        return None
    by_size = _grouped(
        {rank: str([list(one) for one in call.inputs]) for rank, call in made.items()}
    )
    if len(by_size) > 1:
        told = "; ".join(f"{_named(ranks)}: {size}" for size, ranks in by_size.items())
        return _disagreement(
            "shape", name, sequence, made, f"{operation} got different sizes, {told}",
            "pad to one size, or exchange the sizes first",
        )  # fmt: skip
    return None


def _crossed(
    sequence: int, made: dict[int, CollectiveCall], calls: dict[int, dict[int, CollectiveCall]]
) -> bool:
    """Return whether two ranks made the same two calls in opposite order."""
    following = {rank: calls[rank].get(sequence + 1) for rank in made}
    pairs = {(made[rank].operation, after.operation) for rank, after in following.items() if after}
    return any((b, a) in pairs for a, b in pairs if a != b)


def _absent(
    name: str, sequence: int, made: dict[int, CollectiveCall], absent: list[int],
    calls: dict[int, dict[int, CollectiveCall]],
) -> Disagreement:  # fmt: skip
    waiting = sorted(made)
    lasts = {rank: max(calls[rank].values(), key=lambda one: one.sequence, default=None)
             for rank in absent}  # fmt: skip
    told = "; ".join(
        f"rank {rank} last called {last.operation} (number {last.sequence}) at {last.where}"
        if last
        else f"rank {rank} called nothing in this group"
        for rank, last in lasts.items()
    )
    first = made[waiting[0]]
    stacks = {waiting[0]: first.stack} | {
        rank: last.stack for rank, last in lasts.items() if last is not None
    }
    return Disagreement(
        kind="missing",
        group=name,
        sequence=sequence,
        said=f"{_named(waiting)} called {first.operation} at {first.where}, which "
        f"{_named(absent)} never called: {told}",
        remedy=f"see what {_named(absent)} did after that call: an exception, a slow input, "
        "another branch",
        stacks=stacks,
    )


def _unfinished(name: str, calls: dict[int, dict[int, CollectiveCall]]) -> Disagreement | None:
    """Return the first collective that all called alike and that did not end."""
    for sequence in sorted({one for own in calls.values() for one in own}):
        made = {rank: own[sequence] for rank, own in calls.items() if sequence in own}
        open_on = sorted(rank for rank, call in made.items() if not call.is_done)
        if open_on and len(made) == len(calls):
            first = made[open_on[0]]
            return Disagreement(
                kind="unfinished",
                group=name,
                sequence=sequence,
                said=f"every rank called {first.operation} alike, and it did not end on "
                f"{_named(open_on)} ({first.where})",
                remedy="the call itself is right: look at the network, at a device that stopped, "
                "or at a kernel before it that does not end",
                stacks={rank: made[rank].stack for rank in open_on[:1]},
            )
    return None


def _first_p2p(dumps: Sequence[Dump], name: str) -> Disagreement | None:
    """Return the first pair of ranks whose sends and receives do not match."""
    sent: defaultdict[tuple[int, int], list[tuple[int, CollectiveCall]]] = defaultdict(list)
    received = sent.copy()
    for dump in dumps:
        group = dump.groups.get(name)
        for call in group.calls if group else ():
            ends = _ends(call) if call.is_p2p else None
            if ends:
                side = sent if call.operation.startswith("send") else received
                side[ends].append((dump.rank, call))
    here = {dump.rank for dump in dumps}
    for pair in sorted(sent.keys() | received.keys()):
        outs, ins = sent[pair], received[pair]
        if len(outs) == len(ins) or not set(pair) <= here:
            continue
        more, fewer = (outs, ins) if len(outs) > len(ins) else (ins, outs)
        rank, call = more[len(fewer)]
        other = "received" if more is outs else "sent"
        return Disagreement(
            kind="p2p",
            group=name,
            sequence=call.sequence,
            said=f"rank {rank} called {call.operation} at {call.where} "
            f"{len(more)} times, and the other end {other} {len(fewer)} times",
            remedy="match every send with a receive",
            stacks={rank: call.stack},
        )
    return None


def _ends(call: CollectiveCall) -> tuple[int, int] | None:
    """Return (from, to) of `send 0->1` or `recv 1<-0`."""
    _, _, ends = call.operation.partition(" ")
    for mark in ("->", "<-"):
        a, found, b = ends.partition(mark)
        if found and a.isdigit() and b.isdigit():
            return (int(a), int(b)) if mark == "->" else (int(b), int(a))
    return None


def _disagreement(
    kind: Kind, name: str, sequence: int, made: dict[int, CollectiveCall], said: str, remedy: str
) -> Disagreement:
    odd = min(_grouped({rank: _signature(one) for rank, one in made.items()}).values(), key=len)[0]
    other = next((rank for rank in made if _signature(made[rank]) != _signature(made[odd])), odd)
    return Disagreement(
        kind=kind,
        group=name,
        sequence=sequence,
        said=said,
        remedy=remedy,
        stacks={rank: made[rank].stack for rank in sorted({odd, other})},
    )


def _signature(call: CollectiveCall) -> str:
    return f"{call.operation} {call.dtypes} {call.inputs}"


def _grouped(values: dict[int, str]) -> dict[str, list[int]]:
    """Return the ranks of each value, the most common value first."""
    found: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        found.setdefault(value, []).append(rank)
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[1])))


def _named(ranks: Sequence[int]) -> str:
    """Write ranks in words: rank 3, ranks 0 to 6, ranks 0, 2 and 5."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def untangled_report(found: Untangled) -> m.ResultReport:
    """Describe the first disagreement of each group, with its remedy and the stacks."""
    if found.found:
        first = found.found[0]
        headline = (
            f"{first.kind} in group {first.group}, collective {first.sequence}: {first.said}."
        )
    else:
        headline = (
            f"{found.calls} calls of {len(found.ranks)} ranks agree: no rank waits for another "
            "in what the dumps hold."
        )
    missing = ", ".join(map(str, found.missing_dumps))
    return m.ResultReport(
        headline=headline,
        sections=m.blocks(
            *(_section(one, first=place == 0) for place, one in enumerate(found.found)),
            m.section("Not there", f"no dump of rank {missing}: it may have ended, or hang before")
            if missing
            else None,
            m.section("Not read", *found.faults) if found.faults else None,
        ),
    )


def _section(one: Disagreement, *, first: bool) -> m.ReportSection:
    stacks = [
        m.section(f"Stack of rank {rank}", m.Lines(stack)) for rank, stack in one.stacks.items()
    ]
    said = "" if first else f"{one.said}."
    title = f"Group {one.group}, collective {one.sequence}: {one.kind}"
    return m.section(title, said, f"To fix it: {one.remedy}.", *stacks)
