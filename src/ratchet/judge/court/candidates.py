"""Candidates for a suite: a shipped library, a folder of kernels, eager torch, torch.compile."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ratchet.base.errors import RatchetError
from ratchet.base.files import why_not_folder
from ratchet.judge.api import as_kernel, as_problem
from ratchet.judge.court.suite import Asked, Question, Suite
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.options import Scale
from ratchet.judge.problems.problem import Problem, Tier
from ratchet.judge.problems.problem_file import Describe

LIBRARIES = ("library", "library-triton")
BUILT_IN = (*LIBRARIES, "eager", "torch.compile")
LANGUAGE_FILES = (".cpp", ".cc", ".cxx", ".py", ".hip")

Find = Callable[[str, Problem], Asked]
"""Find the kernel for the named problem, if any; also return the problem to judge."""


def training_suite(name: str, *, tier: Tier, candidate: str) -> Suite:
    """Return a shipped suite by name.

    Raises:
        RatchetError: there is no such suite or candidate.
    """
    from ratchet.judge.problems.suites import load_suite

    find = find_kernels(candidate)

    def question(problem: Problem) -> Question:
        return Question(name=problem.name, read=lambda _: find(problem.name, problem.at(tier)))

    return Suite(
        name=name,
        candidate=candidate,
        tier=tier,
        questions=tuple(question(problem) for problem in load_suite(name)),
    )


def kernelbench_suite(
    folder: Path,
    *,
    level: int,
    scale: Scale,
    candidate: str,
    time_limit_s: float | None = None,
    frozen_weights: bool = False,
) -> Suite:
    """Return one level of a clone of KernelBench in any folder.

    `time_limit_s` is the limit for reading one problem. With `frozen_weights` its models keep the
    weights that their constructors draw.

    Raises:
        RatchetError: there is no such level or candidate.
    """
    if candidate in LIBRARIES:
        raise RatchetError(
            "the library has no kernels for KernelBench: give --candidate torch.compile, eager or "
            "a folder of kernels"
        )
    find = find_kernels(candidate, level=level)

    def question(path: Path) -> Question:
        def read(describe: Describe) -> Asked:
            problem = as_problem(
                path,
                scale=scale,
                time_limit_s=time_limit_s,
                describe=describe,
                frozen_weights=frozen_weights,
            )
            return find(path.stem, problem)

        return Question(name=path.stem, read=read)

    paths = sorted(level_folder(folder, level).glob("*.py"), key=_order)
    return Suite(
        name=f"KernelBench level {level}",
        candidate=candidate,
        tier="cpu" if scale is None else f"scale {scale}",
        questions=tuple(question(path) for path in paths if path.stem != "__init__"),
    )


def level_folder(folder: Path, level: int) -> Path:
    """Return the folder of a level's problems, in a clone or in a copy of its inner folder."""
    if why := why_not_folder(folder):
        raise RatchetError(f"{str(folder)!r} {why}: give a clone of KernelBench")
    places = (folder / "KernelBench", folder)
    for place in places:
        found = place / f"level{level}"
        if found.is_dir() and any(found.glob("*.py")):
            return found
    levels = sorted({one.name for place in places for one in place.glob("level[0-9]*")})
    known = f"it has {', '.join(levels)}" if levels else "give a clone of KernelBench"
    raise RatchetError(f"{str(folder)!r} has no problems of level {level}: {known}")


def _order(path: Path) -> tuple[int, str]:
    """Sort by the number at the start of the name, so that 9_ comes before 10_."""
    number = re.match(r"\d+", path.stem)
    return (int(number[0]) if number else 0, path.stem)


def find_kernels(candidate: str, *, level: int | None = None) -> Find:
    """Return what finds the kernels of a built-in candidate or of a folder.

    Raises:
        RatchetError: `candidate` is neither built in nor a folder.
    """
    if candidate in LIBRARIES:
        return _of_library(candidate)
    if candidate in ("eager", "torch.compile"):
        return _yardstick(candidate)
    folder = Path(candidate)
    if not folder.is_dir():
        raise RatchetError(
            f"candidate {candidate!r} is neither a folder nor one of {', '.join(BUILT_IN)}"
        )
    return _of_folder(folder, level)


def _of_library(candidate: str) -> Find:
    kernels: dict[str, Kernel] = {}

    def find(name: str, problem: Problem) -> Asked:
        from ratchet.base.devices.probe import best_isa
        from ratchet.judge.kernels.library import kernels_for
        from ratchet.judge.kernels.library.sources import ANY_GPU

        if not kernels:
            target = ANY_GPU if candidate == "library-triton" else best_isa()
            kernels.update(kernels_for(target))
        return problem, kernels.get(name)

    return find


def _yardstick(candidate: str) -> Find:
    """Answer with torch itself, judged on results and time but not on whose code did the work."""

    def find(_: str, problem: Problem) -> Asked:
        from ratchet.judge.kernels.kernel_file import built_in_kernel

        return replace(problem, task="any"), built_in_kernel(problem, candidate)

    return find


def _of_folder(folder: Path, level: int | None) -> Find:
    places = [folder / f"level{level}", folder] if level is not None else [folder]

    def find(name: str, problem: Problem) -> Asked:
        for place in places:
            for ending in LANGUAGE_FILES:
                path = place / f"{name}{ending}"
                if path.exists():
                    return problem, as_kernel(path, problem)
        return problem, None

    return find
