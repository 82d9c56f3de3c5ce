"""Judge KernelBench's kinds of problems at `--scale auto`, with eager as the candidate.

    python benchmarks/judge/judge_kernelbench.py [--only NAME ...] [--busy 2]

Every verdict should be `correct` and take seconds. --busy starts that many processes that compute
all the time. Prints one line for each problem; the last line is JSON. The exit code is 0 if all
verdicts are `correct`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from judge_aa import busy
from kernelbench_kinds import KINDS

from ratchet.judge.api import as_problem
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.terms import Terms
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Verdict


def main() -> int:
    """Judge the problems in turn and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--busy", type=int, default=0)
    asked, rows = parser.parse_args(), []
    for name in asked.only:
        began = time.monotonic()
        with busy(asked.busy):
            verdict = _verdict(name)
        took_s = time.monotonic() - began
        rows.append({"name": name, "status": verdict.status, "took_s": round(took_s, 1)})
        print(f"{name:28} {verdict.status:11} {took_s:6.1f} s  {verdict.reason}", flush=True)
    slowest = max(rows, key=lambda row: row["took_s"])
    counts = Counter(str(row["status"]) for row in rows)
    untrue = [row["name"] for row in rows if row["status"] != "correct"]
    report = {"problems": len(rows), "statuses": counts, "not_correct": untrue, "slowest": slowest}
    print(json.dumps({**report, "rows": rows}))
    return 1 if untrue else 0


def _verdict(name: str) -> Verdict:
    """Judge a problem's own reference in a fresh judge."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, KernelJudge() as judge:
        judge.begin("torch")
        path = Path(folder) / f"{name}.py"
        path.write_text(KINDS[name].text())
        problem = as_problem(path, Terms(), describe=judge.describe)
        eager, spent_s = built_in_kernel(problem, "eager"), time.monotonic() - began
        return judge.judge(eager, problem, time_limit_s=Terms().time_limit_s, spent_s=spent_s)


if __name__ == "__main__":
    sys.exit(main())
