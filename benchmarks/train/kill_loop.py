"""Kill `ratchet judge` and `ratchet optimize --resume` at random moments, and count the losses.

    python benchmarks/train/kill_loop.py [--times 200] [--seed 0]

Both commands write to one ledger, in turn. Each runs once to its end, to learn how long it takes.
After that it is started and killed with SIGKILL at a random moment within that time. Afterwards the
ledger must hold every row that another process could read before the kill, every verdict and
screening that the command had named on stderr, and every result that it had printed; `rows_lost`
counts those that are missing. The database must pass its integrity check. No process of the command
may be left; `longest_end_s` is the longest that one survived. A killed turn is resumed; a finished
one is followed by a turn with another seed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = "RATCHET_KILL_LOOP"
END_S = 30.0
TABLES = (
    "devices", "software", "problems", "kernels", "verdicts", "measurements", "evidence", "recipes",
    "turns",
)  # fmt: skip
PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return {body}

def get_inputs():
    return [torch.rand(64, 256)]

def get_init_inputs():
    return []
"""
PROBLEMS = {"1_relu": "torch.relu(x)", "2_softmax": "torch.softmax(x, dim=1)"}
JUDGE = "--level 1 --candidate eager --eager-only --fresh --scale 1 --time-limit 30s --device cpu"
OPTIMIZE = "optimize llama-tiny --try allocator-mallopt --keep-precision --launches 1 --budget 2m"
JUDGED = re.compile(r"\d+ of \d+ problems: (\w+): (?!refused|unanswered)", re.MULTILINE)
KERNEL = re.compile(r"kernel (\w+): (proven|correct|wrong|crashed|timed_out|unmeasured)$", re.M)
SCREENED = re.compile(r"\] ([\w:-]+): [\d.]+x$", re.MULTILINE)
VERDICTS = """
    SELECT verdicts.id, problems.name, kernels.name, status FROM verdicts
    JOIN problems ON problems.hash = problem_hash JOIN kernels ON kernels.hash = kernel_hash
"""
Rows = Counter[tuple[object, ...]]


@dataclass(kw_only=True)
class Tally:
    """The figures of the last line."""

    kills: int = 0
    ends: int = 0
    """Runs that ended before they were killed."""
    resumed: int = 0
    rows_seen: int = 0
    rows_named: int = 0
    rows_lost: int = 0
    left_processes: int = 0
    longest_end_s: float = 0.0
    faults: list[str] = field(default_factory=list)


class Loop:
    """The commands, their ledger and the results so far."""

    def __init__(self, folder: Path, drawn: random.Random) -> None:
        self.folder, self.drawn = folder, drawn
        self.ledger = folder / "ledger.db"
        self.tally = Tally()
        self.lasts_s: dict[str, float] = {}
        self.turns = 0
        level = folder / "problems" / "level1"
        level.mkdir(parents=True)
        for name, body in PROBLEMS.items():
            (level / f"{name}.py").write_text(PROBLEM.format(body=body))

    def run(self, times: int, commands: tuple[str, ...] = ("judge", "optimize")) -> Tally:
        """Kill the commands this many times, in turn."""
        for index in range(times):
            name = commands[index % len(commands)]
            if name not in self.lasts_s:
                self._once(name, None)
            self._once(name, self.drawn.uniform(0.0, self.lasts_s[name]))
        return self.tally

    def _once(self, name: str, kill_after_s: float | None) -> None:
        before, began_s = self.rows(), time.monotonic()
        process, said = self._start(name)
        try:
            process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            self.tally.kills += 1
        else:
            self.tally.ends += 1
            self.lasts_s.setdefault(name, time.monotonic() - began_s)
            if process.returncode not in (0, 1):
                self.tally.faults.append(f"{name} exited with {process.returncode}: {said}")
        seen = self.rows()
        process.kill()
        process.wait()
        for thread in said.threads:
            thread.join()
        self._check_processes()
        self._check_rows(seen, name)
        self._check_named(name, said.text, before, ended=kill_after_s is None)

    def _start(self, name: str) -> tuple[subprocess.Popen[str], Said]:
        if name == "judge":
            words = ["judge", "--kernelbench", str(self.folder / "problems"), *JUDGE.split()]
        else:
            resume = self._unfinished()
            self.turns += not resume
            self.tally.resumed += resume
            words = [*OPTIMIZE.split(), "--seed", str(self.turns), "--device", "cpu"]
            words += ["--resume"] if resume else []
        process = subprocess.Popen(
            [sys.executable, "-m", "ratchet.cli", *words, "--out", str(self.folder / "out")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RATCHET_LEDGER": str(self.ledger), TOKEN: str(self.folder)},
        )
        return process, Said(process)

    def _unfinished(self) -> bool:
        """Return True if the newest turn has no end; a resumed turn is a turn of its own."""
        last = self.query("SELECT event FROM turns ORDER BY id DESC LIMIT 1")
        return last == [("started",)]

    def query(self, question: str) -> list[tuple[str, ...]]:
        """Return the rows of an SQL query; none if there are no tables yet."""
        if not self.rows():
            return []
        with closing(sqlite3.connect(self.ledger, timeout=30)) as database:
            return list(database.execute(question))

    def rows(self) -> Rows:
        """Return every row that another process can read now, prefixed with its table's name."""
        if not self.ledger.exists():
            return Counter()
        with closing(sqlite3.connect(self.ledger, timeout=30)) as database:
            known = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            return Counter(
                (table, *row)
                for table in TABLES
                if table in known
                for row in database.execute(f"SELECT * FROM {table}")
            )

    def _check_rows(self, seen: Rows, name: str) -> None:
        self.tally.rows_seen = seen.total()
        lost = seen - self.rows()
        if lost:
            self._lose(lost.total(), f"{name}: {next(iter(lost))}")
        if not self.ledger.exists():
            return
        with closing(sqlite3.connect(self.ledger, timeout=30)) as database:
            (answer,) = database.execute("PRAGMA integrity_check").fetchone()
        if answer != "ok":
            self._lose(1, f"the ledger is damaged: {answer}")

    def _check_named(self, name: str, said: str, before: Rows, *, ended: bool) -> None:
        """Check that each verdict and screening that the command named has a row."""
        old = {row[1] for row in before if row[0] == "verdicts"}
        rows = self.query(VERDICTS)
        problems = Counter(JUDGED.findall(said)) - Counter(
            row[1] for row in rows if row[0] not in old
        )
        missing = list(problems.elements()) if name == "judge" else []
        kernels = {(kernel, status) for _, _, kernel, status in rows}
        missing += [f"{one}" for one in KERNEL.findall(said) if one not in kernels]
        if name == "optimize":
            screenings = self.query("SELECT id FROM evidence WHERE kind = 'screening'")
            missing += SCREENED.findall(said)[len(screenings) :]
            if ended and not self.query("SELECT id FROM recipes"):
                missing.append("the recipe")
        self.tally.rows_named += sum(len(one.findall(said)) for one in (JUDGED, KERNEL, SCREENED))
        if missing:
            self._lose(len(missing), f"{name} named {missing}")

    def _lose(self, count: int, what: str) -> None:
        self.tally.rows_lost += count
        self.tally.faults.append(what)

    def _check_processes(self) -> None:
        began_s = time.monotonic()
        while (left := list(self._alive())) and time.monotonic() - began_s < END_S:
            self.tally.longest_end_s = max(self.tally.longest_end_s, time.monotonic() - began_s)
            time.sleep(0.01)
        self.tally.left_processes += len(left)

    def _alive(self) -> Iterator[int]:
        wanted = f"{TOKEN}={self.folder}".encode()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted in entry.read_bytes().split(b"\0"):
                    yield int(entry.parent.name)
            except OSError:
                continue


class Said:
    """The output of a process, read while it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._parts: list[str] = []
        pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
        self.threads = [threading.Thread(target=self._read, args=(pipe,)) for pipe in pipes]
        for thread in self.threads:
            thread.start()

    def _read(self, pipe: object) -> None:
        with pipe as lines:  # type: ignore[attr-defined]
            for line in lines:
                if line.endswith("\n"):  # a line cut by the kill was not reported
                    self._parts.append(line)

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def __str__(self) -> str:
        return self.text[-500:]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-loop-") as folder:
        loop = Loop(Path(folder), random.Random(given.seed))
        tally = loop.run(given.times)
    for fault in tally.faults:
        print(fault, file=sys.stderr)
    print(json.dumps({"times": given.times, **vars(tally), "faults": len(tally.faults)}))
    return 1 if tally.faults or tally.left_processes else 0


if __name__ == "__main__":
    sys.exit(main())
