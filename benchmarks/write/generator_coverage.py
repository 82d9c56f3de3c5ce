"""List which of a suite's problems the generator takes, and which op stops each other one.

    python benchmarks/write/generator_coverage.py [--suite training] [--like PATTERN] [--compile]
        [--language cpp|triton] [--targets gfx942,sm_90]

The last line is JSON: `problems`, `covered`, `uncovered_ops`. `--compile` also compiles each
kernel's default schedule (it is not run): Triton for each of the targets.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
from collections import Counter

from ratchet.amd.profile import inspect_kernel
from ratchet.base.errors import KernelError, RatchetError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages.cpp import compile_kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import load_suite
from ratchet.write.form import UnsupportedOp
from ratchet.write.generator import space_for


def main() -> None:
    """Print a line for each problem, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="training")
    parser.add_argument("--like", default="*")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--language", choices=("cpp", "triton"), default="cpp")
    parser.add_argument("--targets", default="gfx90a,gfx942,gfx950,gfx1100,gfx1201,sm_90")
    asked = parser.parse_args()
    problems = [one for one in load_suite(asked.suite) if fnmatch.fnmatch(one.name, asked.like)]
    covered = 0
    stopped: Counter[str] = Counter()
    for problem in problems:
        began = time.monotonic()
        try:
            small = problem.at("cpu", "ci")
            space = space_for(small, device="cpu" if asked.language == "cpp" else "cuda")
            kernel = space.kernel(space.first()[0])
            if asked.compile:
                compiled(kernel, small, asked.targets.split(","))
            covered += 1
            said = "covered"
        except UnsupportedOp as error:
            stopped[error.op] += 1
            said = f"{error.op}: {error}"
        except RatchetError as error:
            stopped["does not compile"] += 1
            said = str(error)[:300]
        print(f"{problem.name:40s} {time.monotonic() - began:5.1f} s  {said}", flush=True)
    answer = {
        "problems": len(problems),
        "covered": covered,
        "uncovered_ops": dict(stopped.most_common()),
    }
    print(json.dumps(answer))


def compiled(kernel: Kernel, problem: Problem, targets: list[str]) -> None:
    """Compile a kernel; a KernelError says what went wrong, and where."""
    if kernel.language == "cpp":
        compile_kernel(kernel)
        return
    found = inspect_kernel(kernel, problem, targets)["targets"]
    wrong = [f"{name}: {one['error']}" for name, one in found.items() if one["error"]]
    if wrong:
        raise KernelError("; ".join(wrong))


if __name__ == "__main__":
    main()
