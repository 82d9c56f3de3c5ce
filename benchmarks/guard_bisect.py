"""How often `ratchet bisect` names the right commit, and after how many pairs (simulated).

64 commits, one of which changes the metric by 2 %; one pair varies by 4 %. The noise of a pair
comes from its two arms alone (`arms`), or they also share the machine's drift (`drift`).

    python benchmarks/guard_bisect.py --runs 100

Beside it, on the same series: `git bisect` with one pair a probe, and with 60; and a search by the
same posterior that is told the effect and the noise and stops at 0.95, without any confirmation.
`floor` is what no method can go below with independent pairs: the information that is needed over
the capacity of one pair. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ratchet.guard.bisect.commits import CommitLine, CommitRange
from ratchet.guard.bisect.journal import Journal, JournalLine
from ratchet.guard.bisect.run import BisectOptions, BisectRun
from ratchet.guard.command import CommandRun, MeasuredCommand

COMMITS, EFFECT, NOISE = 64, math.log(1.02), 0.04


class SimulatedCommits:
    """Commits whose metric changes at one of them."""

    def __init__(self, kind: str, rng: np.random.Generator) -> None:
        self.rng, self.kind = rng, kind
        self.changed = int(rng.integers(COMMITS))
        self.drift, self.calls, self.pairs = 0.0, 0, 0

    def log_metric(self, commit: int) -> float:
        if self.calls % 2 == 0:
            self.pairs += 1
            if self.kind == "drift":
                self.drift += 0.02 * self.rng.standard_normal()
        self.calls += 1
        noise = NOISE / math.sqrt(2) * self.rng.standard_normal()
        return EFFECT * (commit >= self.changed) + self.drift + noise

    def pair(self, commit: int) -> float:
        return self.log_metric(commit) - self.log_metric(-1)

    def run(self, commit: int) -> CommandRun:
        return CommandRun(value=math.exp(self.log_metric(commit)), why="")


class MemoryJournal(Journal):
    """A journal that is not written."""

    def __init__(self) -> None:
        self.lines: list[JournalLine] = []

    def add(self, line: JournalLine) -> None:
        self.lines.append(line)


def ratchet(sim: SimulatedCommits) -> tuple[int | None, int, int]:
    after = tuple(CommitLine(revision=str(one), subject="", merge=False) for one in range(COMMITS))
    commits = CommitRange(root=Path(), good="good", after=after)
    options = BisectOptions(command=MeasuredCommand(words=("simulated",)), most_pairs=1000)
    run = BisectRun(commits, options, MemoryJournal(), sim.run, lambda *_: None)
    result = run.answer()
    named = int(result.found.revision) if result.found else None
    return named, result.pairs["search"], sum(result.pairs.values())


def told(sim: SimulatedCommits) -> tuple[int | None, int, int]:
    logs = np.zeros(COMMITS)
    pairs = 0
    while True:
        weights = np.exp(logs - logs.max())
        posterior = weights / weights.sum()
        if posterior.max() >= 0.95:
            return int(posterior.argmax()), pairs, pairs
        bad = np.cumsum(posterior)[:-1]
        probe = int(np.argmax(bad * (1 - bad)))
        logs[: probe + 1] += EFFECT * (sim.pair(probe) - EFFECT / 2) / NOISE**2
        pairs += 1


def halving(repeats: int) -> Callable[[SimulatedCommits], tuple[int | None, int, int]]:
    def search(sim: SimulatedCommits) -> tuple[int | None, int, int]:
        low, high, pairs = -1, COMMITS - 1, 0
        while high - low > 1:
            middle = (low + high) // 2
            pairs += repeats
            slower = np.median([sim.pair(middle) for _ in range(repeats)]) > EFFECT / 2
            low, high = (low, middle) if slower else (middle, high)
        return high, pairs, pairs

    return search


def floor(right: float) -> float:
    """Return the fewest pairs on average: (prior - remaining entropy) / capacity of a pair."""
    grid = np.linspace(-8, 9, 20001)
    step, snr = float(grid[1] - grid[0]), EFFECT / NOISE
    density = (np.exp(-(grid**2) / 2) + np.exp(-((grid - snr) ** 2) / 2)) / math.sqrt(8 * math.pi)
    capacity = -float(np.sum(density * np.log(density)) * step) - 0.5 * math.log(
        2 * math.pi * math.e
    )
    wrong = 1 - right
    left = -wrong * math.log(wrong) - right * math.log(right) + wrong * math.log(COMMITS - 1)
    return (math.log(COMMITS) - left) / capacity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    methods = {
        "ratchet bisect": ratchet,
        "posterior, told the effect": told,
        "git bisect, 1 pair a probe": halving(1),
        "git bisect, 60 pairs a probe": halving(60),
    }
    found = []
    print(f"{'method':30} {'noise':6} {'right':>6} {'wrong':>6} {'search':>7} {'all':>6}  pairs")
    for kind in ("arms", "drift"):
        for name, method in methods.items():
            rng = np.random.default_rng(asked.seed)
            rows = []
            for _ in range(asked.runs):
                sim = SimulatedCommits(kind, rng)
                named, search, every = method(sim)
                rows.append((named == sim.changed, named not in (None, sim.changed), search, every))
            right, wrong, search, every = (float(one) for one in np.mean(rows, axis=0))
            print(
                f"{name:30} {kind:6} {right:6.1%} {wrong:6.1%} {search:7.0f} {every:6.0f}",
                flush=True,
            )
            found.append(
                {"method": name, "noise": kind, "right": right, "wrong": wrong}
                | {"search_pairs": search, "all_pairs": every}
            )
    least = floor(0.95)
    print(f"floor for 95 % right from independent pairs: {least:.0f} pairs")
    print(json.dumps({"runs": asked.runs, "seed": asked.seed, "floor_95": least, "rows": found}))


if __name__ == "__main__":
    main()
