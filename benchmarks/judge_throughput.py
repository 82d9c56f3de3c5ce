"""How fast the judge is: one verdict on a small C++ kernel, verdicts a minute, its memory.

    python benchmarks/judge_throughput.py [--verdicts 30]

Every kernel is compiled anew (the sandbox has no compile cache) and has a source of its own.
`verdict_s` is from source to answer with the reference worker already running, each verdict by
itself, as a median with the shortest and the longest; `first_verdict_s` also starts that worker,
which imports torch. `verdicts_per_minute` is of a second pass over the same problems, as `ratchet
judge --suite` makes it: two kernels' compilers share the cores. `judge_peak_mb` is the peak
resident memory of the judging process alone, `reference_peak_mb` that of its reference worker,
which stands beside it; candidates' processes are in neither. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path

from honest_kernels import honest_kernels

from ratchet.devices.fingerprint import software
from ratchet.devices.probe import probe
from ratchet.judge.kernel_trial import KernelJudge
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.problem import Problem


def small_kernels(count: int) -> list[tuple[Kernel, Problem]]:
    """Honest C++ kernels of one loop each, in turn, every one with a text of its own."""
    found = [one for one in honest_kernels(with_python=False) if len(one.kernel.source) < 6000]
    chosen = []
    for index in range(count):
        honest = found[index * 7 % len(found)]
        kernel = honest.kernel
        own = Kernel(
            name=kernel.name,
            language=kernel.language,
            source=f"{kernel.source}\n// {index} {time.time_ns()}\n",
            entry=kernel.entry,
            schedule=kernel.schedule,
        )
        chosen.append((own, replace(honest.problem, task="any")))  # as a user's problem is
    return chosen


def peak_mb(pid: int | str) -> float:
    """The peak resident memory of a process, in 10^6 bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 / 1e6 if found else float("nan")


def main() -> None:
    """Read the arguments, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verdicts", type=int, default=30)
    asked = parser.parse_args()
    times_s, statuses = [], []
    with KernelJudge() as judge:
        for kernel, problem in small_kernels(asked.verdicts + 1):
            began = time.perf_counter()
            verdict = judge.judge(kernel, problem)
            times_s.append(time.perf_counter() - began)
            statuses.append(verdict.status)
            print(f"{times_s[-1]:.2f} s  {verdict.status:<10} {kernel.name}", flush=True)
        suite = small_kernels(asked.verdicts)
        followers = [kernel for kernel, _ in suite[1:]]
        began = time.perf_counter()
        for (kernel, problem), then in zip(suite, [*followers, None], strict=True):
            statuses.append(judge.judge(kernel, problem, then=then).status)
        suite_s = time.perf_counter() - began
        assert judge.reference_pid is not None
        reference_mb = peak_mb(judge.reference_pid)
    warm = times_s[1:]
    device, versions = probe("cpu"), software()
    answer = {
        "verdict_s": round(statistics.median(warm), 3),
        "verdict_s_low": round(min(warm), 3),
        "verdict_s_high": round(max(warm), 3),
        "first_verdict_s": round(times_s[0], 3),
        "verdicts_per_minute": round(60 * len(suite) / suite_s, 1),
        "verdicts_per_minute_one_by_one": round(60 * len(warm) / sum(warm), 1),
        "judge_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1),
        "reference_peak_mb": round(reference_mb, 1),
        "verdicts": len(warm),
        "not_right": sum(status not in ("proven", "correct") for status in statuses),
        "hardware": f"{device.model}, {device.threads} threads",
        "versions": asdict(versions),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
