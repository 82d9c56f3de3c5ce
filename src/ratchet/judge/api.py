"""Problems and kernels by path, name or object, and `ratchet.judge.screen` for many kernels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.case import Scale
from ratchet.judge.problems.problem import JUDGED_AT, LARGEST_FIRST, Problem, Tier
from ratchet.judge.terms import Terms, parse_threads

if TYPE_CHECKING:
    from ratchet.judge.problems.problem_file import Describe
    from ratchet.judge.verdict import Screening

SCREEN_LIMIT_S = 120.0
UNLIMITED = Terms(time_limit_s=180.0)
"""Terms of a call that only reads a problem: torch may be imported first."""


def screen(
    problem: Problem | str | os.PathLike[str],
    kernels: Sequence[Kernel | str | os.PathLike[str]],
    *,
    best: Kernel | str | os.PathLike[str] | None = None,
    entry: str | None = None,
    tier: Tier | None = None,
    scale: Scale = "auto",
    time_limit_s: float | str = SCREEN_LIMIT_S,
    threads: int | None = None,
    seed: int | None = None,
    device: str = "auto",
) -> tuple[Screening, ...]:
    """Estimate which of many kernels are worth a verdict; return one answer each, in order.

    Nothing is stored. The kernels are checked on a few secret cases, and timed together with `best`
    and the reference, on the device that `ratchet.judge` would take. An answer is at best
    `screened`, an estimate: only `ratchet.judge` proves. The arguments are those of
    `ratchet.judge`; docs/reference/judge.md says what screening leaves out. Raises RatchetError: a
    file is unreadable or invalid, a name unknown, or an argument out of range.
    """
    from ratchet.judge.trial.kernel_trial import KernelJudge

    terms = Terms.of(
        entry=entry, tier=tier, scale=scale, time_limit_s=time_limit_s, seed=seed, device=device
    )
    with KernelJudge(threads=parse_threads(threads)) as court:
        on_gpu = terms.device.startswith("cuda")
        asked = as_problem(problem, terms, describe=court.describe, on_gpu=on_gpu)
        given = [as_kernel(one, asked, entry=entry) for one in kernels]
        standing = None if best is None else as_kernel(best, asked, entry=entry)
        return court.screen(
            asked,
            given,
            best=standing,
            time_limit_s=terms.time_limit_s,
            seed=seed,
            device=terms.device,
        )


def as_problem(
    problem: Problem | str | os.PathLike[str],
    terms: Terms = UNLIMITED,
    *,
    describe: Describe | None = None,
    on_gpu: bool = False,
) -> Problem:
    """Return the problem of a file, a name or a Problem, with the wanted task.

    Its cases are those of the tier of `terms`. Without one they are those of the default tier, of
    cores or of a GPU (`on_gpu`), or all cases of a Problem. `describe` runs a file in a process of
    a judge (`KernelJudge.describe`), within the time limit.
    """
    from ratchet.judge.problems.problem_file import load_problem, with_text

    tiers = None if terms.tier is None else (terms.tier,)
    if isinstance(problem, Problem):
        found = with_text(problem)
        if tiers and found.model is None:
            found = found.at(*tiers)
    elif isinstance(problem, (str, os.PathLike)):
        found = load_problem(
            problem,
            scale=terms.scale,
            tiers=tiers or (LARGEST_FIRST if on_gpu else JUDGED_AT),
            time_limit_s=terms.time_limit_s,
            describe=describe,
        )
    else:
        raise KernelError(f"{problem!r:.60} is not a problem: give a file, a name or a Problem")
    if terms.frozen_weights and not found.fault:
        if found.model is None:
            raise KernelError(
                f"problem {found.name!r} has no model whose weights could be frozen: leave "
                "--frozen-weights out, which is for problems in KernelBench's form"
            )
        found = replace(found, model=replace(found.model, frozen=True))
    return found if terms.task is None else replace(found, task=terms.task)


def check_texts(
    problem: Problem | str | os.PathLike[str],
    kernel: Kernel | str | os.PathLike[str],
    *,
    entry: str | None = None,
    run_here: bool = False,
) -> Kernel | None:
    """Raise the KernelErrors that names and files show before anything is loaded or run.

    With `run_here`, a kernel that needs a GPU is one of them on a machine without. Returns the
    kernel of a file. It has no entry yet if only its problem names one.
    """
    from ratchet.judge.problems.problem_file import holds_model, problem_name
    from ratchet.judge.sandbox.accelerator import all_nodes, needed_gpu

    if not isinstance(problem, (str, os.PathLike)) or not isinstance(kernel, (str, os.PathLike)):
        return None
    name = problem_name(problem)
    found = _loaded(kernel, name, entry, called=True, of_model=holds_model(problem))
    if run_here and not all_nodes() and (why := needed_gpu(found)):
        raise KernelError(why)
    return found


def as_kernel(
    kernel: Kernel | str | os.PathLike[str], problem: Problem, *, entry: str | None = None
) -> Kernel:
    """Return the kernel of a file; its entry is the function with the problem's name.

    If that name is no identifier, a file's only function may have any name.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, (str, os.PathLike)):
        raise KernelError(f"{kernel!r:.60} is not a kernel: give a file or a Kernel")
    of_model = problem.model is not None
    return _loaded(kernel, problem.name, entry, called=not problem.fault, of_model=of_model)


def _loaded(
    kernel: str | os.PathLike[str],
    problem: str | None,
    entry: str | None,
    *,
    called: bool,
    of_model: bool,
) -> Kernel:
    """Return the kernel of a file for the problem of that name, which its text may not tell."""
    from ratchet.judge.kernels.kernel_file import load_kernel
    from ratchet.judge.problems.problem_file import default_entry

    wanted = entry or (default_entry(problem) if problem else None)
    binds = Path(kernel).suffix in (".hip", ".cu")  # an extension binds any name
    return load_kernel(
        kernel,
        entry=wanted,
        called=called and wanted is not None,
        or_only_one=entry is None and (of_model or wanted != problem or binds),
        of_model=of_model,
        named=entry is not None,
    )
