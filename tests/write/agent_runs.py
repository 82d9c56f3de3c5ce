"""What tests of the agent share: a problem, kernels, and runs with scripted verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.verdict import Screening
from ratchet.write.agent import AgentAuthor, AgentBudget, agent_author
from ratchet.write.agent.ask import AskTerms
from ratchet.write.author import Answer, Progress, Proposal

NAME = "squared_relu"
KEY = "sk-test-0123456789abcdef"
SOURCE = """#include "ratchet_abi.h"
// variant {mark}
RATCHET_ENTRY squared_relu(const ratchet_tensor* t, int64_t count, const double*, int64_t) {{
    return count == 2 ? RATCHET_DONE : RATCHET_DECLINED;
}}
"""
QUICK = AskTerms(first_wait_s=0.01, time_limit_s=20.0)


def small_problem() -> Problem:
    return find_problem(NAME).at("ci")


def source(mark: object) -> str:
    return SOURCE.format(mark=mark)


def said(mark: object, note: str = "a new variant") -> str:
    """Return a model's answer with a kernel."""
    return f"It is bound by memory.\n\nChange: {note}\n\n```cpp\n{source(mark)}```\n"


def make_author(
    url: str,
    ledger: Path,
    *,
    strategy: str = "beam",
    samples: int = 1,
    budget: AgentBudget | None = None,
    run: str = "run-1",
    replay: str | None = None,
    language: str = "cpp",
) -> AgentAuthor:
    """Return an author that asks the test's server; the environment must hold its key."""
    author = agent_author(
        model="tiny",
        base_url=url,
        api_key_env="RATCHET_TEST_KEY",
        strategy=strategy,
        samples=samples,
        budget=budget,
        ledger=ledger,
        run_id=run,
        replay=replay,
        language=language,  # type: ignore[arg-type]
        device="cpu",
        terms=QUICK,
    )
    assert isinstance(author, AgentAuthor)
    return author


Verdict = Callable[[Proposal, int], Answer]


def screened(proposal: Proposal, status: Any, **said: Any) -> Answer:
    kernel_hash = proposal.kernel.hash
    return Answer.by_screening(proposal, Screening(kernel_hash=kernel_hash, status=status, **said))


def fine(ratio: float) -> Verdict:
    """Return a scripted verdict: every kernel is right, each faster than the one before."""

    def answered(proposal: Proposal, place: int) -> Answer:
        times = {"ratio": ratio + 0.1 * place, "low": ratio - 0.05, "high": ratio + 0.25}
        return screened(proposal, "screened", **times)

    return answered


def wrong(evidence: str) -> Verdict:
    return lambda proposal, _: replace(
        screened(proposal, "wrong", reason="an output is not right", evidence=(evidence,)),
        stage="judged",
    )


def run_turns(
    author: AgentAuthor, progress: Progress, verdicts: Sequence[Verdict], count: int = 8
) -> list[list[Proposal]]:
    """Ask for proposals once for each verdict, and answer them so."""
    turns = []
    for verdict in verdicts:
        turn = author.propose(progress, count)
        progress.answers += [verdict(one, len(progress.answers)) for one in turn]
        turns.append(turn)
    return turns
