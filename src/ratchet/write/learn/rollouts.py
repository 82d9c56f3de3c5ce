"""Drawing a policy's answers, with transformers or vLLM, and the log-probabilities of answers.

vLLM runs in this process and shares the GPU with the training. It takes the policy's weights
before it draws, if they have changed.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import os
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ratchet.base import scratch
from ratchet.base.errors import LearnError
from ratchet.write.learn.config import LearnConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from vllm import LLM


MOST_LOGITS: Final = 1 << 28
"""Logits that are in memory at once: 1 GiB in float32, and a few times that in the backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """An answer as a model wrote it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]  # Tokens, with the end if the model wrote it
    text: str
    allowed: tuple[tuple[int, ...], ...] = ()
    """The tokens that could stand at each place of the answer; empty if any could."""
    temperature: float = 1.0  # At which it was drawn
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


IN_PROCESS: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that it can read the policy's tensors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the judge's processes would inherit its cores
}
ADAPTERS: Final = "peft_config"  # An attribute of models with LoRA's adapters
QUIET: Final = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""Set unless the user did: no log but errors; on a CPU 1 GiB for keys and values."""
FAR: Final = 0.5  # Nats a token. An engine that has the model's weights never differs by so much.


class Rollouts:
    """Draws answers with the model itself, one request after the other."""

    def draw(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        requests: Sequence[DrawRequest],
    ) -> list[list[Sampled]]:
        """Return the answers to each request, drawn with the model's weights of now."""
        return [sample(model, tokenizer, one) for one in requests]

    def close(self) -> None:
        """Free the memory of an engine, if there is one."""


class VllmRollouts(Rollouts):
    """Draws with vLLM, all requests of a call in one batch.

    Transformers draws answers that are limited to choices: they have a few tokens.
    """

    def __init__(self, *, memory: float, seed: int = 0) -> None:
        """`memory`: the share of the GPU's memory that vLLM takes."""
        self._memory, self._seed = memory, seed
        self._engine: Any = None
        self._model: weakref.ref[PreTrainedModel] | None = None
        self._versions: tuple[int, ...] = ()
        self._checked = False

    def draw(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        requests: Sequence[DrawRequest],
    ) -> list[list[Sampled]]:
        """Return the answers to each request, in the requests' order, drawn in one batch.

        A request has `count` answers, or one at a temperature of 0. The engine is started at the
        first call, and takes the model's weights if they changed since the last one. Each answer's
        `logs` are the engine's own: its bfloat16 weights give other probabilities than the trained
        ones, and GRPO divides by those that an answer was drawn with. The first answers of all are
        compared with the model's own probabilities, since vLLM only warns about weights it lacks.

        If any request limits its answers to choices that have one token each, transformers draws
        all of them: they are a few tokens long. Raises LearnError: vLLM cannot run this model, its
        weights are not the model's, or a prompt is longer than it can read.
        """
        if any(allowed_tokens(tokenizer, one.choices) for one in requests):
            return super().draw(model, tokenizer, requests)
        try:
            self._take(model)
            found = self._drawn(tokenizer, requests)
        except Exception as error:  # the bases of its errors are others in each version
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise LearnError(
                f"vLLM cannot draw this model's answers ({reason}): give another "
                "--rollout-memory, or --rollouts transformers"
            ) from error
        self._check(model, tokenizer, [one for own in found for one in own if one.logs])
        return found

    def close(self) -> None:
        if self._engine is None:
            return
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._engine = self._model = None
        cleanup_dist_env_and_memory()

    def _take(self, model: PreTrainedModel) -> None:
        """Give the engine the model's weights, if they have changed.

        Every in-place change of a tensor raises its version, an optimizer's step too.
        """
        if self._engine is None:
            self._engine = _engine(model, self._memory, self._seed)
        versions = tuple(one._version for one in model.parameters())
        held = None if self._model is None else self._model()
        if held is model and versions == self._versions:
            return
        weights = {"weights_iterator": plain_weights(model)}
        self._engine.collective_rpc("reload_weights", kwargs=weights)
        self._engine.reset_prefix_cache()
        self._model, self._versions = weakref.ref(model), versions

    def _check(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, answers: Sequence[Sampled]
    ) -> None:
        """Raise a LearnError, at the first answers, if the engine's weights are not the model's."""
        if self._checked or not answers:
            return
        self._checked = True
        with torch.no_grad():
            own, asked = answer_logs(model, answers[:1], tokenizer.pad_token_id, as_drawn=True)
        gap = float(((drawn_logs(own, answers[:1]) - own).abs() * asked).sum() / asked.sum())
        if not gap < FAR:
            raise LearnError(
                f"vLLM's log-probabilities are {gap:.2f} nats from the model's: it does not read "
                "this kind of model's weights, so give --rollouts transformers"
            )

    def _drawn(
        self, tokenizer: PreTrainedTokenizerFast, requests: Sequence[DrawRequest]
    ) -> list[list[Sampled]]:
        from vllm import SamplingParams

        prompts = [
            {"prompt_token_ids": tokenizer(one.prompt, add_special_tokens=False)["input_ids"]}
            for one in requests
        ]
        settings = [
            SamplingParams(
                n=one.count if one.temperature > 0 else 1,
                temperature=one.temperature,
                seed=one.seed,
                max_tokens=one.most_tokens,
                stop_token_ids=[tokenizer.eos_token_id],
                logprobs=0,
                detokenize=False,
            )
            for one in requests
        ]
        outputs = self._engine.generate(prompts, settings, use_tqdm=False)
        found = []
        for request, prompt, output in zip(requests, prompts, outputs, strict=True):
            given, own = tuple(prompt["prompt_token_ids"]), []
            for one in output.outputs:
                tokens = list(one.token_ids)
                rows = zip(one.logprobs, tokens, strict=True)
                logs = tuple(float(row[token].logprob) for row, token in rows)
                read = read_answer(tokenizer, given, tokens)
                if request.temperature > 0:
                    logs = logs[: len(read.answer)]
                    read = replace(read, temperature=request.temperature, logs=logs)
                own.append(read)
            found.append(own)
        return found


def plain_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's weights by their names in a checkpoint, with LoRA's adapters merged."""
    if not hasattr(model, ADAPTERS):
        yield from model.state_dict().items()
        return
    base = model.get_base_model()
    modules = dict(base.named_modules())
    for name, one in base.state_dict().items():
        if any(part.startswith("lora_") for part in name.split(".")):
            continue
        place, inner, _ = name.rpartition(".base_layer.")
        if inner and name.endswith(".weight"):
            delta = sum(modules[place].get_delta_weight(a) for a in modules[place].active_adapters)
            one = one + delta
        yield name.replace(".base_layer.", "."), one.detach()


def open_rollouts(config: LearnConfig) -> Rollouts:
    """Return the engine that a config names; `auto` takes vLLM for sources on a GPU.

    Raises LearnError: vLLM is asked for and not installed.
    """
    there = importlib.util.find_spec("vllm") is not None
    fits = there and config.device != "cpu" and config.answers == "source"
    if config.rollouts == "transformers" or (config.rollouts == "auto" and not fits):
        return Rollouts()
    if not there:
        raise LearnError(
            "--rollouts vllm needs vLLM, which is not installed: pip install vllm, or give "
            "--rollouts transformers"
        )
    return VllmRollouts(memory=config.rollout_memory, seed=config.seed)


def _engine(model: PreTrainedModel, memory: float, seed: int) -> LLM:
    """Return a vLLM engine for a model of this shape, with random weights."""
    os.environ.update(IN_PROCESS)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    place = next(model.parameters()).device
    if place.index:
        raise ValueError(f"it takes the first GPU and not {place}: set CUDA_VISIBLE_DEVICES")
    on_cpu = place.type == "cpu"
    plain = model.get_base_model() if hasattr(model, ADAPTERS) else model
    shape = copy.deepcopy(plain.config)
    shape.architectures = [type(plain).__name__]
    with scratch.folder("model") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        from vllm import LLM

        shape.save_pretrained(folder)
        return LLM(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,  # it gets tokens and returns tokens
            dtype="float32" if on_cpu else "bfloat16",
            enforce_eager=on_cpu,
            max_model_len=-1,  # as many tokens as fit
            gpu_memory_utilization=memory,
            logprobs_mode="processed_logprobs",  # those at the temperature that it draws with
            seed=seed,
        )
