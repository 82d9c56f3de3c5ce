"""Arms that run a shell command: timed whole, or by the metrics that it prints last."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.base.errors import GuardError
from ratchet.guard.command import NUMBER, run_process
from ratchet.measure.arm import Timing

NAMED = re.compile(rf"([A-Za-z_][\w./%-]*)\s*[=:]\s*({NUMBER})(?![\w.])")
BARE = re.compile(NUMBER)
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
    """One finished run of a command: times in seconds."""

    time_s: float
    cpu_time_s: float
    peak_memory_bytes: float
    """0 if it is not known."""
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
    try:
        done = run_process(side.command, side.folder, limit_s, side.environment, output=printed)
    except OSError as error:
        raise GuardError(
            f"command {side.shown} cannot start in {side.folder} ({error.strerror})"
        ) from error
    if done.late:
        raise GuardError(
            f"command {side.shown} did not end within {limit_s:.0f} s, the time that is left: "
            "raise --budget, or make the command shorter"
        )
    if done.code:
        ended = (
            f"was ended by signal {-done.code}" if done.code < 0 else f"ended with code {done.code}"
        )
        said = _last_line(done.err) or "it printed nothing on stderr"
        raise GuardError(f"command {side.shown} {ended} ({said}): it must succeed in every run")
    return Ran(
        time_s=done.time_s,
        cpu_time_s=done.cpu_time_s,
        peak_memory_bytes=done.peak_memory_bytes,
        printed=read_metrics(_last_line(done.out), side.shown) if printed else {},
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


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[-2000:] if lines else ""
