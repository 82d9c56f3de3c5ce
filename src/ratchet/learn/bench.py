"""The judge as a source of rewards: screenings, each kernel once, kept in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ratchet.authors.author import Schedule
from ratchet.authors.court import RecordedCourt
from ratchet.judge.revision import revision
from ratchet.kernels.kernel import Kernel
from ratchet.learn.tasks import LearnTask
from ratchet.ledger.verdicts import RecordedJudge, Terms
from ratchet.ledger.writing import WritingBook, WritingOptions, WrittenAnswer

AUTHOR: Final = "policy"
START_S, EACH_S = 20.0, 8.0
"""Time limit of a screening: to open the problem, and for each kernel."""
FULL_S: Final = 60.0
FOOLED: Final = "it tried to fool the judge"
RIVAL: Final = "learn_rival"
"""Kind of the evidence that holds torch.compile's speed on a problem."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyKernel:
    """A kernel to judge, and the schedule that it was generated from."""

    kernel: Kernel
    schedule: Schedule = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeOutcome:
    """What a reward needs of the judge's answer on one candidate."""

    kernel_hash: str
    status: str
    """`invalid` for an answer that holds no kernel; else a screening's, or `cheating`."""
    ratio: float | None = None
    """The rival's time over the kernel's."""
    why: str = ""

    @property
    def is_right(self) -> bool:
        """Return whether the kernel's answers were right."""
        return self.status in ("screened", "proven", "correct")


class Bench(Protocol):
    """Judges candidates for a policy in training."""

    judged: int
    """Kernels that were judged. Those that the ledger or this run knew do not count."""

    def outcomes(self, task: LearnTask, candidates: Sequence[PolicyKernel]) -> list[JudgeOutcome]:
        """Return an outcome for each candidate, in their order; equal kernels are judged once."""
        ...

    def in_full(self, task: LearnTask, kernel: Kernel) -> str:
        """Return the status of a kernel's full verdict."""
        ...


class ScreeningBench:
    """Asks the judge of a ledger, on this machine or on a fleet.

    The judge's processes end with the thread that started them. So one thread asks the judge,
    whichever threads ask the bench.
    """

    def __init__(self, judge: RecordedJudge, *, rival: str = "eager", device: str = "auto") -> None:
        self.judged = 0
        self.against_eager: frozenset[str] = frozenset()
        """Keys of problems whose speed-ups are against eager, whatever the rival of the others."""
        self._judge = judge
        self._court = RecordedCourt(judge)
        self._book = WritingBook(judge.ledger, judge.fingerprint)
        self._rival, self._device = rival, device
        self._runs: dict[str, str] = {}
        self._known: dict[tuple[str, str], JudgeOutcome] = {}
        self._unsure: dict[str, dict[str, Any]] = {}
        """By problem, torch.compile's gain for this run alone, if no verdict measured it."""
        self._thread = ThreadPoolExecutor(1)
        self._recall()

    def outcomes(self, task: LearnTask, candidates: Sequence[PolicyKernel]) -> list[JudgeOutcome]:
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

    def _outcomes(self, task: LearnTask, candidates: Sequence[PolicyKernel]) -> list[JudgeOutcome]:
        new: dict[str, PolicyKernel] = {}
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
        (found,) = self._court.judge([kernel], task.problem, terms)
        return str(found.verdict["status"])

    def best(self) -> dict[str, float]:
        """Return the highest ratio known of each problem, by its hash."""
        found: dict[str, float] = {}
        for (problem, _), one in self._known.items():
            if one.is_right and one.ratio is not None:
                found[problem] = max(found.get(problem, 0.0), one.ratio)
        return found

    def _recall(self) -> None:
        """Read the ledger's answers on kernels that a policy or a search proposed earlier."""
        ledger = self._judge.ledger
        for row in ledger.writing_answers(fingerprint=self._judge.fingerprint):
            emulated = bool(row.get("static_rank"))
            if row["stage"] == "screened" and row["status"] != "unmeasured" and not emulated:
                key = (row["problem_hash"], row["kernel_hash"])
                self._known[key] = _outcome(
                    row["kernel_hash"], row["status"], row.get("ratio"), row["reason"]
                )

    def _screen(self, task: LearnTask, new: Sequence[PolicyKernel]) -> None:
        self.judged += len(new)
        found = self._court.estimate(
            task.problem,
            [one.kernel for one in new],
            best=None,
            time_limit_s=START_S + EACH_S * len(new),
            device=self._device,
        )
        run = self._run(task)
        for candidate, said in zip(new, found, strict=True):
            key = (task.key, said.kernel_hash)
            self._known[key] = _outcome(said.kernel_hash, said.status, said.ratio, said.reason)
            answer = WrittenAnswer(
                problem_hash=task.key,
                kernel_hash=said.kernel_hash,
                author=AUTHOR,
                stage="screened",
                status=said.status,
                reason=said.reason,
                ratio=said.ratio,
                low=said.low,
                high=said.high,
                time_s=said.time_s,
                evidence=said.evidence,
                schedule=candidate.schedule,
                features=task.space.features(candidate.schedule) if candidate.schedule else (),
            )
            self._book.add(run, answer, candidate.kernel)

    def _run(self, task: LearnTask) -> str:
        """Return the writing run of a problem; `ratchet write` does not resume or count it."""
        if task.key not in self._runs:
            options = WritingOptions(
                budget_s=0.0, seed=0, authors=(AUTHOR,), judge=f"learn {revision()}"
            )
            self._runs[task.key] = self._book.start(task.problem, options)
        return self._runs[task.key]

    def _compiled_gain(self, task: LearnTask, candidates: Sequence[PolicyKernel]) -> float:
        """Return how many times as fast as eager torch.compile is, at least 1; judged once."""
        ledger, here = self._judge.ledger, self._judge.fingerprint
        known = ledger.recall(RIVAL, task.key, fingerprint=here) or self._unsure.get(task.key)
        if known is None:
            right = [one for one in candidates if self._known[task.key, one.kernel.hash].is_right]
            if not right:
                return 1.0
            terms = Terms(time_limit_s=2 * FULL_S, against_compile=True, device=self._device)
            (found,) = self._court.judge([right[0].kernel], task.problem, terms)
            speedup = found.verdict.get("speedup") or {}
            eager, compiled = speedup.get("vs_reference"), speedup.get("vs_compile")
            gain = eager["ratio"] / compiled["ratio"] if eager and compiled else 1.0
            known = {"gain": gain, "problem": task.name}
            if eager and compiled and not found.verdict.get("not_timed"):
                ledger.remember(RIVAL, task.key, known, fingerprint=here)
            else:  # no verdict, or noise: another run asks again
                self._unsure[task.key] = known
        return max(1.0, float(known["gain"]))


def _outcome(kernel_hash: str, status: str, ratio: float | None, reason: str) -> JudgeOutcome:
    fooled = status == "cheating" or reason.startswith(FOOLED)
    return JudgeOutcome(
        kernel_hash=kernel_hash,
        status="cheating" if fooled else status,
        ratio=ratio,
        why=reason,
    )


def _against(outcome: JudgeOutcome, gain: float) -> JudgeOutcome:
    if gain == 1.0 or outcome.ratio is None:
        return outcome
    return JudgeOutcome(
        kernel_hash=outcome.kernel_hash,
        status=outcome.status,
        ratio=outcome.ratio / gain,
        why=outcome.why,
    )


def judge_answers(
    bench: Bench, task: LearnTask, candidates: Sequence[PolicyKernel | None]
) -> list[JudgeOutcome]:
    """Return an outcome for each answer; None stands for one that holds no kernel."""
    there = [one for one in candidates if one is not None]
    found = iter(bench.outcomes(task, there) if there else [])
    return [
        JudgeOutcome(kernel_hash="", status="invalid") if one is None else next(found)
        for one in candidates
    ]
