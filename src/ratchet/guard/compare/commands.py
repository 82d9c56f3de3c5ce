"""Arms that run a shell command: timed whole, or by the metrics that it prints last."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ratchet import watchdog
from ratchet.errors import GuardError
from ratchet.measure.arm import Timing

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
NAMED = re.compile(rf"([A-Za-z_][\w./%-]*)\s*[=:]\s*({NUMBER})(?![\w.])")
BARE = re.compile(NUMBER)
TAIL_BYTES = 1 << 16
SHOWN = 120
ONLY = "value"
"""Name of the metric of a command that prints one number without a name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandSide:
    """A command, where it runs, and how it is called in reports."""

    title: str
    command: str
    """Text for the shell."""
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Laid over this process's environment."""

    @property
    def shown(self) -> str:
        short = self.title if len(self.title) <= SHOWN else f"{self.title[:SHOWN]}..."
        return repr(short)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """One finished run of a command."""

    time_s: float
    cpu_time_s: float
    """User and system time of the command and all of its children that it waited for."""
    peak_memory_bytes: float
    """Of the largest process among them; 0 if it is not known."""
    printed: Mapping[str, float]


class CommandArm:
    """Runs a command once per iteration. Implements `measure.Arm`; keeps the last run's figures."""

    def __init__(self, name: str, side: CommandSide, *, printed: bool, limit_s: float) -> None:
        self._name = name
        self._side, self._printed = side, printed
        self.limit_s = limit_s
        self.last: Ran | None = None

    @property
    def name(self) -> str:
        return self._name

    def run(self, iterations: int) -> Timing:
        self.last = run_command(self._side, printed=self._printed, limit_s=self.limit_s)
        return Timing(wall_time_s=self.last.time_s, cpu_time_s=self.last.cpu_time_s)


def run_command(side: CommandSide, *, printed: bool, limit_s: float) -> Ran:
    """Run a command to its end.

    Raises:
        GuardError: it cannot start, fails, outlasts `limit_s`, or prints no metric.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began_s = time.perf_counter()
        with _started(side, out if printed else None, err) as process:
            late = threading.Event()
            timer = threading.Timer(limit_s, _end, (process, late))
            timer.start()
            try:
                status, usage = _wait(process)
            finally:
                timer.cancel()
                timer.join()
        time_s = time.perf_counter() - began_s
        code = os.waitstatus_to_exitcode(status)
        if late.is_set():
            raise GuardError(
                f"command {side.shown} did not end within {limit_s:.0f} s, the time that is left: "
                "raise --budget, or make the command shorter"
            )
        if code != 0:
            ended = f"ended with code {code}" if code > 0 else f"was ended by signal {-code}"
            said = _last_line(err) or "it printed nothing on stderr"
            raise GuardError(f"command {side.shown} {ended} ({said}): it must succeed in every run")
        return Ran(
            time_s=time_s,
            cpu_time_s=usage.ru_utime + usage.ru_stime,
            peak_memory_bytes=_peak_bytes(usage),
            printed=read_metrics(_last_line(out), side.shown) if printed else {},
        )


def read_metrics(line: str, shown: str) -> dict[str, float]:
    """Read the metrics of a command's last line: a number, several, `name=value`, or JSON."""
    found = _json_metrics(line)
    if not found:
        found = {name: float(value) for name, value in NAMED.findall(line)}
    if not found:
        words = line.replace(",", " ").split()
        if words and all(BARE.fullmatch(word) for word in words):
            names = [ONLY] if len(words) == 1 else [f"{ONLY}{at + 1}" for at in range(len(words))]
            found = dict(zip(names, map(float, words), strict=True))
    if not found:
        raise GuardError(
            f"command {shown} printed no number on its last line ({line[:SHOWN]!r}): print a "
            "number, name=value pairs or a JSON object of numbers there"
        )
    for name, value in found.items():
        if not math.isfinite(value):
            raise GuardError(f"command {shown} printed {name} = {value}: print a finite number")
    return found


def check_same_metrics(first: Mapping[str, float], now: Mapping[str, float], shown: str) -> None:
    """Raise GuardError if a run printed other metrics than the first run of all."""
    if first.keys() != now.keys():
        raise GuardError(
            f"command {shown} printed the metrics {', '.join(now)}, and the first run printed "
            f"{', '.join(first)}: print the same metrics in every run"
        )


def _json_metrics(line: str) -> dict[str, float]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {
        str(name): float(one)
        for name, one in value.items()
        if isinstance(one, int | float) and not isinstance(one, bool)
    }


@contextlib.contextmanager
def _started(
    side: CommandSide, out: IO[bytes] | None, err: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command in a process group of its own; end the whole group at the exit."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", side.command],
            cwd=side.folder,
            env=watchdog.environment({**os.environ, **side.environment}),
            stdin=subprocess.DEVNULL,
            stdout=out or subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        )
    except OSError as error:
        raise GuardError(
            f"command {side.shown} cannot start in {side.folder} ({error.strerror})"
        ) from error
    try:
        yield process
    finally:
        _end(process)
        process.wait()


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, resource.struct_rusage]:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return status, usage


def _peak_bytes(usage: resource.struct_rusage) -> float:
    """Return the peak of a finished child; 0 if it is not above our own.

    A child begins as a copy of this process, and the kernel counts that copy too.
    """
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024.0 if usage.ru_maxrss > own else 0.0


def _end(process: subprocess.Popen[bytes], late: threading.Event | None = None) -> None:
    """Kill the command with all processes of its group, and note that it was late."""
    if late is not None:
        late.set()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[-2000:] if lines else ""
