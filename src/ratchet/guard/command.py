"""A command whose time or printed number counts."""

from __future__ import annotations

import math
import os
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ratchet.base.errors import WatchError
from ratchet.base.process import families, watchdog

LAST_NUMBER = "last-number"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TAIL = 300
_MOST_BYTES = 1 << 24  # Bytes kept of the end of a command's output


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    code: int  # Below 0 if a signal ended it
    late: bool  # True if it was killed at its limit
    time_s: float
    cpu_time_s: float
    """User and system time of the command and all of its children that it waited for."""
    peak_memory_bytes: float  # Peak of the largest process among them; 0 if it is not known
    out: str
    err: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCommand:
    words: tuple[str, ...]
    metric: str = ""
    """A regular expression whose first group (or all of it) is a number that the command prints,
    `last-number`, or empty to time the command."""
    time_limit_s: float = 600.0

    def check(self) -> None:
        """Raise a WatchError if the metric is no regular expression."""
        if self.metric and self.metric != LAST_NUMBER:
            try:
                re.compile(self.metric)
            except re.error as error:
                raise WatchError(
                    f"the metric {self.metric!r} is no regular expression ({error}): write one "
                    f"with a group around the number, or {LAST_NUMBER}"
                ) from error

    def run(self, folder: Path, environment: Mapping[str, str]) -> float | str:
        """Run it once in a folder; return its figure, or why it has none."""
        done = run_words(self.words, folder, self.time_limit_s, environment)
        if isinstance(done, str):
            return f"it {done}"
        value = find_number(self.metric, done.out) if self.metric else done.time_s
        if value is None:
            named = "no number" if self.metric == LAST_NUMBER else f"nothing like {self.metric!r}"
            return f"it printed {named} on stdout"
        if not (math.isfinite(value) and value > 0):
            return f"its metric is {value}, and must be above 0"
        return value


def run_words(
    words: Sequence[str] | str,
    folder: Path,
    limit_s: float,
    environment: Mapping[str, str],
    *,
    output: bool = True,
) -> FinishedRun | str:
    """Run a command as `run_process` does; return it done, or how it failed: `exited with 3`."""
    try:
        done = run_process(words, folder, limit_s, environment, output=output)
    except OSError as error:
        return f"cannot be started in {folder} ({error.strerror})"
    if done.late:
        return f"took more than {limit_s:g} s"
    if done.code:
        ended = f"exited with {done.code}" if done.code > 0 else f"was ended by signal {-done.code}"
        said = " ".join((done.err.strip() or done.out.strip())[-_TAIL:].split())
        return f"{ended}: {said}".rstrip(": ")
    return done


def run_process(
    words: Sequence[str] | str,
    folder: Path,
    limit_s: float,
    environment: Mapping[str, str],
    *,
    output: bool = True,
) -> FinishedRun:
    """Run a command (text goes to a shell) to its end, or to its limit, in a session of its own.

    Whatever it leaves behind is killed, also if this process is. Without `output`, its stdout is
    discarded. OSError if it cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began_s = time.perf_counter()
        process = subprocess.Popen(
            ["/bin/sh", "-c", words] if isinstance(words, str) else words,
            cwd=folder,
            env=watchdog.environment({**os.environ, **environment}),
            stdin=subprocess.DEVNULL,
            stdout=out if output else subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        )
        try:
            late = not families.has_ended_within(process.pid, limit_s)
            time_s = time.perf_counter() - began_s
        finally:  # also if the user interrupts it
            families.end_session(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        return FinishedRun(
            code=process.returncode,
            late=late,
            time_s=time_s,
            cpu_time_s=usage.ru_utime + usage.ru_stime,
            peak_memory_bytes=_peak_bytes(usage),
            out=_end_of(out),
            err=_end_of(err),
        )


def find_number(metric: str, text: str) -> float | None:
    """Return the last number that a metric finds in a text."""
    pattern = NUMBER if metric == LAST_NUMBER else metric
    found = [one.group(one.re.groups and 1) or "" for one in re.finditer(pattern, text)]
    for one in reversed(found):
        if number := re.search(NUMBER, one):
            return float(number.group())
    return None


def _peak_bytes(usage: resource.struct_rusage) -> float:
    """Return the peak of a finished child; 0 if it is not above our own.

    A child begins as a copy of this process, and the kernel counts that copy too.
    """
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024.0 if usage.ru_maxrss > own else 0.0


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
    return file.read().decode(errors="replace")
