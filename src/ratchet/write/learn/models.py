"""Policies and their models: a small Llama of our own, or any causal language model."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import torch

from ratchet.base.errors import LearnError
from ratchet.base.files import write_whole
from ratchet.base.process.memory import free_bytes
from ratchet.base.serialise import encoded
from ratchet.base.text import train_bytes
from ratchet.write.learn.config import SIZES, LearnConfig
from ratchet.write.learn.languages import ANSWER, END, JUDGED, TASK, choice_words

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

CARD: Final = "policy.json"
LONGEST: Final = 1024  # Positions of the small Llama
HEAD: Final = 32
ONE_THREAD: Final = 5_000_000  # A model with fewer parameters gets one thread
TRAINED_BYTES: Final = 16  # Bytes of a weight with its gradient and AdamW's two moments, in float32
PAD: Final = "<pad>"
PLAIN_CHAT: Final = "{% for one in messages %}{{ one['content'] }}\n{% endfor %}"
"""Template of a tokenizer that has none: a server puts a chat as a policy is taught to read it."""
SAMPLE_CHARACTERS: Final = 2_000_000  # Text that the tokenizer's merges are learned from


class PolicyCard(msgspec.Struct, frozen=True, kw_only=True):
    """The file policy.json in a policy's folder."""

    answers: str
    language: str
    stage: str  # `base`, `sft` or `grpo`
    parameters: int
    corpus: str = ""  # Hash of the corpus that it was trained on
    figures: dict[str, float] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    card: PolicyCard

    @property
    def device(self) -> torch.device:
        found: torch.device = next(self.model.parameters()).device
        return found


def quiet() -> None:
    """Keep transformers' progress bars and advice off the terminal."""
    import os

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import transformers
    except ModuleNotFoundError:
        raise LearnError(
            "a policy needs transformers: pip install 'torch-ratchet[learn]'"
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def fit_threads(model: PreTrainedModel) -> None:
    """Give a small model on the CPU one thread.

    Two gain little, and on a busy machine they wait for each other in every op.
    """
    if count_parameters(model) < ONE_THREAD and next(model.parameters()).device.type == "cpu":
        torch.set_num_threads(1)


def train_tokenizer(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    from tokenizers import decoders
    from transformers import PreTrainedTokenizerFast

    words = choice_words()
    own = train_bytes(_pieces(texts), size - len(words) - 5)
    own.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(
        tokenizer_object=own, eos_token=END, pad_token=PAD, padding_side="left"
    )
    found.chat_template = PLAIN_CHAT
    found.add_tokens([TASK, ANSWER, JUDGED, *words])
    return found


def _pieces(texts: Sequence[str]) -> list[str]:
    left, found = SAMPLE_CHARACTERS, []
    for text in texts:
        found.append(text[:left])
        left -= len(found[-1])
        if left <= 0:
            break
    return found


def small_llama(config: LearnConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Return a Llama with random weights that `config.seed` decides."""
    from transformers import LlamaConfig, LlamaForCausalLM

    quiet()

    width, layers = SIZES[config.size]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=width,
                intermediate_size=3 * width,
                num_hidden_layers=layers,
                num_attention_heads=width // HEAD,
                num_key_value_heads=width // HEAD,
                max_position_embeddings=LONGEST,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        ).to(check_device(config.device))
    fit_threads(model)
    return model


def load_model(
    name: str, *, device: str = "cpu", training: bool = False, lora: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a causal language model and its tokenizer, by name or folder.

    Raises LearnError: there is no such model or device, it does not fit in memory, or model and
    tokenizer do not match.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    quiet()
    what = f"the model {name!r}"
    try:
        place = check_device(device)
        shape = AutoConfig.from_pretrained(name)
        _check_memory(shape, what, place, training=training, lora=lora)
        tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = " ".join(str(error).split())[:160]
        raise LearnError(
            f"{what} cannot be loaded ({reason}): give a folder or a name on the hub of a "
            "causal language model"
        ) from error
    except torch.OutOfMemoryError as error:
        raise LearnError(f"{what} does not fit in memory: give a smaller one") from error
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:  # tokens that the model does not know
        raise LearnError(
            f"the tokenizer of {name!r} has {len(tokenizer)} tokens and its model {rows}: "
            "they do not belong together; give a folder that holds both of one model"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_CHAT
    fit_threads(model)
    return model.to(place), tokenizer


def check_device(name: str) -> torch.device:
    """Return the device of that name; raise a LearnError if it is unknown or not there."""
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = torch.cuda.device_count()
        rule = f"cpu, or cuda:0 to cuda:{there - 1}" if there else "cpu: torch sees no GPU here"
        raise LearnError(f"device {name!r} cannot be used: give {rule}") from error
    return found


def _check_memory(
    shape: object, what: str, device: torch.device, *, training: bool, lora: int
) -> None:
    """Raise a LearnError if the weights, and their training state, do not fit."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        count = sum(one.numel() for one in AutoModelForCausalLM.from_config(shape).parameters())
    needed = count * (TRAINED_BYTES if training and not lora else 4)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()  # what torch holds and does not use counts as free
        there = torch.cuda.mem_get_info(device)[0]
    elif device.type == "cpu":
        there = free_bytes()
    else:
        return
    if needed > there:
        other = "" if lora or not training else ", or --lora 16"
        raise LearnError(
            f"{what} of {count / 1e9:.1f} billion parameters needs about {needed / 2**30:.0f} GiB "
            f"and {there / 2**30:.0f} are free: give a smaller model{other}"
        )


def with_lora(model: PreTrainedModel, rank: int, *, seed: int = 0) -> PreTrainedModel:
    """Return the model with LoRA adapters on every linear layer; only they are trained.

    The seed decides the adapters' first weights.
    """
    if rank == 0:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise LearnError(
            "--lora needs peft: pip install 'torch-ratchet[learn]', or leave it out"
        ) from error
    shape = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, shape)


def save_policy(folder: Path, policy: Policy) -> None:
    """Write a policy's folder: model, tokenizer and card. Adapters are merged into a copy.

    Raises LearnError: the disk is full, or the folder cannot be written.
    """
    import copy

    from safetensors import SafetensorError

    model = policy.model
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        write_whole(folder / CARD, encoded(policy.card, indent=2))
    except (OSError, RuntimeError, SafetensorError) as error:  # a full disk, by who writes
        reason = " ".join(str(error).split())[:160]
        raise LearnError(
            f"the policy cannot be written to {str(folder)!r} ({reason}): make room there; "
            "the run's checkpoint is whole and the same command goes on from it"
        ) from error


def load_policy(
    folder: Path, *, device: str = "cpu", training: bool = False, lora: int = 0
) -> Policy:
    """Return the policy of a folder that `ratchet learn` wrote.

    `training` checks that there is memory to train it, or adapters of rank `lora` on it. Raises
    LearnError: the folder holds no policy.
    """
    card = read_card(folder)
    model, tokenizer = load_model(str(folder), device=device, training=training, lora=lora)
    return Policy(model=model, tokenizer=tokenizer, card=card)


def read_card(folder: Path) -> PolicyCard:
    """Return the card of a policy's folder; raise a LearnError if it has none."""
    try:
        return msgspec.json.decode((folder / CARD).read_bytes(), type=PolicyCard)
    except (OSError, msgspec.DecodeError) as error:
        raise LearnError(
            f"{str(folder)!r} holds no policy: give a folder that ratchet learn sft, grpo or loop "
            "wrote"
        ) from error


def count_parameters(model: PreTrainedModel) -> int:
    return sum(one.numel() for one in model.parameters())
