"""Submit the reference itself repeatedly: it must read 1.00x and never be proven faster.

    python benchmarks/judge/judge_aa.py [--verdicts 500] [--seed 0] [--busy 0] [--minutes 40]
                                  [--kinds suite,cpp,blocks] [--scale 0.5] [--out judge_aa.jsonl]

A verdict takes 1 to 20 s on two quiet Zen 4 cores, 9 in the median. Plan 75 minutes for 500, and
three times that beside --busy processes. Stop it when you like, by Ctrl-C or --minutes, and start
it again to go on.

Three kinds of problems take turns. `suite` is the training suite's references at `ci` sizes, as
Python kernels. `cpp` is shipped C++ kernels, each judged against a reference that calls the same
kernel. `blocks` is whole blocks of EfficientNet, ResNet and a transformer in KernelBench's form,
shrunk by --scale. --busy starts that many processes that compute all the time.

Each verdict is one line of --out. If --out exists, its verdicts are counted and not judged again.
A run that is stopped prints what it has.
The output has one row per kind; the last line is one JSON object with the number of `verdicts` that
have a ratio, how many were `proven`, their `median_ratio`, and `worst_low`, the highest lower end
of an interval. The exit code is 1 if more than 1 in 500 was proven, or if the median is more than
3 % from 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from judge_aa_references import SHIPPED, kernel_of, problem_of
from kept_rows import Row, interruptible, kept_rows

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.problems.suites import load_suite
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Verdict

Question = tuple[str, str, Problem, Kernel]
"""Kind, name, problem, and the reference as its kernel."""
BLOCKS = Path(__file__).parent / "blocks"
KINDS = ("suite", "cpp", "blocks")
BUSY = "while True: sum(range(100000))"
MOST_PROVEN, MOST_OFF = 1 / 500, 0.03


def questions(kind: str, scale: float) -> list[Question]:
    """Return every problem of a kind with its reference as the kernel."""
    if kind == "cpp":
        return [(kind, entry, problem_of(entry), kernel_of(entry)) for entry in SHIPPED]
    if kind == "blocks":
        problems = [load_problem(path, scale=scale) for path in sorted(BLOCKS.glob("*.py"))]
    else:
        problems = [replace(one.at("ci"), task="any") for one in load_suite("training")]
    return [(kind, one.name, one, built_in_kernel(one, "eager")) for one in problems]


def in_turn(kinds: Sequence[str], scale: float, seed: int) -> Iterator[Question]:
    """Yield one question of each kind in turn, without end; each kind's order is random."""
    rng = random.Random(seed)
    found = {kind: questions(kind, scale) for kind in kinds}
    left: dict[str, list[Question]] = {kind: [] for kind in kinds}
    while True:
        for kind in kinds:
            if not left[kind]:
                left[kind] = rng.sample(found[kind], len(found[kind]))
            yield left[kind].pop()


def row_of(kind: str, name: str, verdict: Verdict, took_s: float) -> Row:
    """Return a verdict as a line of the output."""
    ratio = verdict.speedup.vs_reference
    return {
        "kind": kind,
        "name": name,
        "status": verdict.status,
        "reason": verdict.reason,
        "ratio": ratio.ratio if ratio else None,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
        "took_s": round(took_s, 2),
    }


def summary(rows: Sequence[Row]) -> Row:
    """Summarise the proven verdicts and the ratios' distance from 1."""
    told = [row for row in rows if row["ratio"] is not None]
    ratios = [row["ratio"] for row in told]
    return {
        "verdicts": len(told),
        "proven": sum(row["status"] == "proven" for row in rows),
        "slower": sum("but slower" in row["reason"] for row in rows),
        "median_ratio": round(statistics.median(ratios), 4) if ratios else None,
        "worst_low": round(max(row["low"] for row in told), 4) if told else None,
        "without_ratio": len(rows) - len(told),
        "median_s": round(statistics.median(row["took_s"] for row in rows), 1) if rows else None,
    }


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run this many compute-bound processes in the background."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def judge_all(asked: argparse.Namespace, rows: list[Row], keep: Callable[[Row], None]) -> None:
    """Judge until there are enough verdicts or the time is up; keep a row of each."""
    deadline = time.monotonic() + 60 * asked.minutes
    coming = in_turn(asked.kinds.split(","), asked.scale, asked.seed)
    for _ in rows:  # judged by an earlier run
        next(coming)
    with KernelJudge() as judge:
        while len(rows) < asked.verdicts and time.monotonic() < deadline:
            kind, name, problem, kernel = next(coming)
            began = time.monotonic()
            verdict = judge.judge(kernel, problem, time_limit_s=asked.limit_s)
            keep(row_of(kind, name, verdict, time.monotonic() - began))
            shown = rows[-1]["ratio"]
            words = f"{shown:.2f}x" if shown else verdict.reason[:60]
            print(
                f"{len(rows)}/{asked.verdicts} {rows[-1]['took_s']:5.1f} s "
                f"{verdict.status:<10} {words:<8} {kind} {name}",
                file=sys.stderr,
                flush=True,
            )


def main() -> None:
    """Read the arguments, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verdicts", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute all the time")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="scale of the blocks")
    parser.add_argument("--limit-s", type=float, default=120.0, help="time limit of one verdict")
    parser.add_argument(
        "--out", type=Path, default=None, help="output file; an existing one is continued"
    )
    asked = parser.parse_args()
    out = asked.out or Path(f"judge_aa_{asked.seed}_{asked.busy}.jsonl")
    with kept_rows(out) as (rows, keep), interruptible(), busy(asked.busy):
        judge_all(asked, rows, keep)
    for kind in KINDS:
        print(json.dumps({"kind": kind, **summary([row for row in rows if row["kind"] == kind])}))
    statuses = dict(Counter(row["status"] for row in rows))
    whole = summary(rows)
    print(json.dumps({**whole, "busy": asked.busy, "statuses": statuses}))
    off = whole["median_ratio"] is None or abs(whole["median_ratio"] - 1) > MOST_OFF
    sys.exit(1 if off or whole["proven"] > MOST_PROVEN * max(500, whole["verdicts"]) else 0)


if __name__ == "__main__":
    main()
