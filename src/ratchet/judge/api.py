"""`ratchet.judge(kernel, problem)`: one verdict from a path or a name, as a library call."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ratchet.kernels.kernel import Kernel
from ratchet.kernels.problem import Problem, Task, Tier

if TYPE_CHECKING:
    from ratchet.judge.verdict import Verdict

TIME_LIMIT_S = 60.0
Scale = float | Literal["auto"] | None


def judge(
    kernel: Kernel | str | os.PathLike[str],
    problem: Problem | str | os.PathLike[str],
    *,
    entry: str | None = None,
    tier: Tier = "cpu",
    scale: Scale = "auto",
    task: Task | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    against_compile: bool = False,
    threads: int | None = None,
    seed: int | None = None,
    device: str = "auto",
) -> Verdict:
    """Judge one kernel on one problem; nothing is stored.

    `kernel` is a file (.cpp, .py, .hip) or a Kernel; `problem` a file in KernelBench's form or
    ours, the name of a suite's problem, or a Problem. `tier` picks the cases of a problem that is
    named or read; a Problem is judged on the cases that it has. `entry` is the function to call
    where the file does not say it by its problem's name. `scale` shrinks a KernelBench problem.
    `time_limit_s` is for reading a problem's file and judging together.
    `task` says whether the work must run in the kernel's own code, where it is not to be as the
    problem says. `device` is `cpu`, `cuda` or `cuda:N` (ROCm too): by default a kernel in Triton
    takes a GPU where there is one, and every other the machine's cores.

    Raises:
        RatchetError: a file that cannot be read or is not what it should be, an unknown name.
    """
    from ratchet.judge.kernel_trial import KernelJudge

    began = time.monotonic()
    asked = as_problem(problem, tier=tier, scale=scale, task=task, time_limit_s=time_limit_s)
    with KernelJudge(threads=threads) as court:
        return court.judge(
            as_kernel(kernel, asked, entry=entry),
            asked,
            time_limit_s=time_limit_s,
            spent_s=time.monotonic() - began,
            seed=seed,
            against_compile=against_compile,
            device=device,
        )


def as_problem(
    problem: Problem | str | os.PathLike[str],
    *,
    tier: Tier = "cpu",
    scale: Scale = "auto",
    task: Task | None = None,
    time_limit_s: float | None = None,
) -> Problem:
    """The problem of a file or a name, a Problem as it is; with the task that is asked for."""
    if not isinstance(problem, Problem):
        from ratchet.kernels.problem_file import LOADING_LIMIT_S, load_problem

        limit_s = LOADING_LIMIT_S if time_limit_s is None else time_limit_s
        problem = load_problem(os.fspath(problem), scale=scale, tier=tier, time_limit_s=limit_s)
    return problem if task is None else replace(problem, task=task)


def as_kernel(
    kernel: Kernel | str | os.PathLike[str], problem: Problem, *, entry: str | None = None
) -> Kernel:
    """The kernel of a file; its entry is the problem's name where the file holds one of it.

    Where that name is no identifier, a file's only function may have any name.
    """
    if isinstance(kernel, Kernel):
        return kernel
    from ratchet.kernels.problem_file import load_kernel

    wanted = entry or default_entry(problem)
    made_up = entry is None and wanted != problem.name
    return load_kernel(Path(kernel), entry=wanted, called=not problem.fault, or_only_one=made_up)


def default_entry(problem: Problem) -> str:
    """What a kernel of this problem is called where nobody says otherwise.

    A name that is no identifier is made one: `1_relu-like` is `kernel_1_relu_like`.
    """
    word = re.sub(r"\W", "_", problem.name)
    return word if word.isidentifier() else f"kernel_{word}"
