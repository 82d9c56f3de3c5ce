"""Hugging Face models as workloads: any configuration, random weights, the model's own loss.

`hf:TYPE` (such as `hf:qwen3`) is a model type with small dimensions and needs no network.
`hf:FOLDER` reads a local config.json. `hf:OWNER/NAME` fetches one from the hub. Dropout is set to
0, because comparing steps requires each step to be a function of its weights and its batch.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ratchet.base.errors import RatchetError, WorkloadError, told
from ratchet.train.workloads.device import require, state_bytes
from ratchet.train.workloads.family import CLIP_NORM, Data
from ratchet.train.workloads.hf_config import (
    Dimensions,
    Head,
    Widths,
    head_of,
    read_config,
    small_config,
    table_of,
)
from ratchet.train.workloads.hf_inputs import Batching, batches_for
from ratchet.train.workloads.names import PREFIX
from ratchet.train.workloads.workload import AdamWSpec, Request, Workload

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SMALL = Dimensions(
    layers=4,
    vocabulary=8000,
    widths=Widths(hidden=256, heads=4, kv_heads=2, intermediate=704, positions=512),
)
TINY_WIDTHS = Widths(hidden=64, heads=4, kv_heads=2, intermediate=176, positions=128)
TINY = Dimensions(layers=2, vocabulary=512, widths=TINY_WIDTHS)
STEADY_EPS = 1e-3
"""Adam's epsilon of these models: by 1e-8 the rounding of a gradient of 0 is a whole step."""
LEAST = replace(TINY, layers=1)  # One layer, or one of each kind
LEAST_DERIVED = replace(LEAST, derived=True)
TINY_OWN_HEADS = replace(TINY, widths=replace(TINY_WIDTHS, own_head_dim=True, kv_heads=4))
TINY_WIDE = replace(TINY, widths=replace(TINY_WIDTHS, hidden=512, kv_heads=4))
"""Heads of 128, which the sections of many rotary embeddings fill."""
TINY_BETWEEN = replace(TINY, widths=replace(TINY_WIDTHS, hidden=256, kv_heads=4))
"""Heads of 64, for other rotary embeddings."""
SHALLOW = Dimensions(layers=2, vocabulary=512)
"""For types whose widths depend on each other in their own way."""
LEAST_FORMS = (LEAST, TINY_OWN_HEADS, TINY_WIDE, TINY_BETWEEN, LEAST_DERIVED, SHALLOW)
"""Tried in turn."""
LONGEST_SEQUENCE = 512
"""Maximum sequence of a model from a folder or the hub, unless the caller asks for another."""


SMALL_BATCHING = Batching(batch_size=2, sequence=256, lr=3e-4)
IMAGES_PER_BATCH = 16
TINY_BATCHING = Batching(batch_size=8, sequence=64, lr=1e-3)
LEAST_BATCHING = Batching(batch_size=2, sequence=32, lr=1e-3)
LARGEST_LEAST_BYTES = 3_000_000_000
"""Limit of weights, gradients and moments of a model in its least form."""


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


def tiny_hf(name: str, device: torch.device, *, seed: int = 0) -> Workload:
    """Load a model type with the least layers and widths that train: milliseconds a step.

    Raises WorkloadError, with the first reason, if the type trains at none of them.
    """
    config = copy.deepcopy(_least_config(name, device))
    made = _least(name, config, device, seed)
    return replace(made, optimizer=AdamWSpec(eps=STEADY_EPS))


def _least(name: str, config: PretrainedConfig, device: torch.device, seed: int) -> Workload:
    size = LEAST_BATCHING.batch_size
    request = Request(
        seed=seed, batch_size=size, sequence=None, precision=None, text=None, device=device
    )
    return _build(f"{PREFIX}{name}", config, LEAST_BATCHING, request)


@functools.cache
def _least_config(name: str, device: torch.device) -> PretrainedConfig:
    why: Exception | None = None
    for dimensions in LEAST_FORMS:
        try:
            with quiet_transformers():
                config = small_config(read_config(name)[0], dimensions)
                kept = copy.deepcopy(config)
                needed_bytes = _needed_bytes(config, head_of(config, name))
            if needed_bytes > LARGEST_LEAST_BYTES:
                needed = f"{needed_bytes / 1e9:.1f} GB"
                raise WorkloadError(f"its least form needs {needed}; write a file.py:function")
            made = _least(name, config, device, 0)
            torch.autograd.backward(hf_loss(made.model.train(), made.batch(0)))
        except Exception as error:  # transformers' code may raise anything for odd sizes
            why = why or error
        else:
            return kept
    if isinstance(why, RatchetError):
        raise WorkloadError(f"hf:{name}: {why}") from why
    known = _default_fault(name)
    what = "its default configuration builds no model" if known else "no small form of it trains"
    shown = known or why
    assert shown is not None
    raise WorkloadError(f"hf:{name}: {what} ({told(shown)}); write a file.py:function") from shown


def _default_fault(name: str) -> Exception | None:
    """Return what a type's default configuration raises, without any memory for its weights."""
    try:
        with quiet_transformers(), torch.device("meta"):
            config = read_config(name)[0]
            _made(config, head_of(config, name))
    except (NotImplementedError, RuntimeError):  # operations that meta tensors do not have
        return None
    except Exception as error:  # transformers' own
        return error
    return None


def hf_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
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


def _build(spec: str, config: PretrainedConfig, batching: Batching, request: Request) -> Workload:
    head = head_of(config, spec)
    if head.unit != "tokens" and (request.sequence or request.text):
        kind = "images" if head.unit == "images" else "audio"
        raise WorkloadError(f"{spec} is trained on {kind}; leave out sequence and text")
    usual = IMAGES_PER_BATCH if head.unit == "images" else batching.batch_size
    batching = replace(
        batching,
        batch_size=request.batch_size or usual,
        sequence=request.sequence or batching.sequence,
    )
    model = _model(config, head, spec, request)
    data = Data(seed=request.seed, device=request.device, text=request.text)
    tokens = batching.batch_size * (batching.sequence if head.unit == "tokens" else 1)
    return Workload(
        name=spec,
        model=model,
        loss=hf_loss,
        batch=batches_for(model, head, batching, data),
        optimizer=AdamWSpec(lr=batching.lr),
        clip_norm=CLIP_NORM,
        precision=request.precision or "fp32",
        tokens_per_batch=tokens,
        unit=head.unit,
        device=str(request.device),
        shrink=partial(_shrink, spec, config, request),
        source=spec,
    )


def _shrink(spec: str, config: PretrainedConfig, request: Request, seed: int) -> Workload:
    asked = replace(request, seed=seed, batch_size=None, sequence=None, text=None)
    with quiet_transformers():
        small = small_config(config, TINY)
    return _build(spec, small, TINY_BATCHING, asked)


def _model(config: PretrainedConfig, head: Head, spec: str, request: Request) -> nn.Module:
    with quiet_transformers():
        try:
            remedy = "choose a smaller model or a larger device"
            needed_bytes = _needed_bytes(config, head)
            require(needed_bytes, request.device, f"workload {spec!r}", remedy)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(request.seed)
                model = _made(config, head)
        except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
            raise WorkloadError(
                f"{spec!r} cannot be built from its configuration ({type(error).__name__}: "
                f"{error}); give a folder whose config.json describes a whole model"
            ) from error
    # transformers looks the loss up during a step, by a regular expression on the class name, which
    # breaks the graph. Where it finds none it warns, and takes this one.
    unknown = getattr(model, "loss_type", "") is None
    if unknown or type(model).__name__.endswith("LMHeadModel"):
        model.__dict__["loss_type"] = "ForCausalLM"
    return model.to(request.device)


def _made(config: PretrainedConfig, head: Head) -> nn.Module:
    import transformers

    named = table_of(head).get(config.model_type)
    if isinstance(named, tuple) and not config.architectures:
        config.architectures = [named[0]]
    make = getattr(transformers, head.auto_class).from_config
    model: nn.Module = make(config, dtype=torch.float32)
    return model


def _needed_bytes(config: PretrainedConfig, head: Head) -> int:
    """Return a lower bound on a step's memory; 0 for a model that cannot be built on meta."""
    try:
        with torch.device("meta"):
            return state_bytes(_made(config, head))
    except (RuntimeError, NotImplementedError):
        return 0
