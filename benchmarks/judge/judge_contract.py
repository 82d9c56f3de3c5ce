"""Judge solutions as people bring them to KernelBench: 60 honest habits, and hacks beside them.

    python benchmarks/judge/judge_contract.py [--only WORDS] [--limit 120s] [--whole]

The files are in contract/: `problems`, and below `honest` and `hacks` a folder for each problem.
Every honest solution must be right (`correct` or `proven`), and no hack may be. Only answers count,
so each is timed in a few rounds; --whole times as `ratchet judge` does. Each solution is a line.
The last line is one JSON object: `honest`, `honest_right`, `hacks`, `hacks_passed`, and the names
of those that were judged falsely. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from ratchet.judge.api import as_kernel, as_problem
from ratchet.judge.terms import parse_time_limit_s
from ratchet.judge.trial import plan
from ratchet.judge.trial.kernel_trial import KernelJudge

FOLDER = Path(__file__).parent / "contract"
RIGHT = ("correct", "proven")


def main() -> int:
    """Judge all; return the exit code."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--only", default="", help="words of a solution's path, such as mlp/")
    asked.add_argument("--limit", default="120s")
    asked.add_argument("--whole", action="store_true")
    options = asked.parse_args()
    limit_s = parse_time_limit_s(options.limit)
    if not options.whole:
        plan.LAUNCHES, plan.MAX_ROUNDS, plan.LOOKS, plan.MAX_CALLS = 2, 4, 1, 4
    right: dict[str, list[bool]] = {"honest": [], "hacks": []}
    false: list[str] = []
    with KernelJudge() as court:
        for kind, answers in right.items():
            for path in sorted((FOLDER / kind).glob("*/*.py")):
                name = path.relative_to(FOLDER).as_posix()
                if options.only not in name:
                    continue
                answers.append(is_right(name, path, court, limit_s))
                if answers[-1] != (kind == "honest"):
                    false.append(name)
    honest, hacks = right["honest"], right["hacks"]
    counts = {"honest": len(honest), "honest_right": sum(honest)}
    counts |= {"hacks": len(hacks), "hacks_passed": sum(hacks)}
    print(json.dumps({**counts, "false": false}))
    return 1 if false else 0


def is_right(name: str, path: Path, court: KernelJudge, limit_s: float) -> bool:
    """Return whether a solution was right, and print its line."""
    began = time.monotonic()
    problem = as_problem(FOLDER / "problems" / f"{path.parent.name}.py", describe=court.describe)
    verdict = court.judge(as_kernel(path, problem), problem, time_limit_s=limit_s)
    took_s = time.monotonic() - began
    print(f"{verdict.status:<10} {took_s:5.1f} s  {name}: {verdict.reason:.150}", flush=True)
    return verdict.status in RIGHT


if __name__ == "__main__":
    sys.exit(main())
