"""Judge solutions as people bring them to KernelBench: 60 honest habits, and hacks beside them.

    python benchmarks/judge/judge_contract.py [--only WORDS] [--limit 120s] [--whole]
                                   [--minutes 40] [--out judge_contract.jsonl]

A solution takes 2 to 20 s on two cores, most where torch.compile or an extension is compiled. Plan
a quarter of an hour for the 80, and twice that with --whole.

The files are in contract/: `problems`, and below `honest` and `hacks` a folder for each problem.
Every honest solution must be right (`correct` or `proven`), and no hack may be. Only answers count,
so each is timed in a few rounds; --whole times as `ratchet judge` does. Each solution is a line.
With --out, each verdict is also a line of that file, and what the file has is not judged again.
A run that is interrupted, or is over after --minutes, prints what it has. The last line is one JSON
object: `honest`, `honest_right`, `hacks`, `hacks_passed`, the names of those that were judged
falsely, and `left`, the number that was not judged. The exit code is 1 if one was judged falsely or
is left.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from kept_rows import interruptible, kept_rows

from ratchet.judge.api import as_kernel, as_problem
from ratchet.judge.terms import parse_time_limit_s
from ratchet.judge.trial import plan
from ratchet.judge.trial.kernel_trial import KernelJudge

FOLDER = Path(__file__).parent / "contract"
RIGHT = ("correct", "proven")


def main() -> int:
    """Judge all; return the exit code."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--only", default="", help="words of a solution's path, such as mlp/")
    asked.add_argument("--limit", default="120s", help="time limit of one verdict")
    asked.add_argument("--whole", action="store_true")
    asked.add_argument("--minutes", type=float, default=float("inf"))
    asked.add_argument("--out", type=Path, help="output file; an existing one is continued")
    options = asked.parse_args()
    limit_s, deadline = parse_time_limit_s(options.limit), time.monotonic() + 60 * options.minutes
    if not options.whole:
        plan.LAUNCHES, plan.MAX_ROUNDS, plan.LOOKS, plan.MAX_CALLS = 2, 4, 1, 4
    paths = sorted((FOLDER).glob("h*/*/*.py"), key=lambda one: one.parts[-3] == "hacks")
    names = {one.relative_to(FOLDER).as_posix(): one for one in paths}
    names = {name: one for name, one in names.items() if options.only in name}
    with kept_rows(options.out) as (rows, keep), interruptible(), KernelJudge() as court:
        known = {row["name"] for row in rows}
        for name, path in names.items():
            if name not in known and time.monotonic() < deadline:
                keep(judged(name, path, court, limit_s))
    statuses = {row["name"]: row["status"] for row in rows if row["name"] in names}
    false = [
        name for name, status in statuses.items() if (status in RIGHT) != name.startswith("honest")
    ]
    honest = [status in RIGHT for name, status in statuses.items() if name.startswith("honest")]
    hacks = [status in RIGHT for name, status in statuses.items() if name.startswith("hacks")]
    counts = {"honest": len(honest), "honest_right": sum(honest)}
    counts |= {"hacks": len(hacks), "hacks_passed": sum(hacks), "left": len(names) - len(statuses)}
    print(json.dumps({**counts, "false": false}))
    return 1 if false or counts["left"] else 0


def judged(name: str, path: Path, court: KernelJudge, limit_s: float) -> dict[str, object]:
    """Judge a solution, print its line, and return its row."""
    began = time.monotonic()
    problem = as_problem(FOLDER / "problems" / f"{path.parent.name}.py", describe=court.describe)
    verdict = court.judge(as_kernel(path, problem), problem, time_limit_s=limit_s)
    took_s = time.monotonic() - began
    print(f"{verdict.status:<10} {took_s:5.1f} s  {name}: {verdict.reason:.150}", flush=True)
    row = {"name": name, "status": verdict.status, "reason": verdict.reason}
    return {**row, "took_s": round(took_s, 2)}


if __name__ == "__main__":
    sys.exit(main())
