"""Evaluate the answers of a policy, or random schedules: are they valid, right, fast?"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ratchet.base.measure.estimate import t_quantile
from ratchet.judge.verdict import Screening
from ratchet.write.author import Progress, Proposal
from ratchet.write.learn.bench import Bench, judge_answers, reward_of
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.languages import AUTHOR, language_of
from ratchet.write.learn.models import Policy, load_policy
from ratchet.write.learn.objectives import HOTTER, is_fast, read_candidate
from ratchet.write.learn.rollouts import Rollouts
from ratchet.write.learn.tasks import LearnTask, task_of

RESAMPLES: Final = 1000
SURE: Final = 0.9  # Confidence that a policy is better than the one before it
HEADROOM_ANSWERS: Final = 5  # Random schedules that show how much the choice of one matters
Drawer = Callable[[LearnTask, int, int], list[Proposal | None]]
"""Returns `count` answers to a problem, drawn with a seed."""


class ProblemScore(msgspec.Struct, frozen=True, kw_only=True):
    problem: str
    family: str
    answers: int
    valid: float
    right: float
    fast: float
    reward: float
    best: float | None  # Highest screened ratio: it overestimates, as the best of several


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Means over problems, with 95 % intervals over problems."""

    answers: int
    valid: float
    right: float
    fast: float  # Share of answers that are right and at least 1.2 times as fast as the rival
    reward: float
    reward_low: float
    reward_high: float
    fast_low: float
    fast_high: float
    judged: int  # Kernels that had to be judged for it
    problems: tuple[ProblemScore, ...]


def evaluate(
    draw: Drawer,
    tasks: Sequence[LearnTask],
    bench: Bench,
    config: LearnConfig,
    *,
    answers: int = 6,
    seed: int = 0,
) -> Evaluation:
    """Return how good a drawer's `answers` to each of these problems are.

    Answers that could not be measured do not count.
    """
    before = bench.judged
    scores = []
    for task in tasks:
        outcomes = judge_answers(bench, task, draw(task, answers, seed))
        score = _score(task, outcomes, config)
        if score is not None:
            scores.append(score)
    fast = _interval([one.fast for one in scores], seed)
    reward = _interval([one.reward for one in scores], seed)
    return Evaluation(
        answers=sum(one.answers for one in scores),
        valid=_mean([one.valid for one in scores]),
        right=_mean([one.right for one in scores]),
        fast=_mean([one.fast for one in scores]),
        reward=_mean([one.reward for one in scores]),
        reward_low=reward[0],
        reward_high=reward[1],
        fast_low=fast[0],
        fast_high=fast[1],
        judged=bench.judged - before,
        problems=tuple(scores),
    )


def with_headroom(
    tasks: Sequence[LearnTask],
    bench: Bench,
    config: LearnConfig,
    *,
    most: int,
    seed: int,
    until: float = math.inf,
) -> list[LearnTask]:
    """Return the `most` problems where the choice of a schedule matters most, in their order.

    Judges HEADROOM_ANSWERS random schedules of each. Problems where some are fast come first, by
    the share that is not; then the others, by the highest reward less the mean. A problem that any
    schedule solves, or none, tells no policies apart. No policy is asked, so none is favoured.
    Problems that are not judged by `until`, on the clock of `time.monotonic`, come last.
    """
    headroom: dict[str, tuple[float, float]] = {}
    for task in tasks:
        if len(tasks) <= most or time.monotonic() > until:
            break
        candidates = random_drawer(task, HEADROOM_ANSWERS, seed + 1)
        pairs = _rewarded(judge_answers(bench, task, candidates), config)
        rewards = [reward for _, reward in pairs]
        fast = _mean([is_fast(one) for one, _ in pairs])
        left = max(rewards, default=0.0) - _mean(rewards)
        headroom[task.key] = (1.0 - fast if fast else 0.0), left
    chosen = sorted(tasks, key=lambda one: headroom.get(one.key, (-1.0, 0.0)), reverse=True)[:most]
    return [one for one in tasks if one in chosen]


def least_rise(before: Evaluation, after: Evaluation) -> float:
    """Return the lower 90 % bound on the rise of the reward.

    It is Student's t bound on the mean rise over the problems that both evaluations have. One
    problem alone gives 0.
    """
    known = {one.problem: one.reward for one in before.problems}
    rises = [one.reward - known[one.problem] for one in after.problems if one.problem in known]
    if len(rises) < 2:
        return 0.0
    error = statistics.stdev(rises) / math.sqrt(len(rises))
    return statistics.fmean(rises) - t_quantile(len(rises) - 1, SURE) * error


def policy_drawer(
    policy: Policy, *, temperature: float = 1.0, rollouts: Rollouts | None = None
) -> Drawer:
    """Return a drawer of a policy's answers; transformers draws them unless `rollouts` is given."""
    language = language_of(policy.card.answers, policy.card.language)
    engine = rollouts or Rollouts()

    def draw(task: LearnTask, count: int, seed: int) -> list[Proposal | None]:
        own = random.Random(f"{seed} {task.key}").getrandbits(31)
        request = language.request(task, count, temperature=temperature, seed=own)
        (found,) = engine.draw(policy.model, policy.tokenizer, [request])
        return [read_candidate(language, task, one.text) for one in found]

    return draw


def random_drawer(task: LearnTask, count: int, seed: int) -> list[Proposal | None]:
    source = random.Random(f"{seed} random {task.key}")
    drawn = [task.space.draw(source) for _ in range(count)]
    return [Proposal(kernel=task.space.kernel(one), author=AUTHOR, schedule=one) for one in drawn]


def _score(
    task: LearnTask, outcomes: Sequence[Screening], config: LearnConfig
) -> ProblemScore | None:
    measured = _rewarded(outcomes, config)
    if not measured:
        return None
    ratios = [one.ratio for one, _ in measured if one.is_right and one.ratio is not None]
    return ProblemScore(
        problem=task.name,
        family=task.family,
        answers=len(measured),
        valid=_mean([one.status != "invalid" for one, _ in measured]),
        right=_mean([one.is_right for one, _ in measured]),
        fast=_mean([is_fast(one) for one, _ in measured]),
        reward=_mean([reward for _, reward in measured]),
        best=max(ratios, default=None),
    )


def _rewarded(outcomes: Sequence[Screening], config: LearnConfig) -> list[tuple[Screening, float]]:
    """Return what could be measured, with its reward."""
    pairs = ((one, reward_of(one, config)) for one in outcomes)
    return [(one, reward) for one, reward in pairs if reward is not None]


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else 0.0


def _interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean, by drawing problems again."""
    if not values:
        return 0.0, 0.0
    own = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(own), size=(RESAMPLES, len(own)))
    low, high = np.quantile(own[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


TRIES: Final = 4
"""Draws in a row without a new kernel after which the policy has nothing left to say."""


class PolicyAuthor:
    """Proposes a policy's kernels. One object serves all problems of a run."""

    def __init__(self, policy: Policy, name: str, *, seed: int = 0) -> None:
        self.name = name
        self.ended = ""  # Why it has nothing left to say on the last problem
        self._policy, self._seed = policy, seed
        self._tasks: dict[str, LearnTask] = {}
        self._drawn: dict[str, int] = {}
        self._said: dict[str, set[str]] = {}

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        """Return up to `count` new proposals; see `Author.propose`.

        Raises RatchetError: the generator lacks one of the problem's ops.
        """
        key = progress.problem.hash
        if key not in self._tasks:
            language = self._policy.card.language
            self._tasks[key] = task_of(progress.problem, language=language)
        task, said = self._tasks[key], self._said.setdefault(key, set())
        said |= {one.kernel_hash for one in progress.answers}
        found: list[Proposal] = []
        self.ended = ""
        for attempt in range(TRIES):
            draw = policy_drawer(self._policy, temperature=HOTTER**attempt)
            turn = self._drawn.get(key, 0)
            self._drawn[key] = turn + 1
            for one in draw(task, count, random.Random(f"{self._seed} {turn}").getrandbits(31)):
                if one is None or one.kernel.hash in said or len(found) == count:
                    continue
                said.add(one.kernel.hash)
                found.append(
                    Proposal(
                        kernel=one.kernel,
                        author=self.name,
                        note="drawn from the policy",
                        schedule=one.schedule,
                        features=task.space.features(one.schedule) if one.schedule else (),
                    )
                )
            if len(found) == count:
                return found
        if not found:
            self.ended = f"{TRIES} draws in a row held no new kernel"
        return found


@functools.lru_cache(maxsize=2)
def policy_author(folder: str, *, seed: int = 0) -> PolicyAuthor:
    """Return the author `policy:FOLDER`, which is loaded once for all problems of a run.

    Raises LearnError: the folder holds no policy.
    """
    return PolicyAuthor(load_policy(Path(folder)), f"policy:{folder}", seed=seed)
