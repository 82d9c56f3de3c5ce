"""Hugging Face models as workloads: any configuration, random weights, the model's own loss.

`hf:TYPE` (such as `hf:qwen3`) is a model type with small dimensions and needs no network.
`hf:FOLDER` reads a local config.json. `hf:OWNER/NAME` fetches one from the hub. Dropout is set to
0, because comparing steps requires each step to be a function of its weights and its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.errors import WorkloadError
from ratchet.workloads.bert import BertSize, MaskedWords
from ratchet.workloads.family import CLIP_NORM, Data
from ratchet.workloads.hf_config import HEADS, Dimensions, Head, head_of, read_config, small_config
from ratchet.workloads.memory import require, state_bytes
from ratchet.workloads.names import PREFIX
from ratchet.workloads.request import Request
from ratchet.workloads.vit import MadeImages, ViTSize
from ratchet.workloads.windows import next_token_batches, text_windows
from ratchet.workloads.workload import AdamWSpec, BatchFunction, Workload

SMALL = Dimensions(
    hidden=256, layers=4, heads=4, kv_heads=2, intermediate=704, vocabulary=8000, positions=512
)
TINY = Dimensions(
    hidden=64, layers=2, heads=4, kv_heads=2, intermediate=176, vocabulary=512, positions=128
)
LONGEST_SEQUENCE = 512
"""Maximum sequence of a model from a folder or the hub, unless the caller asks for another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """Batch size, sequence length, and a learning rate that suits the model's size."""

    batch_size: int
    sequence: int
    lr: float


SMALL_BATCHING = Batching(batch_size=2, sequence=256, lr=3e-4)
IMAGES_PER_BATCH = 16
TINY_BATCHING = Batching(batch_size=8, sequence=64, lr=1e-3)


def load_hf(spec: str, request: Request) -> Workload:
    """Load `hf:NAME_OR_PATH`; raise WorkloadError if it cannot be found or trained."""
    name = spec.removeprefix(PREFIX)
    with quiet_transformers():
        config, is_type = read_config(name)
        if is_type:
            config = small_config(config, SMALL)
    batching = SMALL_BATCHING
    if not is_type:
        longest = getattr(config, "max_position_embeddings", None) or LONGEST_SEQUENCE
        batching = replace(batching, sequence=min(longest, LONGEST_SEQUENCE))
    return _build(spec, config, batching, request)


def hf_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss that the model computes from its labels."""
    loss: Tensor = model(**batch).loss
    return loss


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' configuration messages off the terminal; errors still pass."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _build(spec: str, config: Any, batching: Batching, request: Request) -> Workload:
    head = head_of(config, spec)
    batching = _asked(batching, request, head, spec)
    model = _model(config, head, spec, request)
    _name_loss(model)
    tokens = batching.batch_size * (1 if head.unit == "images" else batching.sequence)
    return Workload(
        name=spec,
        model=model,
        loss=hf_loss,
        batch=_batches(config, head, batching, request),
        optimizer=AdamWSpec(lr=batching.lr),
        clip_norm=CLIP_NORM,
        precision=request.precision or "fp32",
        tokens_per_batch=tokens,
        unit=head.unit,
        device=str(request.device),
        shrink=partial(_shrink, spec, config, request),
        source=spec,
    )


def _name_loss(model: nn.Module) -> None:
    """Set the model's loss type before transformers looks it up during a step.

    The lookup uses a regular expression on the class name, which breaks the graph.
    """
    if type(model).__name__.endswith("LMHeadModel"):
        model.loss_type = "ForCausalLM"  # type: ignore[assignment]


def _shrink(spec: str, config: Any, request: Request, seed: int) -> Workload:
    asked = replace(request, seed=seed, batch_size=None, sequence=None, text=None)
    with quiet_transformers():
        small = small_config(config, TINY)
    return _build(spec, small, TINY_BATCHING, asked)


def _asked(batching: Batching, request: Request, head: Head, spec: str) -> Batching:
    if head.unit == "images" and (request.sequence or request.text):
        raise WorkloadError(f"{spec} is trained on images; leave out sequence and text")
    usual = IMAGES_PER_BATCH if head.unit == "images" else batching.batch_size
    return replace(
        batching,
        batch_size=request.batch_size or usual,
        sequence=request.sequence or batching.sequence,
    )


def _model(config: Any, head: Head, spec: str, request: Request) -> nn.Module:
    import transformers

    make = getattr(transformers, head.auto_class).from_config
    # Loop over experts: the grouped product, transformers' default, has no fp32 form in inductor.
    options = {"dtype": torch.float32, "experts_implementation": "eager"}
    with quiet_transformers():
        try:
            with torch.device("meta"):
                needed_bytes = state_bytes(make(config, **options))
            remedy = "choose a smaller model or a larger device"
            require(needed_bytes, request.device, f"workload {spec!r}", remedy)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(request.seed)
                model: nn.Module = make(config, **options)
        except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
            raise WorkloadError(
                f"{spec!r} cannot be built from its configuration ({type(error).__name__}: "
                f"{error}); give a folder whose config.json describes a whole model"
            ) from error
    if head is HEADS["causal"] and getattr(model, "loss_type", "") is None:
        # transformers cannot infer the loss from some class names and would print a warning.
        model.__dict__["loss_type"] = "ForCausalLM"
    return model.to(request.device)


def _batches(config: Any, head: Head, batching: Batching, request: Request) -> BatchFunction:
    data = Data(seed=request.seed, device=request.device, text=request.text)
    if head is HEADS["image"]:
        return NamedBatches(source=_images(config, batching, data), inputs="pixel_values")
    vocabulary = int(config.vocab_size)
    if head is HEADS["masked"]:
        return NamedBatches(source=_masked_words(vocabulary, batching, data))
    windows = next_token_batches(
        data,
        vocabulary=vocabulary,
        batch_size=batching.batch_size,
        sequence=batching.sequence,
    )
    return NamedBatches(source=windows, same_labels=True)


def _masked_words(vocabulary: int, batching: Batching, data: Data) -> MaskedWords:
    size = BertSize(
        hidden=0,
        layers=0,
        heads=1,
        vocabulary=vocabulary,
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


def _images(config: Any, batching: Batching, data: Data) -> MadeImages:
    size = ViTSize(
        hidden=0,
        layers=0,
        heads=1,
        image=int(getattr(config, "image_size", 224)),
        patch=int(getattr(config, "patch_size", 16)),
        classes=int(config.num_labels),
        batch_size=batching.batch_size,
    )
    return MadeImages(size=size, seed=data.seed, device=data.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedBatches:
    """Batches under transformers' names."""

    source: BatchFunction
    inputs: str = "input_ids"
    same_labels: bool = False
    """The labels equal the inputs: transformers shifts them itself."""

    def __call__(self, index: int) -> dict[str, Tensor]:
        inputs, labels = self.source(index)
        return {self.inputs: inputs, "labels": inputs if self.same_labels else labels}
