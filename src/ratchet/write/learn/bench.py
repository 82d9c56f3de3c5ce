"""The judge as a source of rewards: here by screenings, or for a GPU that is not here, emulated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol

import msgspec

from ratchet.base.ledger.schema import Payload
from ratchet.base.serialise import document_of
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Screening
from ratchet.write.author import Answer, Proposal
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.languages import AUTHOR
from ratchet.write.learn.tasks import LearnTask
from ratchet.write.writing_book import WritingBook, WritingOptions

START_S, EACH_S = 20.0, 8.0  # Time limit of a screening: to open the problem, and for each kernel
FULL_S: Final = 60.0
RIVAL: Final = "learn_rival"  # Kind of the evidence that holds torch.compile's speed on a problem


class Bench(Protocol):
    """Judges candidates for a policy in training."""

    judged: int  # Kernels that were judged. Those that the ledger or this run knew do not count.

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
        found = [self._known[task.key, one.kernel.hash] for one in candidates]
        if gain != 1.0:
            found = [replace(one, ratio=one.ratio and one.ratio / gain) for one in found]
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


SCATTER: Final = 0.07
"""Standard deviation of a ratio's logarithm over repeated screenings of one kernel, as measured on
two cores (docs/log/2026-11-25.md)."""
RIGHT_ALONE: Final = 0.1  # Reward of a kernel that is right and not faster


def reward_of(outcome: Screening, config: LearnConfig) -> float | None:
    """Return an answer's reward; None if the judge could not measure it.

    A kernel that is not right earns 0, one that tried to fool the judge `config.cheating`. A right
    kernel earns RIGHT_ALONE, and up to 1 by the logarithm of its speed-up between floor and cap.
    """
    if outcome.status == "unmeasured":
        return None
    if outcome.status == "cheating":
        return config.cheating
    if not outcome.is_right or outcome.ratio is None:
        return RIGHT_ALONE if outcome.is_right else 0.0
    ratio = max(outcome.ratio, 1e-6)
    share = math.log(ratio / config.floor) / math.log(config.cap / config.floor)
    return RIGHT_ALONE + (1 - RIGHT_ALONE) * min(max(share, 0.0), 1.0)


def shared(
    rewards: Sequence[float | None], kernels: Sequence[str | None], repeats: float
) -> list[float | None]:
    """Return the rewards after equal kernels of one group split a share of theirs.

    If n answers hold one right kernel, each earns 1 - `repeats` + `repeats` / n of its reward. So a
    new kernel can beat a slightly faster one that most of the group wrote.
    """
    counts = Counter(one for one in kernels if one is not None)
    found: list[float | None] = []
    for reward, kernel in zip(rewards, kernels, strict=True):
        if reward is None or reward <= 0 or kernel is None:
            found.append(reward)
        else:
            found.append(reward * (1 - repeats + repeats / counts[kernel]))
    return found


def credits(rewards: Sequence[float | None], discount: float) -> list[float | None]:
    """Return what each answer of a row earns: its reward, and a share of the later ones.

    The k-th answer after it counts `discount` to the k. None stays None, and counts 0.
    """
    found: list[float | None] = []
    later = 0.0
    for reward in reversed(rewards):
        later = (reward or 0.0) + discount * later
        found.append(None if reward is None else later)
    return found[::-1]


def noise_of(outcome: Screening, config: LearnConfig) -> float:
    """Return the standard deviation of a kernel's reward over repeated screenings.

    It is 0 if nothing is timed, as with the emulator.
    """
    if config.target or not outcome.is_right or outcome.ratio is None:
        return 0.0
    high, low = (
        reward_of(replace(outcome, ratio=outcome.ratio * math.exp(sign * SCATTER)), config) or 0.0
        for sign in (1, -1)
    )
    return (high - low) / 2


def advantages(rewards: Sequence[float], noises: Sequence[float] = ()) -> list[float]:
    """Return each reward's distance from the mean in standard deviations; 0 if all are equal.

    `noises` are the rewards' own standard deviations. The distances shrink by the share of the
    variance that noise explains, since a group of equally fast kernels would teach noise alone.
    """
    mean = sum(rewards) / len(rewards)
    variance = sum((one - mean) ** 2 for one in rewards) / len(rewards)
    if is_dead(rewards):
        return [0.0] * len(rewards)
    noise = sum(one**2 for one in noises) / len(rewards)
    share = max(0.0, 1.0 - noise / variance)
    return [share * (one - mean) / (math.sqrt(variance) + 1e-4) for one in rewards]


def is_dead(rewards: Sequence[float]) -> bool:
    """Return whether all rewards are equal: such a group teaches nothing."""
    return len(rewards) < 2 or max(rewards) - min(rewards) < 1e-9


def is_jump(earlier: Sequence[float], now: float) -> bool:
    """Return whether a mean reward is 4 standard deviations, and 0.25, above those before it."""
    if len(earlier) < 6:
        return False
    last = list(earlier)[-16:]
    mean = sum(last) / len(last)
    spread = math.sqrt(sum((one - mean) ** 2 for one in last) / len(last))
    return now > mean + max(4 * spread, 0.25)


EMULATED: Final = "learn_emulated"
"""Kind of the evidence that holds what the emulator said of a kernel."""
EMULATED_S: Final = 120.0


class EmulatedBench(ScreeningBench):
    """A bench that asks the emulator instead of a clock.

    The outputs say whether a kernel is right. Its ratio is an estimate: the bound on the time of
    the generator's first schedule over the kernel's own bound. The ledger keeps such ratios apart
    from measured ones.
    """

    def __init__(self, court: Court, *, target: str) -> None:
        super().__init__(court, device="cpu")
        self._target = target

    def _recall(self) -> None:
        """Read nothing: emulated answers are read when they are asked for."""

    def _screen(self, task: LearnTask, new: Sequence[Proposal]) -> None:
        plain = task.space.kernel(task.space.first()[0])
        kernels = {plain.hash: plain} | {one.kernel.hash: one.kernel for one in new}
        found = self._emulated(task, list(kernels.values()))
        yardstick_s = _bound_s(found[plain.hash])
        for key, one in found.items():
            bound_s = _bound_s(one)
            ratio = yardstick_s / bound_s if yardstick_s and bound_s else None
            self._known[task.key, key] = replace(one, ratio=ratio)

    def _in_full(self, task: LearnTask, kernel: Kernel) -> str:
        terms = Terms(time_limit_s=EMULATED_S, device="cpu", target=self._target)
        return self._court.judge(kernel, task.problem, terms).verdict.status

    def _emulated(self, task: LearnTask, kernels: Sequence[Kernel]) -> dict[str, Screening]:
        """Return an answer for each kernel, by hash: the ledger's, or the emulator's."""
        ledger, here = self._court.ledger, self._court.fingerprint
        found: dict[str, Screening] = {}
        for kernel in kernels:
            known = ledger.recall(EMULATED, self._place(task, kernel), fingerprint=here)
            if known is not None:
                found[kernel.hash] = msgspec.convert(known, Screening)
        new = [one for one in kernels if one.hash not in found]
        if not new:
            return found
        self.judged += len(new)
        limit_s = START_S + EACH_S * len(new)
        terms = Terms(time_limit_s=limit_s, device="cpu", target=self._target)
        for kernel, said in zip(new, self._court.screen(new, task.problem, terms), strict=True):
            found[kernel.hash] = said
            if said.status == "unmeasured":
                continue
            ledger.record_kernel(kernel.hash, kernel.name, kernel.as_json(), fingerprint=here)
            payload = {**document_of(said), "problem": task.name}
            ledger.remember(EMULATED, self._place(task, kernel), payload, fingerprint=here)
        return found

    def _place(self, task: LearnTask, kernel: Kernel) -> str:
        return f"{self._target}:{revision(self._target)}:{task.key}:{kernel.hash}"


def _bound_s(said: Screening) -> float | None:
    """Return the least seconds that the visible cases take on the target; None if not known."""
    bound_s = said.static_rank[0] if said.static_rank else math.inf
    return bound_s if math.isfinite(bound_s) and bound_s > 0 else None


def open_bench(court: Court, config: LearnConfig) -> ScreeningBench:
    if config.target:
        return EmulatedBench(court, target=config.target)
    return ScreeningBench(court, rival=config.rival)
