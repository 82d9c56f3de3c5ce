"""Judge every honest kernel several times: none may be called wrong or cheating.

    python benchmarks/judge/judge_honest.py [--times 5] [--only WORDS] [--limit-s 60] [--no-python]
                                      [--looks 3]

Prints each verdict that is neither `proven` nor `correct` as it arrives, then a table. The last
line is one JSON object. The exit code is 1 if an honest kernel was called wrong or cheating.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from honest_kernels import Honest, honest_kernels

from ratchet.judge.trial import plan
from ratchet.judge.trial.kernel_trial import KernelJudge

STATUSES = (
    *("proven", "correct", "wrong", "cheating"),
    *("crashed", "timed_out", "refused", "unmeasured"),
)


def judge_all(kernels: list[Honest], times: int, limit_s: float) -> dict[str, Counter[str]]:
    """Return the statuses of each kernel, by its name."""
    counts = {honest.name: Counter[str]() for honest in kernels}
    with KernelJudge() as judge:
        for _ in range(times):
            for honest, following in zip(kernels, [*kernels[1:], None], strict=True):
                verdict = judge.judge(
                    honest.kernel,
                    honest.problem,
                    time_limit_s=limit_s,
                    then=following and following.kernel,
                )
                counts[honest.name][verdict.status] += 1
                if verdict.status not in ("proven", "correct"):
                    print(f"{honest.name}: {verdict.status}, {verdict.reason}", flush=True)
    return counts


def table(counts: dict[str, Counter[str]]) -> str:
    """Return one line for each group of kernels (the words before the first comma or colon)."""
    groups: dict[str, Counter[str]] = {}
    for name, found in counts.items():
        group = name.split(",")[0].split(":")[0].split(" of ")[0]
        groups.setdefault(group, Counter()).update(found)
    head = f"{'kernels':<24}" + "".join(f"{status:>12}" for status in STATUSES)
    lines = [
        f"{group:<24}" + "".join(f"{found[status]:>12}" for status in STATUSES)
        for group, found in groups.items()
    ]
    return "\n".join([head, *lines])


def main() -> None:
    """Read the arguments, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="judge only kernels whose name contains these words"
    )
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--no-python", action="store_true", help="leave out the Python kernels")
    parser.add_argument(
        "--looks",
        type=int,
        default=plan.LOOKS,
        help="looks at a kernel's time; fewer leave more undecided, with equal checks of answers",
    )
    asked = parser.parse_args()
    plan.LOOKS = asked.looks
    kernels = honest_kernels(with_python=not asked.no_python)
    kernels = [one for one in kernels if asked.only in one.name]
    began = time.monotonic()
    counts = judge_all(kernels, asked.times, asked.limit_s)
    total: Counter[str] = sum(counts.values(), Counter())
    print(table(counts))
    answer = {
        "kernels": len(counts),
        "verdicts": total.total(),
        **{status: total[status] for status in STATUSES},
        "duration_s": round(time.monotonic() - began, 1),
    }
    print(json.dumps(answer))
    sys.exit(1 if total["wrong"] or total["cheating"] else 0)


if __name__ == "__main__":
    main()
