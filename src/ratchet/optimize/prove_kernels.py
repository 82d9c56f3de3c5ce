"""Kernels before they are installed: each is judged on the problems the workload really runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from ratchet.errors import CompilerMissing
from ratchet.graph.capture import CapturedSite, problems_for
from ratchet.judge.kernel_trial import KernelJudge
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages.cpp import find_compiler
from ratchet.kernels.library import LIBRARY
from ratchet.kernels.problem import Problem
from ratchet.optimize.candidate import Candidate
from ratchet.optimize.installed import InstalledKernel
from ratchet.optimize.turn import Turn

KERNEL_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenKernels:
    """What may be installed, and what the judge said of every kernel."""

    proven: dict[str, tuple[InstalledKernel, ...]]
    refused: dict[str, str]
    """Library kernels that may not be installed, with the reason."""
    verdicts: tuple[dict[str, Any], ...]


def prove_kernels(turn: Turn, candidates: list[Candidate], *, until_share: float) -> ProvenKernels:
    """Judge the library's kernels on the call sites of the candidates' steps."""
    if turn.device.kind != "cpu":
        return ProvenKernels(proven={}, refused={}, verdicts=())
    try:
        find_compiler()
    except CompilerMissing as error:
        turn.warnings.append(str(error))
        refused = dict.fromkeys(LIBRARY, "there is no C++ compiler on this machine")
        return ProvenKernels(proven={}, refused=refused, verdicts=())
    problems: dict[str, dict[str, Problem]] = defaultdict(dict)
    for candidate in candidates:
        for library, problem in problems_for(_sites(turn, candidate)):
            problems[library][problem.hash] = problem
    return _judge_all(turn, problems, until_share)


def _sites(turn: Turn, candidate: Candidate) -> list[CapturedSite]:
    def compute() -> dict[str, Any]:
        arm = turn.live(candidate)
        return {"sites": arm.call("sites")}

    payload = turn.memo("sites", candidate.key(), compute)
    return [CapturedSite.from_json(site) for site in payload["sites"]]


def _judge_all(
    turn: Turn, problems: dict[str, dict[str, Problem]], until_share: float
) -> ProvenKernels:
    proven: dict[str, tuple[InstalledKernel, ...]] = {}
    refused: dict[str, str] = {}
    verdicts: list[dict[str, Any]] = []
    with KernelJudge() as judge:
        for name, library in LIBRARY.items():
            if name not in problems:
                refused[name] = "the step has no call site for it"
                continue
            kernels = library.kernels(turn.device.target)
            said, reason = _judge_one(turn, judge, kernels, problems[name], until_share)
            verdicts += [{**verdict, "library": name} for verdict in said]
            entries = [k for k in kernels if turn.ledger.proven(k.hash, turn.fingerprint)]
            if reason or not entries:
                refused[name] = reason or "right, but not proven faster here"
            else:
                proven[name] = tuple(_installed(turn, name, kernel) for kernel in entries)
    return ProvenKernels(proven=proven, refused=refused, verdicts=tuple(verdicts))


def _judge_one(
    turn: Turn,
    judge: KernelJudge,
    kernels: tuple[Kernel, ...],
    problems: dict[str, Problem],
    until_share: float,
) -> tuple[list[dict[str, Any]], str]:
    """All verdicts on one library kernel, and why it may not be installed ("" where it may)."""
    verdicts: list[dict[str, Any]] = []
    for kernel in kernels:
        for problem in problems.values():
            if problem.name != kernel.entry:
                continue
            verdict = _known_or_judged(turn, judge, kernel, problem, until_share)
            if verdict is None:
                return verdicts, "the budget ended before the judge came to it"
            verdicts.append({**verdict, "kernel": kernel.entry, "problem": problem.name})
            if verdict["status"] not in ("proven", "correct"):
                return verdicts, f"{kernel.entry}: {verdict['status']}, {verdict['reason']}"
    return verdicts, ""


def _known_or_judged(
    turn: Turn, judge: KernelJudge, kernel: Kernel, problem: Problem, until_share: float
) -> dict[str, Any] | None:
    known = turn.ledger.verdict(kernel.hash, problem.hash, turn.fingerprint)
    if known is not None:
        turn.recalled += 1
        return known
    left_s = turn.left_s(until_share)
    if not left_s:
        return None
    turn.tell("judging", kernel=kernel.entry)
    verdict: dict[str, Any] = judge.judge(kernel, problem, time_limit_s=KERNEL_LIMIT_S).model_dump(
        mode="json"
    )
    turn.ledger.record_kernel(
        kernel.hash, kernel.name, kernel.as_json(), fingerprint=turn.fingerprint
    )
    turn.ledger.record_problem(
        problem.hash, problem.name, problem.as_json(), fingerprint=turn.fingerprint
    )
    turn.ledger.record_verdict(verdict, fingerprint=turn.fingerprint)
    turn.tell("judged", kernel=kernel.entry, status=verdict["status"], reason=verdict["reason"])
    return verdict


def _installed(turn: Turn, library: str, kernel: Kernel) -> InstalledKernel:
    return InstalledKernel(
        library=library, entry=kernel.entry, hash=kernel.hash, isa=turn.device.target
    )
