"""Batches for Hugging Face models: words, images, clips and audio, with the labels of each head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ratchet.base.errors import WorkloadError
from ratchet.base.text import BYTE_SYMBOLS
from ratchet.train.workloads.bert import BertSize, MaskedWords
from ratchet.train.workloads.family import Data
from ratchet.train.workloads.hf_config import Head
from ratchet.train.workloads.hf_inputs import (
    PATCH,
    Batching,
    NamedBatches,
    candidates,
    captions,
    image_side,
    next_words,
    vocabulary,
    whole,
)
from ratchet.train.workloads.vit import MadeImages, ViTSize
from ratchet.train.workloads.windows import text_windows
from ratchet.train.workloads.workload import BatchFunction

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def batches_for(model: nn.Module, head: Head, batching: Batching, data: Data) -> BatchFunction:
    """Return batches that `model` takes.

    Where the configuration does not tell the shape of an input, such as a spectrogram's, the likely
    ones are tried in turn. Raises WorkloadError if the model takes none of them.
    """
    config: PretrainedConfig = model.config
    if head.inputs == "words":
        return next_words(vocabulary(config), batching, data)
    if head.inputs == "captions":
        return _first_taken(model, captions(model, batching, data))
    if head.inputs == "audio" and getattr(model, "main_input_name", "") == "input_ids":
        return next_words(vocabulary(config), batching, data)
    if head.inputs == "masked" and vocabulary(config) <= BYTE_SYMBOLS + 1:
        return next_words(vocabulary(config), batching, data)
    if head.inputs == "masked":
        return NamedBatches(source=_masked_words(vocabulary(config), batching, data))
    if head.inputs == "classes" and getattr(model, "main_input_name", "") == "pixel_values":
        return NamedBatches(source=_images(config, batching, data), inputs="pixel_values")
    return _first_taken(model, candidates(model, head, batching, data))


def _masked_words(symbols: int, batching: Batching, data: Data) -> MaskedWords:
    size = BertSize(
        hidden=0,
        layers=0,
        heads=1,
        vocabulary=symbols,
        sequence=batching.sequence,
        batch_size=batching.batch_size,
    )
    windows = text_windows(
        data,
        vocabulary=size.mask_id,
        batch_size=batching.batch_size,
        length=batching.sequence,
    )
    return MaskedWords(windows=windows, size=size, device=data.device)


def _images(config: PretrainedConfig, batching: Batching, data: Data) -> MadeImages:
    size = ViTSize(
        hidden=0,
        layers=0,
        heads=1,
        image=image_side(config),
        patch=whole(config, ("patch_size",), PATCH),
        classes=int(config.num_labels),
        batch_size=batching.batch_size,
    )
    return MadeImages(size=size, seed=data.seed, device=data.device)


def _first_taken(model: nn.Module, candidates: Iterator[BatchFunction]) -> BatchFunction:
    why: Exception | None = None
    for batches in candidates:
        try:
            with torch.no_grad():
                loss = model(**batches(0)).loss
            if isinstance(loss, Tensor) and loss.numel() == 1:
                return batches
            why = why or ValueError("the model returns no loss for these labels")
        except Exception as error:  # the model's own code may raise anything for a wrong shape
            why = why or error
    said = " ".join(str(why).split())[:300] or type(why).__name__
    raise WorkloadError(
        f"{type(model).__name__} takes no batch that Ratchet can make ({said}); write a "
        "file.py:function"
    ) from why
