"""Two commands as the sides of a comparison: timed whole, or by the metrics they print last."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ratchet.base.errors import GuardError
from ratchet.base.measure import Arm, Sample, Timing
from ratchet.base.measure.metrics import (
    BASELINE,
    CPU_TIME,
    NEW,
    PEAK_MEMORY,
    TIME,
    TWIN,
    Metric,
    Readings,
)
from ratchet.guard.checkouts import Checkout
from ratchet.guard.checkouts.provenance import prove
from ratchet.guard.command import NUMBER, FinishedRun, run_words

NAMED = re.compile(rf"([A-Za-z_][\w./%-]*)\s*[=:]\s*({NUMBER})(?![\w.])")
SHOWN = 120
ONLY = "value"  # Name of the metric of a command that prints one number without a name


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandSide:
    """A command, where it runs, and how it is called in reports."""

    title: str
    command: str  # Text for the shell
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Laid over this process's environment."""
    checkout: Checkout | None = None  # Its code is what the command must import; None: any

    @property
    def shown(self) -> str:
        short = self.title if len(self.title) <= SHOWN else f"{self.title[:SHOWN]}..."
        return repr(short)


class CommandArm:
    """Runs a command once per iteration; keeps the last run and the metrics that it printed."""

    def __init__(self, name: str, side: CommandSide, *, printed: bool, limit_s: float) -> None:
        self.name = name
        self._side, self._printed = side, printed
        self.limit_s = limit_s
        self.last: FinishedRun | None = None
        self.printed: Mapping[str, float] = {}

    def run(self, iterations: int) -> Timing:
        return self._run(self._side)

    def run_first(self) -> str:
        """Run it once, and prove that it imports its checkout's code; return what is not proven."""
        side = self._side
        if side.checkout is None:
            self.run(1)
            return ""

        def run(environment: Mapping[str, str]) -> Timing:
            return self._run(replace(side, environment=environment))

        return prove(run, side.command, side.checkout, side.title)[1]

    def _run(self, side: CommandSide) -> Timing:
        self.last = run_command(side, printed=self._printed, limit_s=self.limit_s)
        if self._printed:
            last_line = self.last.out.strip().rpartition("\n")[2].strip()[-2000:]
            self.printed = read_metrics(last_line, self._side.shown)
        return Timing(wall_time_s=self.last.time_s, cpu_time_s=self.last.cpu_time_s)


class CommandContest:
    """Two commands; every run is a process of its own."""

    def __init__(
        self, a: CommandSide, b: CommandSide, *, printed: bool, higher: Sequence[str] = ()
    ) -> None:
        self._sides = {BASELINE: a, NEW: b, TWIN: a}
        self._printed, self._higher = printed, tuple(higher)
        self._arms: dict[str, CommandArm] = {}
        self._names: dict[str, float] | None = None
        self.notes: list[str] = []  # What was not looked at

    @property
    def titles(self) -> tuple[str, str]:
        return self._sides[BASELINE].title, self._sides[NEW].title

    @property
    def metrics(self) -> tuple[Metric, ...]:
        if not self._printed:
            return (TIME, CPU_TIME, PEAK_MEMORY)
        named = tuple(
            Metric(name=name, higher_is_better=name in self._higher, decides=True)
            for name in self._names or ()
        )
        whole = Metric(name=TIME.name, unit=TIME.unit)
        return (*named, whole, CPU_TIME, PEAK_MEMORY)

    @contextlib.contextmanager
    def open(self, launch: int, limit_s: float) -> Iterator[Sequence[Arm]]:
        self._arms = {
            name: CommandArm(name, side, printed=self._printed, limit_s=limit_s)
            for name, side in self._sides.items()
        }
        arms = list(self._arms.values())
        if launch == 0:
            # The first runs fill caches, and tell how long a run takes.
            began_s = time.monotonic()
            for arm in arms[:2]:
                if missing := arm.run_first():
                    self.notes.append(f"{self._sides[arm.name].title}: {missing}")
                arm.limit_s = max(1.0, limit_s - (time.monotonic() - began_s))
                self._check(arm)
            printed = self._names or {}
            for name in self._higher:
                if name not in printed:
                    raise GuardError(
                        f"--higher {name!r} is no metric that the commands print: they print "
                        f"{', '.join(printed)}"
                    )
        yield arms

    def iterations(self) -> Mapping[str, int]:
        return dict.fromkeys(self._sides, 1)

    def first_round_s(self) -> float:
        """Return the time of a round, as the first runs tell it."""
        times = {name: arm.last.time_s for name, arm in self._arms.items() if arm.last}
        return 2 * times[BASELINE] + times[NEW]

    def read(self, readings: Readings, samples: Sequence[Sample]) -> None:
        for sample in samples:
            arm = self._arms[sample.arm]
            self._check(arm)
            ran, key = arm.last, (sample.arm, sample.launch, sample.round)
            assert ran is not None
            readings.add(TIME.name, *key, ran.time_s)
            if ran.cpu_time_s > 0:
                readings.add(CPU_TIME.name, *key, ran.cpu_time_s)
            if ran.peak_memory_bytes > 0:
                readings.add(PEAK_MEMORY.name, *key, ran.peak_memory_bytes)
            for name, value in arm.printed.items():
                readings.add(name, *key, value)

    def _check(self, arm: CommandArm) -> None:
        """Raise GuardError if a run printed other metrics than the first run of all."""
        self._names = self._names or dict(arm.printed)
        if self._names.keys() != arm.printed.keys():
            raise GuardError(
                f"command {self._sides[arm.name].shown} printed the metrics "
                f"{', '.join(arm.printed)}, and the first run printed {', '.join(self._names)}: "
                "print the same metrics in every run"
            )


def run_command(side: CommandSide, *, printed: bool, limit_s: float) -> FinishedRun:
    """Run a command to its end; keep what it prints on stdout if that is `printed`.

    Raises GuardError: it cannot start, fails, or outlasts `limit_s`.
    """
    done = run_words(side.command, side.folder, limit_s, side.environment, output=printed)
    if isinstance(done, str):
        raise GuardError(
            f"command {side.shown} {done}: it must succeed in every run, within the --budget"
        )
    return done


def read_metrics(line: str, shown: str) -> dict[str, float]:
    """Read the metrics of a command's last line: a number, several, `name=value`, or JSON."""
    found = _json_metrics(line)
    if not found:
        found = {name: float(value) for name, value in NAMED.findall(line)}
    if not found:
        words = line.replace(",", " ").split()
        if words and all(re.fullmatch(NUMBER, word) for word in words):
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
