"""A large trace file gathered by several processes, a share each.

The file is cut where an event seems to end. If a share turns out not to end there, or is damaged,
there is no result, and the file must be read in one go.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from ratchet.base.devices.cpuinfo import usable_cpus
from ratchet.base.errors import TraceError
from ratchet.base.process import watchdog
from ratchet.trace.read.gather import Gatherer
from ratchet.trace.read.stream import Stream

SMALLEST = 64 << 20
"""Smallest share in bytes: for fewer, starting a process costs more than it saves."""
_START = 32 << 20  # Bytes read here while another process starts
_MOST = 4  # Most processes at once: all of them hold memory at the same time
_WINDOW = 1 << 20  # An event must end within so many bytes
_FIRST = re.compile(rb'(?:"traceEvents"\s*:\s*|^\s*)\[\s*\{\s*("[^"\\]*"\s*:)')
_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ratchet.trace.read.shares import answer
answer(sys.argv[2:])
"""


@dataclass(kw_only=True, slots=True)
class Gathered:
    """The contents of a file, or of a stretch of one."""

    gatherer: Gatherer
    header: bytes = b""
    footer: bytes = b""
    whole: bool = True


def gather(path: Path, begin: int = 0, end: int | None = None) -> Gathered:
    """Gather a whole file, or a stretch of a plain one; TraceError if it holds no event array.

    With an `end`, msgspec.DecodeError if no event ends there.
    """
    gathered = Gathered(gatherer=Gatherer())

    def note(what: str) -> None:
        gathered.whole = False
        gathered.gatherer.note(what)

    stream = Stream(path=path, note=note, begin=begin, end=end)
    with _uncollected():
        for events in stream:
            gathered.gatherer.add(events)
    gathered.header, gathered.footer = stream.header, stream.footer
    # If the array ended before the stretch did, the rest of the stretch is not events.
    gathered.whole &= end is None or not stream.ended
    return gathered


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch garbage collection off: it would search every event and find no garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def gather_shared(path: Path) -> Gathered | None:
    """Gather a plain file with several processes; None if it is small or that fails."""
    bounds = _bounds(path)
    if not bounds:
        return None
    others: list[subprocess.Popen[bytes]] = []
    try:
        for begin, end in zip(bounds, [*bounds[1:], None], strict=True):
            others.append(_start(path, begin, end))
        gathered = gather(path, 0, bounds[0])
        for other in others:
            if not gathered.whole or gathered.gatherer.open:
                return None
            received = _received(other.stdout)
            gathered.footer = next(received)
            gathered.gatherer.absorb(received)
    except (OSError, EOFError, pickle.UnpicklingError, TraceError, msgspec.DecodeError):
        return None
    finally:
        for other in others:
            other.kill()
            other.communicate()
    return gathered


def _bounds(path: Path) -> list[int]:
    """Return where the shares after the first begin; none if the file is best read in one go."""
    try:
        size = path.stat().st_size
        count = min(len(usable_cpus()), size // SMALLEST, _MOST)
        if count < 2 or not sys.executable:
            return []
        with path.open("rb") as file:
            first = _FIRST.search(file.read(_WINDOW))
            if first is None:
                return []
            between = re.compile(rb"\}\s*,\s*(?=\{\s*" + re.escape(first[1]) + rb")")
            bounds = []
            for number in range(1, count):
                start = _START + number * ((size - _START) // count)
                file.seek(start)
                cut = between.search(file.read(_WINDOW))
                if cut is None:
                    return []
                bounds.append(start + cut.end())
            return bounds
    except OSError:
        return []


def _start(path: Path, begin: int, end: int | None) -> subprocess.Popen[bytes]:
    arguments = [json.dumps(sys.path), os.fspath(path), str(begin), "" if end is None else str(end)]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pipesize=1 << 20,
        env=watchdog.environment(),
    )


def answer(arguments: list[str]) -> None:
    """Gather a share in the other process, and write it to standard output."""
    path, begin, end = arguments
    gathered = gather(Path(path), int(begin), int(end) if end else None)
    if gathered.whole and not gathered.gatherer.open:
        for part in itertools.chain([gathered.footer], gathered.gatherer.parts()):
            pickle.dump(part, sys.stdout.buffer, protocol=5)


def _received(pipe: IO[bytes] | None) -> Iterator[Any]:
    """Yield another process's answer, part by part; EOFError if it has none."""
    assert pipe is not None
    while True:
        yield pickle.load(pipe)
