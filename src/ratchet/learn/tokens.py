"""The small model's tokenizer: byte-pair encoding, with one token for each choice of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.base.errors import LearnError
from ratchet.learn.languages import ANSWER, END, JUDGED, TASK, choice_words

PAD = "<pad>"
SAMPLE_CHARACTERS = 2_000_000
"""Text that the merges are learned from."""


def train_tokenizer(texts: Sequence[str], size: int) -> Any:
    """Return a tokenizer of `size` tokens for these texts and for every schedule."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = choice_words()
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(words) - 5,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    own.train_from_iterator(_pieces(texts), trainer)
    found = PreTrainedTokenizerFast(
        tokenizer_object=own, eos_token=END, pad_token=PAD, padding_side="left"
    )
    found.add_tokens([TASK, ANSWER, JUDGED, *words])
    return found


def check_tokenizer(tokenizer: Any, model: Any, place: str) -> None:
    """Raise a LearnError if a tokenizer has tokens that a model does not know."""
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise LearnError(
            f"the tokenizer of {place!r} has {len(tokenizer)} tokens and its model {rows}: "
            "they do not belong together; give a folder that holds both of one model"
        )


def _pieces(texts: Sequence[str]) -> list[str]:
    left, found = SAMPLE_CHARACTERS, []
    for text in texts:
        found.append(text[:left])
        left -= len(found[-1])
        if left <= 0:
            break
    return found
