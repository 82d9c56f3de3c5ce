"""Logs of launchers and of NCCL's watchdog, and Python stacks, that lie beside a job's dumps.

torchrun, TorchElastic and Slurm say which rank ended, the watchdog in which call a rank waited too
long; py-spy and faulthandler say in which line a rank is. A rank that ended because others did (a
time-out, a lost connection, a SIGTERM, its own watchdog) is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BIG_LOG: Final = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRank:
    """A rank that a log says ended."""

    rank: int
    said: str  # How: `exit code -9`, `Killed`, an exception
    time: str  # When, as the log writes it; empty if it does not
    path: Path
    was_restarted: bool = False  # torchrun started all ranks again after it


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOut:
    """A call in which a rank waited too long, as the watchdog says; its first one of a group."""

    rank: int
    group: str  # As the watchdog names it; empty if it does not
    operation: str
    sequence: int
    sizes: str  # `NumelIn=8, NumelOut=8`; empty before torch 2.2
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """Logs and stacks that were read beside the dumps."""

    ended: tuple[EndedRank, ...]  # The first one first
    timed_out: tuple[TimedOut, ...]
    stacks: dict[int, tuple[str, ...]]  # Of a rank's main thread, the innermost frame first
    unknown: tuple[Path, ...]  # Files that were named and say nothing

    @staticmethod
    def nothing() -> Beside:
        """Return what an empty folder holds."""
        return Beside(ended=(), timed_out=(), stacks={}, unknown=())

    def joined(self, other: Beside) -> Beside:
        """Return both, with what ended in the order of its times."""
        ended = sorted((*self.ended, *other.ended), key=lambda one: one.time or "~")
        return Beside(
            ended=tuple(ended),
            timed_out=(*self.timed_out, *other.timed_out),
            stacks={**self.stacks, **other.stacks},
            unknown=(*self.unknown, *other.unknown),
        )


def is_text(raw: bytes) -> bool:
    """Return whether a file is text that is not JSON."""
    start = raw[:4096]
    if not start.strip() or b"\0" in start or start[:1] in (b"{", b"\x80") or b"\n" not in raw:
        return False
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start > len(start) - 4  # a character that the cut parts
    return True


def text_of(raw: bytes) -> str:
    """Return a log's text; of a very long one, its end."""
    return raw[-BIG_LOG:].decode(errors="replace")


def read_text(path: Path, text: str, *, is_named: bool) -> Beside:
    """Return what a text file says of ranks."""
    stack = _stack(text)
    number = re.search(r"(\d+)(?:\.\w+)?$", path.name)
    if stack and number:
        return Beside(ended=(), timed_out=(), stacks={int(number[1]): stack}, unknown=())
    timed_out = _timed_out(path, text)
    ended = _ended(path, text, watched={one.rank for one in timed_out})
    says = bool(ended or timed_out)
    return Beside(
        ended=ended,
        timed_out=timed_out,
        stacks={},
        unknown=(path,) if is_named and not says else (),
    )


PY_SPY_FRAME: Final = re.compile(r"^ {4}(?P<name>\S+) \((?P<file>[^()]+):(?P<line>\d+)\)$")
FAULT_FRAME: Final = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)')


def _stack(text: str) -> tuple[str, ...]:
    """Return the main thread's frames in a text of py-spy or of faulthandler."""
    threads: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if re.match(r"(Thread|Current thread) (0x)?[0-9a-fA-F]+ .*[:\"]", line):
            threads.append((line, []))
        elif threads and (frame := PY_SPY_FRAME.match(line) or FAULT_FRAME.match(line)):
            threads[-1][1].append(f"{frame['file']}:{frame['line']} in {frame['name']}")
    if not threads:
        return ()
    # faulthandler writes the main thread last
    main = next((frames for line, frames in threads if "MainThread" in line), threads[-1][1])
    return tuple(main)


FIRST_FAILURE: Final = re.compile(
    r"Root Cause \(first observed failure\):\s*\n(?:.*\n){0,3}?.*time\s*: (?P<time>\S+)"
    r"(?:.*\n)+?.*\brank\s*: (?P<rank>\d+)(?:.*\n)+?.*exitcode\s*: (?P<code>-?\d+)"
)
SLURM_TASK: Final = re.compile(r"error: \S+: tasks? (?P<rank>[\d,-]+): (?P<said>.+)")
RAISED: Final = re.compile(
    r"(?:^|\s)\[rank(?P<rank>\d+)\]:\s*(?P<said>[A-Za-z_.]*(?:Error|Exception)\b.*)"
)
RESTARTED: Final = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) ")
LAUNCHER: Final = re.compile(r"torch[./]distributed[./](elastic|run|launch)|torchrun")
"""Marks of a log of torchrun: Slurm's tasks are then its launchers, one a node, and no ranks."""
GAVE_UP: Final = re.compile(r"ChildFailedError|^Traceback ", re.MULTILINE)
"""Marks of the end of torchrun, with a summary or before it."""
WATCHED: Final = re.compile(
    r"(?:\[rank(?P<rank>\d+)\].*?)?\[Rank (?P<own>\d+)\] ?"
    r"(?:Watchdog ?caught ?collective ?operation ?timeout:|Work) ?"
    r"WorkNCCL\((?:SeqNum=(?P<number>\d+), ?)?"
    r"OpType=(?P<operation>\w+),? ?(?P<sizes>(?:Numel|TensorShape)[^)]*?)?,? ?Timeout"
)
"""The watchdog's line: since torch 1.13 with the call's number, since 2.1 with `Numel`."""
WRAPPED: Final = re.compile(r"(\bWatchdog caught[^\n(]*|WorkNCCL\([^)\n]*)\n(?!\[)")
"""Such a line that a terminal or a mail broke in two, before its call is told."""
MOST_BREAKS: Final = 4
TERMINATED: Final = ("-15", "143")
"""Exit codes of a process that was told to end."""
WATCHED_GROUP: Final = re.compile(
    r"\[rank(?P<rank>\d+)\].*\[PG (?:ID \S+ PG GUID )?(?P<group>\S.*?) Rank \d+\].*"
    r"(?:at (?:NCCL )?work: |sequence id: |SeqNum=)(?P<number>\d+)"
)
UNEQUAL: Final = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<due>\d+)")
"""Gloo's message as it aborts a rank that gets more bytes than it asked for."""
FOLLOWS: Final = re.compile(
    r"DistBackendError|DistNetworkError|timed? ?out|Terminated|[Cc]onnection (closed|reset)|SIGTERM"
    r"|Broken pipe|unbound_buffer|Application timeout caused pair closure"
)
"""Words of an end that another rank's end or absence explains."""


def _timed_out(path: Path, text: str) -> tuple[TimedOut, ...]:
    """Return the first call of each rank and group in which the watchdog says it waited.

    Only the prefix that torch puts before each line tells the rank in the job: `[Rank 1]` counts
    inside the group. Logs before torch 2.3 have no prefix, and before 1.13 no number: it is 0.
    """
    for _ in range(MOST_BREAKS):
        text = WRAPPED.sub(r"\1", text)
    lines = text.splitlines()
    groups = {
        (int(one["rank"]), int(one["number"])): one["group"]
        for line in lines
        if "[PG " in line and (one := WATCHED_GROUP.search(line))
    }
    found: dict[tuple[int, str], TimedOut] = {}
    for line in lines:
        if "WorkNCCL(" not in line or not (one := WATCHED.search(line)):
            continue
        rank, number = int(one["rank"] or one["own"]), int(one["number"] or 0)
        group = groups.get((rank, number), "")
        known = found.get((rank, group))
        if known is None or number < known.sequence:
            found[rank, group] = TimedOut(
                rank=rank,
                group=group,
                operation=one["operation"].strip("_").lower(),
                sequence=number,
                sizes=one["sizes"] or "",
                path=path,
            )
    return tuple(found.values())


def _ended(path: Path, text: str, *, watched: set[int]) -> tuple[EndedRank, ...]:
    found = []
    followed = set()  # ranks that raised what another rank's end or absence explains
    is_launched = LAUNCHER.search(text) is not None
    for line in text.splitlines():
        if FOLLOWS.search(line):
            if raised := RAISED.search(line):
                followed.add(int(raised["rank"]))
            continue
        if task := SLURM_TASK.search(line):
            aborted = "Abort" in task["said"]
            if is_launched or not task["rank"].isdigit():
                continue
            if aborted and int(task["rank"]) in watched:
                continue
            found.append((int(task["rank"]), task["said"].strip(), ""))
        elif raised := RAISED.search(line):
            found.append((int(raised["rank"]), raised["said"].strip(), ""))
    unequal = UNEQUAL.search(text)
    first = FIRST_FAILURE.search(text)
    rank, code = (int(first["rank"]), first["code"]) if first else (-1, "")
    is_later = code in TERMINATED or (code == "-6" and rank in watched)
    is_later = is_later or rank in followed - {one for one, _, _ in found}
    if first and not is_later:
        said = next((said for one, said, _ in found if one == rank), "")
        if unequal and first["code"] == "-6":
            said = (
                f"gloo aborted it as another rank sent {unequal['got']} bytes where it expected "
                f"{unequal['due']}: ranks called one collective with unequal sizes"
            )
        said = f"exit code {first['code']}" + (f", {said}" if said else "")
        found.insert(0, (rank, said, first["time"]))
    seen: dict[int, EndedRank] = {}
    for rank, said, time in found:
        seen.setdefault(rank, EndedRank(rank=rank, said=said[:200], time=time, path=path))
    # Each attempt has one such line; after the last one's torchrun gives up.
    ends = list(RESTARTED.finditer(text))
    has_ended = first or (ends and GAVE_UP.search(text, ends[-1].end()))
    earlier = ends[:-1] if has_ended else ends
    return (*seen.values(), *(
        EndedRank(rank=int(one["rank"]), said=f"exit code {one['code']}", time="", path=path,
                  was_restarted=True)
        for one in earlier
    ))  # fmt: skip
