"""The objectives that pretraining and supervised fine-tuning train for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from ratchet.base.errors import LearnError
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import TaughtAnswer
from ratchet.write.learn.forgetting import TextWindows
from ratchet.write.learn.languages import AnswerLanguage
from ratchet.write.learn.rollouts import Rollouts
from ratchet.write.learn.sampling import Sampled, allowed_tokens, answer_logs
from ratchet.write.learn.tasks import LearnTask
from ratchet.write.learn.training import Objective, StepWork, text_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class Pretraining(Objective):
    """Predict the next token of text."""

    stage = "pretrain"
    least = 20

    def __init__(self, text: TextWindows, config: LearnConfig) -> None:
        self._text, self._config = text, config

    def work(self, model: PreTrainedModel, step: int) -> StepWork:
        """Return a batch of windows."""
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
        """Return a batch of examples."""
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
        rollouts: Rollouts | None = None,
        *,
        most: int = 4,
    ) -> None:
        self._tasks, self._language, self._tokenizer = tasks[:most], language, tokenizer
        self._rollouts = rollouts or Rollouts()

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
