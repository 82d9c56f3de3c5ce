"""How often `ratchet bisect` names the right commit, and after how many pairs (simulated).

64 commits, one of which changes the metric by 2 %; the two arms of a pair vary by 2.8 % each, so
their difference by 4 %. What both arms share differs by row:

- `arms`: nothing. The machine's level stands still.
- `drift`: the level walks at random, 2 % from pair to pair.
- `pairs`: each pair has a level of its own, 10 % from the next. Only differences tell anything.

A shared level leaves a pair's difference as it is: 4 % in every row. `floor` is what no method can
go below if it has independent differences alone: the information that is needed over the capacity
of one. A level that stands still or walks lets one pair tell about another's, so `arms` and `drift`
may go below it.

    python benchmarks/guard/guard_bisect.py --runs 100

Beside it, on the same series: `git bisect` with one pair a probe, and with 60; and a search by a
posterior that is told the effect and the noise and stops at 0.95, without any confirmation. `set`:
the answer is the right commit, or a credible set that holds it. `none` has no bad commit: `wrong`
is how often one is found. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ratchet.guard.bisect import (
    BisectOptions,
    BisectRun,
    CommitLine,
    CommitRange,
    Journal,
    JournalLine,
)
from ratchet.guard.command import MeasuredCommand

COMMITS, EFFECT, NOISE = 64, math.log(1.02), 0.04
KINDS = ("arms", "drift", "pairs")


@dataclass(frozen=True, kw_only=True)
class Named:
    """An answer, and the pairs that it took."""

    commit: int | None
    among: tuple[int, ...] = ()
    ends: int = 0
    search: int = 0
    confirm: int = 0

    @property
    def pairs(self) -> int:
        return self.ends + self.search + self.confirm


class SimulatedCommits:
    """Commits whose metric changes at one of them."""

    def __init__(self, kind: str, rng: np.random.Generator, *, alike: bool = False) -> None:
        self.rng, self.kind = rng, kind
        self.changed = COMMITS if alike else int(rng.integers(COMMITS))
        self.drift, self.calls, self.pairs = 0.0, 0, 0

    def log_metric(self, commit: int) -> float:
        if self.calls % 2 == 0:
            self.pairs += 1
            if self.kind == "drift":
                self.drift += 0.02 * self.rng.standard_normal()
            elif self.kind == "pairs":
                self.drift = 0.1 * self.rng.standard_normal()
        self.calls += 1
        noise = NOISE / math.sqrt(2) * self.rng.standard_normal()
        return EFFECT * (commit >= self.changed) + self.drift + noise

    def pair(self, commit: int) -> float:
        return self.log_metric(commit) - self.log_metric(-1)

    def run(self, commit: int) -> float:
        return math.exp(self.log_metric(commit))


class MemoryJournal(Journal):
    """A journal that is not written."""

    def __init__(self) -> None:
        self.lines: list[JournalLine] = []

    def add(self, line: JournalLine) -> None:
        self.lines.append(line)


def ratchet(sim: SimulatedCommits) -> Named:
    after = tuple(CommitLine(revision=str(one), subject="", merge=False) for one in range(COMMITS))
    commits = CommitRange(root=Path(), good="good", after=after)
    options = BisectOptions(command=MeasuredCommand(words=("simulated",)), most_pairs=1000)
    run = BisectRun(commits, options, MemoryJournal(), sim.run, lambda *_: None)
    result = run.answer()
    named = int(result.found.revision) if result.found else None
    among = tuple(int(one.revision) for one in result.suspects)
    return Named(commit=named, among=among if named is None else (named,), **result.pairs)


def told(sim: SimulatedCommits) -> Named:
    logs = np.zeros(COMMITS)
    pairs = 0
    while True:
        weights = np.exp(logs - logs.max())
        posterior = weights / weights.sum()
        if posterior.max() >= 0.95:
            best = int(posterior.argmax())
            return Named(commit=best, among=(best,), search=pairs)
        bad = np.cumsum(posterior)[:-1]
        probe = int(np.argmax(bad * (1 - bad)))
        logs[: probe + 1] += EFFECT * (sim.pair(probe) - EFFECT / 2) / NOISE**2
        pairs += 1


def halving(repeats: int) -> Callable[[SimulatedCommits], Named]:
    def search(sim: SimulatedCommits) -> Named:
        low, high, pairs = -1, COMMITS - 1, 0
        while high - low > 1:
            middle = (low + high) // 2
            pairs += repeats
            slower = np.median([sim.pair(middle) for _ in range(repeats)]) > EFFECT / 2
            low, high = (low, middle) if slower else (middle, high)
        return Named(commit=high, among=(high,), search=pairs)

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
    print(
        f"{'method':30} {'noise':6} {'right':>6} {'wrong':>6} {'set':>6} {'ends':>6} {'search':>6} "
        f"{'confirm':>7} {'all':>6}  pairs"
    )
    rows = []
    for kind in KINDS:
        for name, method in methods.items():
            rows.append(row(name, kind, method, asked.runs, asked.seed))
    for kind in KINDS:
        rows.append(row("ratchet bisect, none", kind, ratchet, asked.runs, asked.seed, alike=True))
    least = floor(0.95)
    print(f"floor for 95 % right from independent differences: {least:.0f} pairs")
    print(json.dumps({"runs": asked.runs, "seed": asked.seed, "floor_95": least, "rows": rows}))


def row(
    name: str,
    kind: str,
    method: Callable[[SimulatedCommits], Named],
    runs: int,
    seed: int,
    *,
    alike: bool = False,
) -> dict[str, object]:
    """Run a method on simulated commits, print and return what it did on average."""
    rng = np.random.default_rng(seed)
    counts = []
    for _ in range(runs):
        sim = SimulatedCommits(kind, rng, alike=alike)
        one = method(sim)
        right = one.commit == sim.changed
        wrong = one.commit is not None and not right
        counts.append(
            (right, wrong, sim.changed in one.among, one.ends, one.search, one.confirm, one.pairs)
        )
    names = ("right", "wrong", "set", "ends", "search", "confirm", "all")
    found = dict(zip(names, map(float, np.mean(counts, axis=0)), strict=True))
    print(
        f"{name:30} {kind:6} {found['right']:6.1%} {found['wrong']:6.1%} {found['set']:6.1%} "
        f"{found['ends']:6.0f} {found['search']:6.0f} {found['confirm']:7.0f} {found['all']:6.0f}",
        flush=True,
    )
    return {"method": name, "noise": kind, **found}


if __name__ == "__main__":
    main()
