"""Engines that draw a policy's answers: transformers, or vLLM.

vLLM runs in this process and shares the GPU with the training. It takes the policy's weights
before it draws, if they have changed.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ratchet.base import scratch
from ratchet.base.errors import LearnError
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.sampling import (
    DrawRequest,
    Sampled,
    allowed_tokens,
    answer_logs,
    drawn_logs,
    read_answer,
    sample,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from vllm import LLM

IN_PROCESS: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that it can read the policy's tensors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the judge's processes would inherit its cores
}
ADAPTERS: Final = "peft_config"
"""An attribute of models with LoRA's adapters."""
QUIET: Final = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""Set unless the user did: no log but errors; on a CPU 1 GiB for keys and values."""
FAR: Final = 0.5
"""Nats a token. An engine that has the model's weights never differs by so much."""


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
        """Return the answers to each request.

        Raises:
            LearnError: vLLM cannot run this model, or a prompt is longer than it can read.
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
        """Free the engine and its memory."""
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
        """Raise a LearnError, at the first answers, if the engine's weights are not the model's.

        vLLM only warns about weights that it did not find.
        """
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

    Raises:
        LearnError: vLLM is asked for and not installed.
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
