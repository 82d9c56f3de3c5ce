"""A command that is timed whole, or whose printed number counts."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.errors import WatchError

LAST_NUMBER = "last-number"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TAIL = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRun:
    """One run: its figure, or why it has none."""

    value: float | None
    why: str
    """Empty if there is a value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCommand:
    """A command and what of it is measured."""

    words: tuple[str, ...]
    metric: str = ""
    """A regular expression whose first group (or all of it) is a number that the command prints,
    `last-number`, or empty to time the command."""
    time_limit_s: float = 600.0
    environment: Mapping[str, str] = field(default_factory=dict)

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

    def run(self, folder: Path, **extra: str) -> CommandRun:
        """Run it once in a folder, with all processes that it starts killed at its limit."""
        started_s = time.perf_counter()
        done = run_words(self.words, folder, self.time_limit_s, {**self.environment, **extra})
        time_s = time.perf_counter() - started_s
        if isinstance(done, str):
            return CommandRun(value=None, why=done)
        value = time_s if not self.metric else find_number(self.metric, done.stdout)
        if value is None:
            named = "no number" if self.metric == LAST_NUMBER else f"nothing like {self.metric!r}"
            return CommandRun(value=None, why=f"it printed {named} on stdout")
        if not (math.isfinite(value) and value > 0):
            return CommandRun(value=None, why=f"its metric is {value}, and must be above 0")
        return CommandRun(value=value, why="")


def run_words(
    words: Sequence[str] | str, folder: Path, limit_s: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str] | str:
    """Run a command (text goes to a shell); return it done, or why it failed, in a line."""
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            shell=isinstance(words, str),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
            start_new_session=True,
        )
    except OSError as error:
        return f"it cannot be started ({error.strerror})"
    try:
        out, err = process.communicate(timeout=limit_s)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return f"it took more than {limit_s:g} s"
        raise
    if process.returncode:
        said = " ".join((err.strip() or out.strip())[-_TAIL:].split())
        return f"it exited with {process.returncode}: {said}".rstrip(": ")
    return subprocess.CompletedProcess(words, 0, out, err)


def find_number(metric: str, text: str) -> float | None:
    """Return the last number that a metric finds in a text."""
    pattern = _NUMBER if metric == LAST_NUMBER else metric
    found = [one.group(one.re.groups and 1) or "" for one in re.finditer(pattern, text)]
    for one in reversed(found):
        if number := re.search(_NUMBER, one):
            return float(number.group())
    return None
