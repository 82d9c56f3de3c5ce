"""Flight-recorder dumps of PyTorch's collectives, one file a rank.

torch writes a pickle of plain values (`TORCH_FR_DUMP_TEMP_FILE`, `_dump_fr_trace`), or JSON. A
dump comes from somebody's machine, so nothing but plain values is unpickled.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from ratchet.base import Json
from ratchet.base.errors import RanksError

MOST_BYTES: Final = 1 << 30
OWN_FRAMES: Final = re.compile(r"[/\\](torch|typing_extensions|contextlib|threading)[/\\.]")
"""Files of frames that tell nothing about the training script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCall:
    """One collective, or one send or receive, as a rank called it."""

    operation: str
    """all_reduce, broadcast, send 0->1, ..."""
    sequence: int
    """Its number among the group's collectives, or among its sends and receives."""
    is_p2p: bool
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    """scheduled, started or completed."""
    retired: bool
    created_ns: int
    stack: tuple[str, ...]
    """`file:line in function` of the training script, the innermost first."""

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

    name: str
    described: str
    ranks: tuple[int, ...]
    """Its ranks; empty if the dump does not say."""
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
    if not isinstance(document, dict) or not isinstance(document.get("entries", []), list):
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
        raise RanksError(f"{path} is damaged ({error!r}): dump again") from error


def _document(path: Path, raw: bytes) -> Json:
    try:
        if raw[:1] in (b"{", b"["):
            return json.loads(raw)
        return _Plain(io.BytesIO(raw)).load()
    except (
        pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, TypeError,
        AttributeError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        short = " and may be cut short" if isinstance(error, EOFError) or len(raw) else ""
        said = " ".join(str(error).split())[:120] or type(error).__name__
        raise RanksError(f"{path} is no flight-recorder dump{short} ({said})") from error


def _groups(document: dict[str, Json]) -> dict[str, DumpedGroup]:
    configured, statuses = document.get("pg_config") or {}, document.get("pg_status") or {}
    calls: dict[str, list[CollectiveCall]] = {}
    described: dict[str, str] = {}
    for entry in document.get("entries", []):
        name, told = (*map(str, entry.get("process_group") or ("0", "")), "")[:2]
        described[name] = told
        done = statuses.get(str(entry.get("pg_id", name))) or statuses.get(name) or {}
        calls.setdefault(name, []).append(_call(entry, done.get("last_completed_collective", -1)))
    return {
        name: DumpedGroup(
            name=name,
            described=described[name],
            ranks=_ranks(configured, name, len(calls)),
            calls=tuple(found),
        )
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
        inputs=_sizes(entry.get("input_sizes")),
        outputs=_sizes(entry.get("output_sizes")),
        dtypes=tuple(map(str, entry.get("input_dtypes") or ())),
        state=str(entry.get("state", "")),
        retired=bool(entry.get("retired", False)) or (not is_p2p and sequence <= last_completed),
        created_ns=int(entry.get("time_created_ns") or 0),
        stack=_stack(entry.get("frames") or ()),
    )


def _sizes(listed: Json) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(one) for one in sizes) for sizes in listed or ())


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
