"""Verdicts on the kernels of a ported tree: each is judged as an AMD GPU's machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from ratchet.amd.port.extensions import PortedKernel, ported_kernels
from ratchet.amd.port.port_result import UNTRIED, KernelProof, PortResult
from ratchet.base.errors import RatchetError
from ratchet.base.files import why_not_folder
from ratchet.judge.court.calls import judge_named
from ratchet.judge.court.court import Court
from ratchet.judge.court.terms import Terms
from ratchet.judge.problems.card import ANSWER
from ratchet.judge.problems.suites.names import NAMES

EXECUTED: Final = ("gfx942",)
"""Targets that a kernel is executed on if none is named."""
PROBLEMS: Final = "problems"
"""The folder of a tree that holds problem files, if no other is named."""
WARNINGS_SAID: Final = 3
"""Most warnings that explain a wrong kernel."""


def prove(
    result: PortResult,
    court: Court,
    *,
    targets: Sequence[str],
    problems: Path | None = None,
    time_limit_s: float = 300.0,
    say: Callable[[str], None] = lambda _: None,
) -> PortResult:
    """Judge every kernel of a ported tree that has a problem, on emulated GPUs.

    A problem is the file of `problems` that is named after the function or after the kernel's
    file; else the shipped problem of the function's name. `problems` defaults to the tree's folder
    of that name. `say` gets the name of each kernel before it is judged.

    Raises:
        RatchetError: `problems` is no folder.
    """
    if problems is None:
        problems = Path(result.path) / PROBLEMS
    elif why := why_not_folder(problems):
        raise RatchetError(f"{problems} {why}: name a folder of problem files")
    proofs = []
    for one in ported_kernels(result.scanned):
        problem = problem_of(one, problems)
        left = one.what_is_left(result.scanned)
        for target in targets:
            if left:
                why = f"the patch leaves {left}"
                proofs.append(_untried(one, target, why))
                continue
            say(f"{one.file}: {one.kernel.entry} on {target}")
            proof = _proof(one, problem, court, target, time_limit_s)
            proofs.append(_explained(proof, one.warnings_left(result.scanned)))
    return replace(result, proofs=tuple(proofs))


def problem_of(ported: PortedKernel, problems: Path) -> Path | str | None:
    """Return the problem that says what is right for a kernel, or None."""
    for name in _names(ported):
        if (found := problems / f"{name}.py").is_file():
            return found
    entry = ported.kernel.entry
    return entry if any(entry in names for names in NAMES.values()) else None


def _names(ported: PortedKernel) -> Iterator[str]:
    if ported.kernel.entry != ANSWER:
        yield ported.kernel.entry
    yield PurePosixPath(ported.file).stem


def _explained(proof: KernelProof, warnings: Sequence[str]) -> KernelProof:
    """Return the proof of a wrong kernel with the first warnings that the patch leaves in it."""
    if proof.status != "wrong" or not warnings:
        return proof
    left = "; ".join(warnings[:WARNINGS_SAID])
    return replace(proof, why=f"{proof.why}; the patch leaves {left}")


def _untried(ported: PortedKernel, target: str, why: str) -> KernelProof:
    return KernelProof(
        file=ported.file, entry=ported.kernel.entry, target=target, status=UNTRIED, why=why
    )


def _proof(
    ported: PortedKernel,
    problem: Path | str | None,
    court: Court,
    target: str,
    time_limit_s: float,
) -> KernelProof:
    if problem is None:
        name = " or ".join(f"{PROBLEMS}/{one}.py" for one in _names(ported))
        return _untried(ported, target, f"no problem says what is right: write {name}")
    terms = Terms(time_limit_s=time_limit_s, target=target)
    try:
        verdict = judge_named(court, ported.kernel, problem, terms).verdict
    except RatchetError as error:
        return _untried(ported, target, str(error))
    made = _untried(
        ported, target, "" if verdict.status in ("correct", "proven") else verdict.reason
    )
    return replace(made, status=verdict.status)
