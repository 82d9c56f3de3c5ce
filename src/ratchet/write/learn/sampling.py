"""Drawing answers from a policy, and the log-probabilities of answers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MOST_LOGITS: Final = 1 << 28
"""Logits that are in memory at once: 1 GiB in float32, and a few times that in the backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """An answer as a model wrote it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    """Tokens, with the end if the model wrote it."""
    text: str
    allowed: tuple[tuple[int, ...], ...] = ()
    """The tokens that could stand at each place of the answer; empty if any could."""
    temperature: float = 1.0
    """At which it was drawn."""
    logs: tuple[float, ...] = ()
    """The answer's log-probabilities by the engine that drew it, at that temperature; empty if it
    was drawn with the weights that are trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawRequest:
    """A prompt to answer `count` times; the seed decides the answers.

    A temperature of 0 is greedy and gives one answer. `choices` are the words allowed at each
    place. They bind the model only if the tokenizer has one token for each word.
    """

    prompt: str
    count: int
    most_tokens: int
    temperature: float = 1.0
    seed: int = 0
    choices: Sequence[Sequence[str]] = ()


@torch.no_grad()
def sample(
    policy: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, request: DrawRequest
) -> list[Sampled]:
    """Return the answers to a request, drawn with transformers."""
    temperature = request.temperature
    ids = tokenizer(request.prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    place = next(policy.parameters()).device
    ids = ids.to(place)
    allowed = allowed_tokens(tokenizer, request.choices)
    length = ids.shape[1]

    def next_tokens(_: int, so_far: Tensor) -> list[int]:
        return list(allowed[min(len(so_far) - length, len(allowed) - 1)])

    training = policy.training
    policy.eval()
    with torch.random.fork_rng(devices=[] if place.type == "cpu" else [place]):
        torch.manual_seed(request.seed)
        drawn = policy.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.most_tokens,
            num_return_sequences=request.count if temperature > 0 else 1,
            do_sample=temperature > 0,
            # A model's own settings for generation would draw from other probabilities than those
            # that `answer_logs` gives.
            repetition_penalty=1.0,
            **({"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}),
            **({"prefix_allowed_tokens_fn": next_tokens} if allowed else {}),
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    policy.train(training)
    given = tuple(ids[0].tolist())
    found = [read_answer(tokenizer, given, row[len(given) :].tolist(), allowed) for row in drawn]
    return [replace(one, temperature=temperature) for one in found] if temperature > 0 else found


def allowed_tokens(
    tokenizer: PreTrainedTokenizerFast, choices: Sequence[Sequence[str]]
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens allowed at each place, and the end; none if a word has several tokens."""
    places = [
        [tokenizer(one, add_special_tokens=False)["input_ids"] for one in place]
        for place in choices
    ]
    if not places or any(len(ids) != 1 for place in places for ids in place):
        return ()
    return (*(tuple(ids[0] for ids in place) for place in places), (tokenizer.eos_token_id,))


def read_answer(
    tokenizer: PreTrainedTokenizerFast,
    prompt: tuple[int, ...],
    answer: list[int],
    allowed: tuple[tuple[int, ...], ...] = (),
) -> Sampled:
    """Return an answer up to the model's end token."""
    end = tokenizer.eos_token_id
    stop = answer.index(end) + 1 if end in answer else len(answer)
    kept = answer[:stop]
    text = tokenizer.decode([one for one in kept if one != end], skip_special_tokens=False)
    # Without an end the answer was cut: it is read as it is, and is invalid if it is not whole.
    return Sampled(prompt=prompt, answer=tuple(kept), text=text, allowed=allowed)


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Return rows of tokens as one tensor, padded at the end."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def answer_logs(
    model: PreTrainedModel, answers: Sequence[Sampled], pad: int, *, as_drawn: bool = False
) -> tuple[Tensor, Tensor]:
    """Return each answer token's log-probability, and a mask of the tokens: [answers, length] both.

    The length reaches from the shortest prompt's end to the longest answer's. Tokens that were
    allowed at a place share its probability. `as_drawn` takes each answer's temperature instead of
    1. To save memory, many logits are computed a few answers at a time, and again in the backward.
    """
    place = next(model.parameters()).device
    ids = padded([one.prompt + one.answer for one in answers], pad).to(place)
    whole = padded([[1] * (len(one.prompt) + len(one.answer)) for one in answers], 0).to(place)
    first = min(len(one.prompt) for one in answers) - 1  # logits tell of the token after theirs
    asked = padded([[0] * len(one.prompt) + [1] * len(one.answer) for one in answers], 0)
    asked = asked[:, first + 1 :].to(place).float()

    def part(rows: slice) -> Tensor:
        logits = _last_logits(model, ids[rows], whole[rows], first)
        return _token_logs(logits, ids[rows, first + 1 :], answers[rows], first, as_drawn)

    each = max(1, MOST_LOGITS // max(1, (ids.shape[1] - first) * model.config.vocab_size))
    if each >= len(answers):
        return part(slice(None)), asked
    parts = [slice(at, at + each) for at in range(0, len(answers), each)]
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(part, one, use_reentrant=False) for one in parts]), asked
    return torch.cat([part(one) for one in parts]), asked


def _last_logits(model: PreTrainedModel, ids: Tensor, whole: Tensor, first: int) -> Tensor:
    """Return the logits from place `first` on, but for the last one, [rows, places, words]."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    keep = ids.shape[1] - first
    takes = "logits_to_keep" in inspect.signature(base.forward).parameters
    more = {"logits_to_keep": keep} if takes else {}
    logits: Tensor = model(input_ids=ids, attention_mask=whole, **more).logits
    return logits[:, -keep:-1].float()


def _token_logs(
    logits: Tensor, tokens: Tensor, answers: Sequence[Sampled], first: int, as_drawn: bool
) -> Tensor:
    if any(one.allowed for one in answers):
        barred = torch.zeros_like(logits, dtype=torch.bool)
        for row, one in enumerate(answers):
            begin = len(one.prompt) - 1 - first
            for at, among in enumerate(one.allowed[: len(one.answer)], start=begin):
                barred[row, at] = True
                barred[row, at, list(among)] = False
        logits = logits.masked_fill(barred, -torch.inf)
    if as_drawn:
        heat = torch.tensor([one.temperature for one in answers], device=logits.device)
        logits = logits / heat[:, None, None]
    return F.log_softmax(logits, dim=-1).gather(-1, tokens[..., None])[..., 0]


def drawn_logs(logs: Tensor, answers: Sequence[Sampled]) -> Tensor:
    """Return `logs` of `answer_logs`, replaced by the engine's if one drew the answer.

    An update divides by the probabilities that an answer was drawn with. An engine in bfloat16 has
    others than the float32 weights.
    """
    found = logs.clone()
    shortest = min(len(one.prompt) for one in answers)
    for row, one in enumerate(answers):
        if one.logs:
            first = len(one.prompt) - shortest
            found[row, first : first + len(one.logs)] = torch.tensor(one.logs).to(found)
    return found
