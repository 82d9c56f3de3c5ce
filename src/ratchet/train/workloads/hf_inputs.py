"""Inputs and labels for Hugging Face models, drawn until one batch is taken."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ratchet.base.errors import WorkloadError
from ratchet.base.text import BYTE_SYMBOLS
from ratchet.train.workloads.bert import IGNORED, MaskedWords
from ratchet.train.workloads.family import Data, NextToken, text_windows
from ratchet.train.workloads.hf_config import Head
from ratchet.train.workloads.vit import MadeImages
from ratchet.train.workloads.workload import BatchFunction

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


IMAGE, PATCH = 224, 16  # Side of an image, and of a patch, where the configuration names none
FRAMES = 4
SAMPLES = 8000  # Samples of a waveform: half a second at 16 kHz
SPECTRA = 64  # Frames of a spectrogram, where the configuration names no number
LABEL_WORDS = 8
OBJECTS = 2
RESERVED = 16  # Ids at the end of a vocabulary that stand for images and other special things
MEL_NAMES = ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "mel_bins",
             "feature_projection_input_dim", "input_dim", "num_mels")  # fmt: skip
LENGTH_NAMES = ("max_source_positions", "max_length", "max_position_embeddings")
Integers = tuple[int, int, tuple[int, ...]]
"""Form of an input of integers: the least, one more than the most, and the shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """Batch size, sequence length, and a learning rate that suits the model's size."""

    batch_size: int
    sequence: int
    lr: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedBatches:
    """Batches under transformers' names."""

    source: BatchFunction
    inputs: str = "input_ids"
    same_labels: bool = False  # The labels equal the inputs: transformers shifts them itself

    def __call__(self, index: int) -> dict[str, Tensor]:
        inputs, labels = self.source(index)
        return {self.inputs: inputs, "labels": inputs if self.same_labels else labels}


def next_words(symbols: int, batching: Batching, data: Data) -> BatchFunction:
    """Return words to continue, of the first `symbols` of a vocabulary.

    Too few symbols for text, such as those of amino acids, are drawn at random.
    """
    if symbols <= BYTE_SYMBOLS:
        shape = (batching.batch_size, batching.sequence)
        ids: Integers = (1, symbols, shape)
        return RandomBatches(
            normal={},
            integers={"input_ids": ids, "labels": ids},
            seed=data.seed,
            device=data.device,
        )
    windows = text_windows(
        data,
        vocabulary=symbols,
        batch_size=batching.batch_size,
        length=batching.sequence + 1,
    )
    return NamedBatches(source=NextToken(windows=windows, device=data.device), same_labels=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomBatches:
    """Random batches of the given shapes; a batch is a function of the seed and its index."""

    normal: Mapping[str, tuple[int, ...]]  # Shapes of normally distributed inputs, by name
    integers: Mapping[str, Integers] = field(default_factory=dict)
    """(least, one more than the most, shape) of integers, by name."""
    objects: Callable[[np.random.Generator], dict[str, object]] | None = None
    """Makes labels that are lists of tensors."""
    seed: int
    device: torch.device

    def __call__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng((self.seed, index))
        batch: dict[str, Tensor] = {}
        for name, shape in self.normal.items():
            batch[name] = torch.from_numpy(rng.standard_normal(shape, np.float32))
        for name, (least, most, shape) in self.integers.items():
            batch[name] = torch.from_numpy(rng.integers(least, most, shape))
        batch = {name: value.to(self.device) for name, value in batch.items()}
        return batch | (self.objects(rng) if self.objects else {})


def candidates(
    model: nn.Module, head: Head, batching: Batching, data: Data
) -> Iterator[RandomBatches]:
    """Yield likely batches of audio, images or clips, with the labels of `head`."""
    config: PretrainedConfig = model.config
    size = batching.batch_size
    classes = int(config.num_labels or 2)
    make = partial(RandomBatches, seed=data.seed, device=data.device)
    if head.inputs in ("audio", "labels"):
        words: Integers = (1, vocabulary(config), (size, LABEL_WORDS))
        labels = words if head.inputs == "audio" else (0, classes, (size,))
        yield from _audio(model, size, labels, make)
        return
    side = whole(config, ("image_size",), IMAGE)
    image = (size, whole(config, ("num_channels", "in_channels"), 3), side, side)
    if head.inputs == "classes":
        one_each: dict[str, Integers] = {"labels": (0, classes, (size,))}
        pixels: Integers = (0, vocabulary(config) - 1, (size, SPECTRA))
        yield make(normal={}, integers={"input_ids": pixels, **one_each})
        yield make(normal={"pixel_values": image}, integers=one_each)
    elif head.inputs == "clips":
        frames = whole(config, ("num_frames", "frames_per_clip"), FRAMES)
        name = "pixel_values_videos" if takes(model, "pixel_values_videos") else "pixel_values"
        clip = {name: (size, frames, *image[1:])}
        yield make(normal=clip, integers={"labels": (0, classes, (size,))})
    elif head.inputs == "maps":
        shape = (size, side, side)
        yield make(normal={"pixel_values": image}, integers={"labels": (0, classes, shape)})
        yield make(normal={"pixel_values": image, "labels": shape})
    else:
        for as_masks in (head.inputs == "masks", head.inputs != "masks"):
            objects = Objects(
                count=size, side=side, classes=classes, device=data.device, as_masks=as_masks
            )
            yield make(normal={"pixel_values": image}, objects=objects)


def _audio(
    model: nn.Module, size: int, labels: Integers, make: Callable[..., RandomBatches]
) -> Iterator[RandomBatches]:
    for name, shape in _shapes_of_audio(model, size):
        yield make(normal={name: shape}, integers={"labels": labels})
        steps = shape[:2] if name == "input_features" else (size, shape[-1])
        for mask in ("attention_mask", "padding_mask"):
            if takes(model, mask):
                present = {"labels": labels, mask: (1, 2, steps)}
                yield make(normal={name: shape}, integers=present)


def _shapes_of_audio(model: nn.Module, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the likely names and shapes of audio: a waveform, or a spectrogram either way round."""
    config: PretrainedConfig = model.config
    sizes = {whole(config, (name,), 80) for name in MEL_NAMES}
    longest = whole(config, LENGTH_NAMES, SPECTRA)
    name = str(getattr(model, "main_input_name", "input_values"))
    if name == "input_values":
        yield name, (size, SAMPLES)
        yield from ((name, (size, longest, mels)) for mels in sizes)
        yield name, (size, 1, SAMPLES)
    name = "input_features" if takes(model, "input_features") else name
    for frames in (SPECTRA, 2 * longest, longest, 3000):
        for mels in sorted(sizes):
            yield name, (size, frames, mels)
            yield name, (size, mels, frames)
    if takes(model, "input_values"):
        yield "input_values", (size, SAMPLES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Objects:
    """Objects in each image, with classes, boxes and masks."""

    count: int
    side: int
    classes: int
    device: torch.device
    as_masks: bool
    """Labels are `mask_labels` and `class_labels`; else `labels`, one mapping an image."""

    def __call__(self, rng: np.random.Generator) -> dict[str, object]:
        made = [self._image(rng) for _ in range(self.count)]
        if not self.as_masks:
            return {"labels": made}
        return {
            "mask_labels": [one["masks"] for one in made],
            "class_labels": [one["class_labels"] for one in made],
        }

    def _image(self, rng: np.random.Generator) -> dict[str, Tensor]:
        middle = rng.uniform(0.3, 0.7, (OBJECTS, 2))
        edge = rng.uniform(0.2, 0.5, (OBJECTS, 2))
        masks = rng.integers(0, 2, (OBJECTS, self.side, self.side))
        made = {
            "class_labels": torch.from_numpy(rng.integers(0, self.classes, OBJECTS)),
            "boxes": torch.from_numpy(np.concatenate([middle, edge], 1).astype(np.float32)),
            "masks": torch.from_numpy(masks.astype(np.float32)),
        }
        return {name: value.to(self.device) for name, value in made.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Captions:
    """Words after an image; the image's place among the words is not predicted."""

    words: BatchFunction
    images: RandomBatches
    image_id: int
    places: int  # Number of `image_id` in front of the words: one for each feature of the image
    same_words: tuple[str, ...] = ()  # Further inputs that hold the words alone

    def __call__(self, index: int) -> dict[str, object]:
        ids = self.words(index)["input_ids"]
        image = torch.full_like(ids[:, :1].expand(-1, self.places), self.image_id)
        ignored = torch.full_like(image, IGNORED)
        return {
            **self.images(index),
            **dict.fromkeys(self.same_words, ids),
            "input_ids": torch.cat([image, ids], 1),
            "labels": torch.cat([ignored, ids], 1),
        }


def captions(model: nn.Module, batching: Batching, data: Data) -> Iterator[BatchFunction]:
    """Yield captions of an image, then words alone: what a model of images and text is trained on.

    Ids of placeholders are the last of a small vocabulary, so that no word has one.
    """
    config: PretrainedConfig = model.config
    words = next_words(vocabulary(config) - RESERVED, batching, data)
    image_id = whole(config, ("image_token_id", "image_token_index"), 0)
    side = whole(config, ("image_size",), IMAGE)
    parameters = inspect.signature(model.forward).parameters
    required = (name for name, one in parameters.items() if one.default is one.empty)
    others = tuple(name for name in required if name.endswith("_input_ids"))
    seen: dict[str, Integers] = {}
    if takes(model, "image_attention_mask"):  # which of its images a word sees
        seen["image_attention_mask"] = (1, 2, (batching.batch_size, batching.sequence, 1))
    for shape in ((3, side, side), (1, 3, side, side)):
        images = RandomBatches(
            normal={"pixel_values": (batching.batch_size, *shape)},
            integers=seen,
            seed=data.seed,
            device=data.device,
        )
        places = _features(model, images(0)["pixel_values"], config) if image_id else 0
        yield Captions(
            words=words, images=images, image_id=image_id, places=places, same_words=others
        )
    yield words


def _features(model: PreTrainedModel, pixels: Tensor, config: PretrainedConfig) -> int:
    """Return the number of features that the model makes of an image; 0 if it does not tell."""
    try:
        with torch.no_grad():
            made = model.get_image_features(pixel_values=pixels)
    except Exception:  # the model's own code, or none of that name
        return 0
    made = getattr(made, "pooler_output", made)
    parts = made if isinstance(made, list | tuple) else [made]
    width = whole(config.get_text_config(), ("hidden_size",), 1)
    return sum(int(part.numel()) for part in parts) // width // len(pixels)


def takes(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    yield config
    for name in config.sub_configs:
        if getattr(config, name, None) is not None:
            yield from _parts(getattr(config, name))


def vocabulary(config: PretrainedConfig) -> int:
    """Return the number of words that the model, or its text part, knows."""
    words = whole(config.get_text_config(), ("vocab_size",), 0)
    return words or whole(config, ("vocab_size",), 2)


def whole(config: object, names: tuple[str, ...], usual: int) -> int:
    """Return the first of these fields that the configuration, or a part of it, has."""
    for part in _parts(config):
        for name in names:
            value = getattr(part, name, None)
            value = max(value) if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and value > 0:
                return value
    return usual


def batches_for(model: nn.Module, head: Head, batching: Batching, data: Data) -> BatchFunction:
    """Return batches that `model` takes.

    Where the configuration does not tell the shape of an input, such as a spectrogram's, the likely
    ones are tried in turn. Raises WorkloadError if the model takes none of them.
    """
    config: PretrainedConfig = model.config
    symbols, main = vocabulary(config), getattr(model, "main_input_name", "")
    if head.inputs == "captions":
        return _first_taken(model, captions(model, batching, data))
    of_words = head.inputs == "words" or (head.inputs == "audio" and main == "input_ids")
    if of_words or (head.inputs == "masked" and symbols <= BYTE_SYMBOLS + 1):
        return next_words(symbols, batching, data)
    if head.inputs == "masked":
        windows = text_windows(
            data,
            vocabulary=symbols - 1,
            batch_size=batching.batch_size,
            length=batching.sequence,
        )
        masked = MaskedWords(windows=windows, mask_id=symbols - 1, device=data.device)
        return NamedBatches(source=masked)
    if head.inputs == "classes" and main == "pixel_values":
        images = MadeImages(
            image=whole(config, ("image_size",), IMAGE),
            patch=whole(config, ("patch_size",), PATCH),
            classes=int(config.num_labels),
            batch_size=batching.batch_size,
            seed=data.seed,
            device=data.device,
        )
        return NamedBatches(source=images, inputs="pixel_values")
    return _first_taken(model, candidates(model, head, batching, data))


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
