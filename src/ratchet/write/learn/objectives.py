"""The objectives: pretraining, supervised fine-tuning, and GRPO on the judge's answers.

GRPO draws groups of answers to one problem, each against its group's mean; while one group is
judged, the next one is drawn.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from ratchet.base import Json
from ratchet.base.errors import LearnError
from ratchet.judge.verdict import Screening
from ratchet.write.author import Proposal
from ratchet.write.learn.bench import (
    Bench,
    advantages,
    credits,
    is_dead,
    is_jump,
    judge_answers,
    noise_of,
    reward_of,
    shared,
)
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import TaughtAnswer
from ratchet.write.learn.languages import AnswerLanguage
from ratchet.write.learn.rollouts import (
    DrawRequest,
    Rollouts,
    Sampled,
    allowed_tokens,
    answer_logs,
    drawn_logs,
)
from ratchet.write.learn.tasks import LearnTask
from ratchet.write.learn.training import Objective, StepWork, TextWindows, text_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class Pretraining(Objective):
    stage = "pretrain"
    least = 20

    def __init__(self, text: TextWindows, config: LearnConfig) -> None:
        self._text, self._config = text, config

    def work(self, model: PreTrainedModel, step: int) -> StepWork:
        batch = self._text.batch(self._config.batch, seed=self._config.seed, step=step)
        return StepWork(tokens=batch.numel(), loss=lambda: text_loss(model, batch))


LEAST_STEPS: Final = 100
LEAST_LIKELY: Final = -3.0
"""A slow answer's tokens are not made less likely than this logarithm of a probability."""


class Imitation(Objective):
    """Write the answers of a corpus (SFT). The loss is on the answers, not on their prompts.

    Each problem comes equally often. An answer's loss is multiplied by its worth. A worth below 0
    makes the answer less likely among its problem's choices.
    """

    stage = "sft"

    def __init__(
        self,
        examples: Sequence[TaughtAnswer],
        tokenizer: PreTrainedTokenizerFast,
        config: LearnConfig,
        *,
        language: AnswerLanguage,
        choices: Mapping[str, Sequence[Sequence[str]]] | None = None,
        skills: SkillTest | None = None,
        least: int = LEAST_STEPS,
    ) -> None:
        """`choices`: by problem, the words allowed at each place of an answer."""
        self.least = least
        self._config, self._tokenizer, self._skills = config, tokenizer, skills
        self._language = language
        self._rows: dict[str, list[TaughtAnswer]] = {}
        for one in examples:
            self._rows.setdefault(one.problem, []).extend([one] * one.weight)
        self._among = {
            problem: allowed_tokens(tokenizer, words) for problem, words in (choices or {}).items()
        }
        if not self._rows:
            raise LearnError("the corpus has no example: run ratchet learn corpus again")

    def work(self, model: PreTrainedModel, step: int) -> StepWork:
        source = random.Random(f"{self._config.seed} sft {step}")
        problems = list(self._rows.values())
        drawn = [source.choice(source.choice(problems)) for _ in range(self._config.batch)]
        batch = [self._row(one, source) for one in drawn]
        tokens = sum(len(one.prompt) + len(one.answer) for one in batch)

        def loss() -> Tensor:
            logs, asked = answer_logs(model, batch, self._tokenizer.pad_token_id)
            worth = torch.tensor([one.worth for one in drawn], device=logs.device)[:, None]
            kept = torch.where(worth < 0, logs.clamp(min=LEAST_LIKELY), logs)
            return -(worth * kept * asked).sum() / asked.sum()

        return StepWork(tokens=tokens, loss=loss)

    def _row(self, one: TaughtAnswer, source: random.Random) -> Sampled:
        prompt = self._language.blurred(one.prompt, self._config.blur, source)
        row = tokenized(self._tokenizer, prompt, one.answer)
        among = self._among.get(one.problem, ()) if one.worth < 0 else ()
        return replace(row, allowed=among)

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        return {} if self._skills is None else self._skills.measure(model)


class SkillTest:
    """Tests whether a model still writes kernels for trained problems. Nothing is judged."""

    def __init__(
        self,
        tasks: Sequence[LearnTask],
        language: AnswerLanguage,
        tokenizer: PreTrainedTokenizerFast,
        rollouts: Rollouts,
    ) -> None:
        self._tasks, self._language, self._tokenizer = tasks[:4], language, tokenizer
        self._rollouts = rollouts

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """Return the share of greedy answers that hold a kernel."""
        requests = [self._language.request(task, 1, temperature=0.0) for task in self._tasks]
        drawn = self._rollouts.draw(model, self._tokenizer, requests)
        read = [
            self._language.read(task, answer.text)
            for task, (answer,) in zip(self._tasks, drawn, strict=True)
        ]
        return {"skills": sum(not isinstance(one, str) for one in read) / max(1, len(self._tasks))}


def tokenized(tokenizer: PreTrainedTokenizerFast, prompt: str, answer: str) -> Sampled:
    """Return an example in tokens, with the end after its answer."""
    given = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    said = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return Sampled(prompt=tuple(given), answer=(*said, tokenizer.eos_token_id), text=answer)


ADAPTER: Final = "disable_adapter"
"""A model with LoRA has it. Without its adapter, it is the policy that GRPO began with."""
HOTTER: Final = 1.3  # Factor of the temperature when a dead group is drawn again
REJECTED: Final = ("wrong", "cheating", "refused")
"""If a full verdict has one of these statuses, a jump of the reward is a hack. A time-out on a busy
machine is not."""
SUSPECTS: Final = 3  # Kernels that are judged in full after a jump of the reward


class NoReward(LearnError):
    """Every reward of a whole epoch was zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The answers to one problem in one turn, with their rewards."""

    task: LearnTask
    answers: tuple[Sampled, ...]
    candidates: tuple[Proposal | None, ...]
    outcomes: tuple[Screening, ...]
    rewards: tuple[float, ...]
    earned: tuple[float, ...]
    """Rewards after equal kernels split a share, plus a share of the later turns' rewards."""
    dead: bool  # True if all rewards were equal before equal kernels split a share


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """The answers of a turn that the judge has not answered yet."""

    answers: Sequence[Sampled]
    candidates: Sequence[Proposal | None]
    future: Future[list[Screening]]


class Reinforcement(Objective):
    stage = "grpo"
    least = 1

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        tasks: Sequence[LearnTask],
        language: AnswerLanguage,
        bench: Bench,
        config: LearnConfig,
        *,
        pool: ThreadPoolExecutor,
        skills: SkillTest | None = None,
        deadline: float | None = None,
        rollouts: Rollouts | None = None,
    ) -> None:
        """`pool`: the bench answers in its threads, while the next group is drawn.

        After `deadline`, on the clock of `time.monotonic`, no group is drawn again.
        """
        if not tasks:
            raise LearnError("there is no problem to train on: name other families")
        self._tokenizer, self._tasks, self._language = tokenizer, list(tasks), language
        self._bench, self._pool, self._config, self._skills = bench, pool, config, skills
        self._rollouts = rollouts or Rollouts()
        self._deadline = math.inf if deadline is None else deadline
        with_copy = config.kl > 0 and not hasattr(model, ADAPTER)
        self._start = copy.deepcopy(model).eval().requires_grad_(False) if with_copy else None
        self.dead = self.resampled = self.answers = self.invalid = 0
        self._means: list[float] = []
        self._since_reward = 0
        self.alarms: list[str] = []

    def work(self, model: PreTrainedModel, step: int) -> StepWork | None:
        """Draw and judge this step's groups; return the update that they ask for."""
        config = self._config
        groups = self._groups(model, step)
        rewards = [one for group in groups for one in group.rewards]
        if not rewards:
            return None
        mean = sum(rewards) / len(rewards)
        figures = self._figures(groups, mean)
        self._watch(groups, mean, step)
        self._starved(rewards, len(groups))
        alive = [group for group in groups if not group.dead]
        if not alive:
            return StepWork(tokens=0, loss=lambda: torch.zeros(()), updates=0, figures=figures)
        answers = [one for group in alive for one in group.answers]
        gains = torch.tensor(
            [
                one
                for group in alive
                for one in advantages(
                    group.earned, [noise_of(said, config) for said in group.outcomes]
                )
            ]
        )
        pad = self._tokenizer.pad_token_id
        with torch.no_grad():
            before, asked = answer_logs(model, answers, pad, as_drawn=True)
            before = drawn_logs(before, answers)
            start = self._start_logs(model, answers) if config.kl > 0 else None
        gains = gains.to(before.device)[:, None]

        def loss() -> Tensor:
            logs, _ = answer_logs(model, answers, pad)
            ratio = (logs - before).exp()
            clipped = ratio.clamp(1 - config.ratio_clip, 1 + config.ratio_clip)
            per_token = -torch.minimum(ratio * gains, clipped * gains)
            if start is not None:
                away = start - logs
                per_token = per_token + config.kl * (away.exp() - away - 1)
            return (per_token * asked).sum() / asked.sum()

        tokens = sum(len(one.prompt) + len(one.answer) for one in answers)
        return StepWork(tokens=tokens, loss=loss, updates=config.updates, figures=figures)

    def _start_logs(self, model: PreTrainedModel, answers: Sequence[Sampled]) -> Tensor:
        """Return `answer_logs` of the policy that GRPO began with."""
        pad = self._tokenizer.pad_token_id
        if self._start is not None:
            return answer_logs(self._start, answers, pad)[0]
        with getattr(model, ADAPTER)():
            return answer_logs(model, answers, pad)[0]

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        return {} if self._skills is None else self._skills.measure(model)

    def state(self) -> dict[str, Json]:
        """Return the counters, and the means that the alarm compares with."""
        return {
            "counts": [self.dead, self.resampled, self.answers, self.invalid, self._since_reward],
            "means": self._means[-32:],
            "alarms": self.alarms,
        }

    def restore(self, state: dict[str, Json]) -> None:
        self.dead, self.resampled, self.answers, self.invalid, self._since_reward = state["counts"]
        self._means, self.alarms = list(state["means"]), list(state["alarms"])

    def _groups(self, model: PreTrainedModel, step: int) -> list[Group]:
        """Return this step's groups; a dead one is drawn again, hotter, a few times."""
        waiting = self._chosen(step)
        found: list[Group] = []
        for attempt in range(self._config.resamples + 1):
            asked = [(task, list[Draft]()) for task in waiting]
            for _ in range(self._config.turns):
                for task, drafts in asked:
                    drafts.append(self._draw(model, task, step, attempt, drafts))
            again: list[LearnTask] = []
            for task, drafts in asked:
                own = self._judged(task, drafts)
                if not all(one.dead for one in own):
                    found += own
                elif attempt < self._config.resamples and time.monotonic() < self._deadline:
                    again.append(task)
                    self.resampled += 1
                else:
                    self.dead += 1
                    found += own
            waiting = again
        return found

    def _chosen(self, step: int) -> list[LearnTask]:
        """Return the problems of a step: all of them once before any comes again."""
        count, size = self._config.problems, len(self._tasks)
        found = []
        for place in range(step * count, (step + 1) * count):
            order = list(range(size))
            random.Random(f"{self._config.seed} epoch {place // size}").shuffle(order)
            found.append(self._tasks[order[place % size]])
        return list(dict.fromkeys(found))

    def _draw(
        self,
        model: PreTrainedModel,
        task: LearnTask,
        step: int,
        attempt: int,
        before: Sequence[Draft],
    ) -> Draft:
        """Draw a group of answers, or another try at each answer of the turn before."""
        config, begun = self._config, f"{self._config.seed} {task.key} {step} {attempt}"
        plain, blur = self._language.prompt(task), random.Random(f"{begun} blur")
        first = self._language.blurred(plain, config.blur, blur)

        def request(prompt: str, count: int, place: str) -> DrawRequest:
            return self._language.request(
                task,
                count,
                prompt=prompt,
                temperature=config.temperature * HOTTER**attempt,
                seed=random.Random(place).getrandbits(31),
            )

        requests = [] if before else [request(first, config.group, begun)]
        for last in before[-1:]:
            for at, (one, said) in enumerate(zip(last.answers, last.future.result(), strict=True)):
                again = self._language.again(
                    task, one.text, said_of(said), right=said.is_right, prompt=first
                )
                requests.append(request(again, 1, f"{begun} turn {len(before)} {at}"))
        drawn = self._rollouts.draw(model, self._tokenizer, requests)
        answers = [one for own in drawn for one in own]
        candidates = [read_candidate(self._language, task, one.text) for one in answers]
        future = self._pool.submit(judge_answers, self._bench, task, candidates)
        return Draft(answers=answers, candidates=candidates, future=future)

    def _judged(self, task: LearnTask, drafts: Sequence[Draft]) -> list[Group]:
        """Return a group for each turn. Answers that could not be measured are left out."""
        outcomes = [one.future.result() for one in drafts]
        repeats = self._config.repeats
        rewards = [[reward_of(one, self._config) for one in turn] for turn in outcomes]
        worth = [
            shared(one, [None if k is None else k.kernel.hash for k in draft.candidates], repeats)
            for one, draft in zip(rewards, drafts, strict=True)
        ]
        rows = [credits(row, self._config.discount) for row in zip(*worth, strict=True)]
        plain = [credits(row, self._config.discount) for row in zip(*rewards, strict=True)]
        found = []
        for turn, draft in enumerate(drafts):
            there = [place for place, one in enumerate(rewards[turn]) if one is not None]
            self.answers += len(draft.answers)
            self.invalid += sum(one is None for one in draft.candidates)
            group = Group(
                task=task,
                answers=tuple(draft.answers[place] for place in there),
                candidates=tuple(draft.candidates[place] for place in there),
                outcomes=tuple(outcomes[turn][place] for place in there),
                rewards=tuple(rewards[turn][place] or 0.0 for place in there),
                earned=tuple(rows[place][turn] or 0.0 for place in there),
                dead=is_dead([plain[place][turn] or 0.0 for place in there]),
            )
            found.append(group)
        return found

    def _figures(self, groups: Sequence[Group], mean: float) -> dict[str, float]:
        outcomes = [one for group in groups for one in group.outcomes]
        count = max(1, len(outcomes))
        return {
            "reward": mean,
            "right": sum(one.is_right for one in outcomes) / count,
            "valid": sum(one.status != "invalid" for one in outcomes) / count,
            "fast": sum(is_fast(one) for one in outcomes) / count,
            "dead": self.dead,
            "resampled": self.resampled,
            "judged": self._bench.judged,
        }

    def _watch(self, groups: Sequence[Group], mean: float, step: int) -> None:
        """Judge the kernels behind a jump of the reward in full; stop if one of them is a hack."""
        if self._config.alarm and is_jump(self._means, mean):
            pairs = [
                (reward, group.task, one)
                for group in groups
                for reward, one in zip(group.rewards, group.candidates, strict=True)
                if one is not None
            ]
            pairs.sort(key=lambda one: -one[0])
            suspects = {one.kernel.hash: (task, one) for _, task, one in pairs}
            said = [
                (one.kernel.hash[:12], task.name, self._bench.in_full(task, one.kernel))
                for task, one in list(suspects.values())[:SUSPECTS]
            ]
            words = ", ".join(f"{key} for {name}: {status}" for key, name, status in said)
            self.alarms.append(f"step {step}: the reward jumped to {mean:.2f} ({words})")
            if any(status in REJECTED for *_, status in said):
                raise LearnError(
                    f"the reward jumped to {mean:.2f} at step {step}, and a full verdict rejects "
                    f"kernels that made it ({words}): report them, or train without these problems"
                )
        self._means.append(mean)

    def _starved(self, rewards: Sequence[float], groups: int) -> None:
        """Raise NoReward if a whole epoch brought none."""
        self._since_reward = 0 if any(one > 0 for one in rewards) else self._since_reward + groups
        if self._since_reward >= max(len(self._tasks), 4):
            raise NoReward(
                f"all rewards of a whole epoch ({self._since_reward} groups) are zero: run "
                "ratchet learn sft for more steps first, or begin with easier families"
            )


def read_candidate(language: AnswerLanguage, task: LearnTask, answer: str) -> Proposal | None:
    found = language.read(task, answer)
    return None if isinstance(found, str) else found


def said_of(outcome: Screening) -> str:
    """Return the judge's words on an answer for the next prompt."""
    if outcome.is_right and outcome.ratio is not None:
        return f"right, {outcome.ratio:.2f}x"
    return f"{outcome.status}: {' '.join(outcome.reason.split())}".rstrip(": ")


FAST: Final = 1.2


def is_fast(outcome: Screening) -> bool:
    """Return whether a kernel is right and at least FAST times as fast as its rival."""
    return outcome.is_right and outcome.ratio is not None and outcome.ratio >= FAST
