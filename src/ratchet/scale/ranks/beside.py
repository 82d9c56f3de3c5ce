"""Logs of launchers, and Python stacks, that lie beside a job's dumps.

torchrun, TorchElastic and Slurm say which rank ended; py-spy and faulthandler say in which line a
rank is. A rank that ended because others did (a time-out, a lost connection, a SIGTERM) is left
out.
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
class Beside:
    """Logs and stacks that were read beside the dumps."""

    ended: tuple[EndedRank, ...]  # The first one first
    stacks: dict[int, tuple[str, ...]]  # Of a rank's main thread, the innermost frame first
    unknown: tuple[Path, ...]  # Files that were named and say nothing

    @staticmethod
    def nothing() -> Beside:
        """Return what an empty folder holds."""
        return Beside(ended=(), stacks={}, unknown=())

    def joined(self, other: Beside) -> Beside:
        """Return both, with what ended in the order of its times."""
        ended = sorted((*self.ended, *other.ended), key=lambda one: one.time or "~")
        return Beside(
            ended=tuple(ended),
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
        return Beside(ended=(), stacks={int(number[1]): stack}, unknown=())
    ended = _ended(path, text)
    return Beside(ended=ended, stacks={}, unknown=(path,) if is_named and not ended else ())


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
    r"^\[rank(?P<rank>\d+)\]:\s*(?P<said>[A-Za-z_.]*(?:Error|Exception)\b.*)"
)
RESTARTED: Final = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) ")
UNEQUAL: Final = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<due>\d+)")
"""Gloo's message as it aborts a rank that gets more bytes than it asked for."""
FOLLOWS: Final = re.compile(
    r"DistBackendError|DistNetworkError|timed? ?out|Terminated|[Cc]onnection (closed|reset)|SIGTERM"
    r"|Broken pipe|unbound_buffer|Application timeout caused pair closure"
)
"""Words of an end that another rank's end or absence explains."""


def _ended(path: Path, text: str) -> tuple[EndedRank, ...]:
    found = []
    for line in text.splitlines():
        if FOLLOWS.search(line):
            continue
        if (task := SLURM_TASK.search(line)) and task["rank"].isdigit():
            found.append((int(task["rank"]), task["said"].strip(), ""))
        elif raised := RAISED.match(line):
            found.append((int(raised["rank"]), raised["said"].strip(), ""))
    unequal = UNEQUAL.search(text)
    if first := FIRST_FAILURE.search(text):
        rank = int(first["rank"])
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
    # Each attempt has one such line; the last one's end is the root cause above.
    ends = list(RESTARTED.finditer(text))
    earlier = ends[:-1] if first else ends
    return (*seen.values(), *(
        EndedRank(rank=int(one["rank"]), said=f"exit code {one['code']}", time="", path=path,
                  was_restarted=True)
        for one in earlier
    ))  # fmt: skip
