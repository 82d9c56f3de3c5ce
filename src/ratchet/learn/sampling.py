"""Drawing answers from a policy, and the log-probabilities of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """An answer as a model wrote it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    """Tokens, with the end if the model wrote it."""
    text: str


@torch.no_grad()
def sample(
    policy: Any,
    tokenizer: Any,
    prompt: str,
    count: int,
    *,
    most_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[Sampled]:
    """Return `count` answers; the seed decides them. A temperature of 0 is greedy."""
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    place = next(policy.parameters()).device
    ids = ids.to(place)
    training = policy.training
    policy.eval()
    with torch.random.fork_rng(devices=[] if place.type == "cpu" else [place]):
        torch.manual_seed(seed)
        drawn = policy.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=most_tokens,
            num_return_sequences=count if temperature > 0 else 1,
            do_sample=temperature > 0,
            **({"temperature": temperature, "top_k": 0} if temperature > 0 else {}),
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    policy.train(training)
    given = tuple(ids[0].tolist())
    return [_read(tokenizer, given, row[len(given) :].tolist()) for row in drawn]


def _read(tokenizer: Any, prompt: tuple[int, ...], answer: list[int]) -> Sampled:
    end = tokenizer.eos_token_id
    stop = answer.index(end) + 1 if end in answer else len(answer)
    kept = answer[:stop]
    text = tokenizer.decode([one for one in kept if one != end], skip_special_tokens=False)
    # Without an end the answer was cut: it is read as it is, and is invalid if it is not whole.
    return Sampled(prompt=prompt, answer=tuple(kept), text=text)


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Return rows of tokens as one tensor, padded at the end."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def answer_logs(model: Any, answers: Sequence[Sampled], pad: int) -> tuple[Tensor, Tensor]:
    """Return each answer token's log-probability and which are tokens, [answers, length] both."""
    place = next(model.parameters()).device
    ids = padded([one.prompt + one.answer for one in answers], pad).to(place)
    whole = padded([[1] * (len(one.prompt) + len(one.answer)) for one in answers], 0).to(place)
    asked = padded([[0] * len(one.prompt) + [1] * len(one.answer) for one in answers], 0)
    logits = model(input_ids=ids, attention_mask=whole).logits[:, :-1].float()
    logs = F.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None])[..., 0]
    return logs, asked[:, 1:].to(place).float()
