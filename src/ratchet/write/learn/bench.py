"""The judge as a source of rewards: screenings, each kernel once, kept in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol

from ratchet.base.ledger.schema import Payload
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Screening
from ratchet.write.author import Answer, Proposal
from ratchet.write.learn.languages import AUTHOR
from ratchet.write.learn.tasks import LearnTask
from ratchet.write.writing_book import WritingBook, WritingOptions

START_S, EACH_S = 20.0, 8.0
"""Time limit of a screening: to open the problem, and for each kernel."""
FULL_S: Final = 60.0
RIVAL: Final = "learn_rival"
"""Kind of the evidence that holds torch.compile's speed on a problem."""


class Bench(Protocol):
    """Judges candidates for a policy in training."""

    judged: int
    """Kernels that were judged. Those that the ledger or this run knew do not count."""

    def outcomes(self, task: LearnTask, candidates: Sequence[Proposal]) -> list[Screening]:
        """Return an outcome for each candidate, in their order; equal kernels are judged once."""
        ...

    def in_full(self, task: LearnTask, kernel: Kernel) -> str:
        """Return the status of a kernel's full verdict."""
        ...


class ScreeningBench:
    """Asks a court, on this machine or on a fleet.

    The judge's processes end with the thread that started them. So one thread asks the judge,
    whichever threads ask the bench.
    """

    def __init__(self, court: Court, *, rival: str = "eager", device: str = "auto") -> None:
        self.judged = 0
        self.against_eager: frozenset[str] = frozenset()
        """Keys of problems whose speed-ups are against eager, whatever the rival of the others."""
        self._court = court
        self._book = WritingBook(court.ledger, court.fingerprint)
        self._rival, self._device = rival, device
        self._runs: dict[str, str] = {}
        self._known: dict[tuple[str, str], Screening] = {}
        self._unsure: dict[str, Payload] = {}
        """By problem, torch.compile's gain for this run alone, if no verdict measured it."""
        self._thread = ThreadPoolExecutor(1)
        self._recall()

    def outcomes(self, task: LearnTask, candidates: Sequence[Proposal]) -> list[Screening]:
        """Return an outcome for each candidate; see `Bench.outcomes`."""
        return self._thread.submit(self._outcomes, task, candidates).result()

    def in_full(self, task: LearnTask, kernel: Kernel) -> str:
        """Return the status of a kernel's full verdict, which the ledger keeps."""
        return self._thread.submit(self._in_full, task, kernel).result()

    def close(self) -> None:
        """Note the end of this bench's runs in the ledger."""
        self._thread.shutdown(cancel_futures=True)
        for run in self._runs.values():
            self._book.end(run, "finished", {"status": "none", "screened": self.judged})
        self._runs.clear()

    def _outcomes(self, task: LearnTask, candidates: Sequence[Proposal]) -> list[Screening]:
        new: dict[str, Proposal] = {}
        for one in candidates:
            if (task.key, one.kernel.hash) not in self._known:
                new.setdefault(one.kernel.hash, one)
        if new:
            self._screen(task, list(new.values()))
        compiled = self._rival == "compile" and task.key not in self.against_eager
        gain = self._compiled_gain(task, candidates) if compiled else 1.0
        found = [_against(self._known[task.key, one.kernel.hash], gain) for one in candidates]
        for one in new.values():  # what could not be measured now may be later
            if self._known[task.key, one.kernel.hash].status == "unmeasured":
                del self._known[task.key, one.kernel.hash]
        return found

    def _in_full(self, task: LearnTask, kernel: Kernel) -> str:
        terms = Terms(time_limit_s=FULL_S, device=self._device)
        return self._court.judge(kernel, task.problem, terms).verdict.status

    def best(self) -> dict[str, float]:
        """Return the highest ratio known of each problem, by its hash."""
        found: dict[str, float] = {}
        for (problem, _), one in self._known.items():
            if one.is_right and one.ratio is not None:
                found[problem] = max(found.get(problem, 0.0), one.ratio)
        return found

    def _recall(self) -> None:
        """Read the ledger's answers on kernels that a policy or a search proposed earlier."""
        ledger = self._court.ledger
        for row in ledger.writing_answers(fingerprint=self._court.fingerprint):
            emulated = bool(row.get("static_rank"))
            if row["stage"] == "screened" and row["status"] != "unmeasured" and not emulated:
                key = (row["problem_hash"], row["kernel_hash"])
                self._known[key] = Screening(
                    kernel_hash=row["kernel_hash"],
                    status=row["status"],
                    reason=row["reason"],
                    ratio=row.get("ratio"),
                )

    def _screen(self, task: LearnTask, new: Sequence[Proposal]) -> None:
        self.judged += len(new)
        kernels = [one.kernel for one in new]
        terms = Terms(time_limit_s=START_S + EACH_S * len(new), device=self._device)
        found = self._court.screen(kernels, task.problem, terms)
        run = self._run(task)
        for candidate, said in zip(new, found, strict=True):
            self._known[task.key, said.kernel_hash] = said
            schedule = candidate.schedule
            features = task.space.features(schedule) if schedule else ()
            proposal = replace(candidate, author=AUTHOR, features=features)
            self._book.add(run, Answer.by_screening(proposal, said), task.key)

    def _run(self, task: LearnTask) -> str:
        """Return the writing run of a problem; `ratchet write` does not resume or count it."""
        if task.key not in self._runs:
            options = WritingOptions(
                budget_s=0.0, seed=0, authors=(AUTHOR,), judge=f"learn {revision()}"
            )
            self._runs[task.key] = self._book.start(task.problem, options)
        return self._runs[task.key]

    def _compiled_gain(self, task: LearnTask, candidates: Sequence[Proposal]) -> float:
        """Return how many times as fast as eager torch.compile is, at least 1; judged once."""
        ledger, here = self._court.ledger, self._court.fingerprint
        known = ledger.recall(RIVAL, task.key, fingerprint=here) or self._unsure.get(task.key)
        if known is None:
            right = [one for one in candidates if self._known[task.key, one.kernel.hash].is_right]
            if not right:
                return 1.0
            terms = Terms(time_limit_s=2 * FULL_S, against_compile=True, device=self._device)
            verdict = self._court.judge(right[0].kernel, task.problem, terms).verdict
            eager, compiled = verdict.speedup.vs_reference, verdict.speedup.vs_compile
            gain = eager.ratio / compiled.ratio if eager and compiled else 1.0
            known = {"gain": gain, "problem": task.name}
            if eager and compiled and not verdict.not_timed:
                ledger.remember(RIVAL, task.key, known, fingerprint=here)
            else:  # no verdict, or noise: another run asks again
                self._unsure[task.key] = known
        return max(1.0, float(known["gain"]))


def _against(said: Screening, gain: float) -> Screening:
    if gain == 1.0 or said.ratio is None:
        return said
    return replace(said, ratio=said.ratio / gain)


def judge_answers(
    bench: Bench, task: LearnTask, candidates: Sequence[Proposal | None]
) -> list[Screening]:
    """Return an outcome for each answer; None stands for one that holds no kernel."""
    there = [one for one in candidates if one is not None]
    found = iter(bench.outcomes(task, there) if there else [])
    return [
        Screening(kernel_hash="", status="invalid") if one is None else next(found)
        for one in candidates
    ]
