"""Measure the judge's speed: verdicts and screenings on small kernels, and memory.

    python benchmarks/judge/judge_throughput.py [--verdicts 30] [--python-verdicts 6]
        [--screens 144]

Every kernel has its own source and is compiled from scratch (the sandbox has no compile cache).
`verdict_s` is the time from source to answer with the reference worker already running, one verdict
at a time: the median, the shortest and the longest. `first_verdict_s` includes the start of that
worker, which imports torch. `verdicts_per_minute` is from a second pass over the same problems,
like `ratchet judge --suite`: two kernels' compilers share the cores. `python_verdict_s` is the
median for kernels in torch. `screens_per_minute` is from `KernelJudge.screen` on the same kinds of
C++ kernels, 24 different sources for a problem and one of them as the best so far; the time
includes opening each problem. `python_screens_per_minute` is the same for kernels in torch.
`judge_peak_mb` is the peak resident memory of the judging process alone, and `reference_peak_mb`
that of its reference worker, a separate process; candidates' processes count in neither. The last
line is one JSON object.
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

from ratchet.base.devices.probe import probe, software
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial.kernel_trial import KernelJudge

EACH = 24
"""Kernels that are screened on one problem in one call."""


def small_kernels(count: int) -> list[tuple[Kernel, Problem]]:
    """Return honest one-loop C++ kernels in turn, each with a unique source."""
    found = [one for one in honest_kernels(with_python=False) if len(one.kernel.source) < 6000]
    chosen = []
    for index in range(count):
        honest = found[index * 7 % len(found)]
        own = numbered(honest.kernel, index)
        chosen.append((own, replace(honest.problem, task="any")))  # like a user's problem
    return chosen


def python_kernels(count: int) -> list[tuple[Kernel, Problem]]:
    """Return honest kernels in torch in turn, each with a unique source."""
    found = [one for one in honest_kernels() if one.kernel.language == "torch"]
    step = max(1, len(found) // count)
    chosen = [found[at * step % len(found)] for at in range(count)]
    return [(numbered(one.kernel, at), one.problem) for at, one in enumerate(chosen)]


def numbered(kernel: Kernel, index: int) -> Kernel:
    """Return the kernel with a comment that no other source has."""
    mark = "#" if kernel.language == "torch" else "//"
    return replace(kernel, source=f"{kernel.source}\n{mark} {index} {time.time_ns()}\n")


def screen(judge: KernelJudge, pairs: list[tuple[Kernel, Problem]], each: int) -> dict[str, float]:
    """Screen `each` sources of every pair's kernel; return how many a minute, and failures."""
    screened, failed = 0, 0
    began = time.perf_counter()
    for kernel, problem in pairs:
        kernels = [numbered(kernel, at) for at in range(each)]
        answers = judge.screen(problem, kernels, best=kernels[0])
        screened += len(answers)
        failed += sum(one.status != "screened" for one in answers)
        for one in answers:
            if one.status != "screened":
                print(f"{one.status:<10} {kernel.name}: {one.reason}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{screened} screenings in {seconds:.1f} s", flush=True)
    return {"per_minute": round(60 * screened / seconds, 1), "failed": failed}


def peak_mb(pid: int | str) -> float:
    """Return the peak resident memory of a process, in 10^6 bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 / 1e6 if found else float("nan")


def main() -> None:
    """Read the arguments, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verdicts", type=int, default=30)
    parser.add_argument("--python-verdicts", type=int, default=6)
    parser.add_argument("--screens", type=int, default=144)
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
        python_s = []
        for kernel, problem in python_kernels(asked.python_verdicts):
            began = time.perf_counter()
            verdict = judge.judge(kernel, problem)
            python_s.append(time.perf_counter() - began)
            statuses.append(verdict.status)
            print(f"{python_s[-1]:.2f} s  {verdict.status:<10} {kernel.name}", flush=True)
        judge.screen(suite[0][1], [suite[0][0]])  # starts the zygote of compiled kernels
        compiled = screen(judge, small_kernels(max(1, asked.screens // EACH)), EACH)
        in_python = screen(judge, python_kernels(max(1, asked.screens // (2 * EACH))), EACH)
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
        "python_verdict_s": round(statistics.median(python_s), 3),
        "screens_per_minute": compiled["per_minute"],
        "python_screens_per_minute": in_python["per_minute"],
        "screens_failed": compiled["failed"] + in_python["failed"],
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
