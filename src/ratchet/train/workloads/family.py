"""The description of a built-in model family, and batches of token windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ratchet.base.errors import WorkloadError
from ratchet.base.text import (
    SMALL_TEXT_BYTES,
    TEXT_LIMIT_BYTES,
    Tokens,
    file_text,
    standard_library_text,
    tokens_of,
)
from ratchet.train.workloads.workload import BatchFunction, LossFunction

CLIP_NORM: Final = 1.0
"""Largest global gradient norm of every built-in workload.

GPT-3 (arXiv:2005.14165, appendix B) and Llama (arXiv:2302.13971, section 2.2) were trained with it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The source of the batches and the device that receives them."""

    seed: int
    device: torch.device
    text: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The dimensions of one model and of its batches."""

    hidden: int
    layers: int
    heads: int
    batch_size: int
    on_gpu: int = 0
    """Batch size of a step on a GPU: 8,192 to 65,536 tokens, so that three processes fit beside
    each other in 80 GB. Two cores would take minutes for such a step, and a GPU idles in the step
    of two cores. 0 for the same as on a CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSize(Size):
    """The dimensions of one language model and of its batches."""

    vocabulary: int
    sequence: int


AnySize = TypeVar("AnySize", bound=Size)


def sizes_of(kind: type[AnySize], table: str) -> dict[str, AnySize]:
    """Return the sizes in a table by name: its first line names the fields of `kind`."""
    (_, *fields), *rows = (line.split() for line in table.strip().splitlines())
    return {
        name: msgspec.convert(dict(zip(fields, row, strict=True)), kind, strict=False)
        for name, *row in rows
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One architecture with its sizes. The functions take a size of this family."""

    name: str
    summary: str
    sizes: Mapping[str, Any]
    alone: str  # The size meant by the family's bare name: 0.3 to 2 s a step on two cores
    build_model: Callable[[Any], nn.Module]
    build_batches: Callable[[Any, Data], BatchFunction]
    loss: LossFunction
    unit: Literal["tokens", "images"] = "tokens"


def initialise(model: nn.Module, layers: int) -> None:
    """Initialise as GPT-2: normal weights of std 0.02, branch outputs scaled by 1/sqrt(2 layers).

    See Radford et al. 2019, section 2.3. Modules that end a residual branch have `ends_branch` set.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            scale = (2 * layers) ** -0.5 if getattr(module, "ends_branch", False) else 1.0
            nn.init.normal_(module.weight, std=0.02 * scale)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def branch_end(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer whose output is added to the residual stream."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    linear.ends_branch = True  # type: ignore[assignment]  # nn.Module allows any attribute
    return linear


# Batches of token windows, each a pure function of the seed and its index.

SMALL_VOCABULARY = 4096  # Largest vocabulary for which a megabyte of text is enough
LARGEST_VOCABULARY = 32_000
"""Largest vocabulary that twenty megabytes of text fill; larger ones use only their first ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Random windows from one stream of tokens."""

    tokens: Tokens
    batch_size: int
    length: int
    seed: int

    def __call__(self, index: int) -> NDArray[np.int64]:
        """Return window number `index`: int64 [batch_size, length]."""
        rng = np.random.default_rng((self.seed, index))
        starts = rng.integers(0, len(self.tokens) - self.length + 1, size=self.batch_size)
        picked = self.tokens[starts[:, None] + np.arange(self.length)]
        return np.asarray(picked, np.int64)


def text_windows(data: Data, *, vocabulary: int, batch_size: int, length: int) -> Windows:
    """Return windows of `length` tokens from the data's text or the standard library's sources."""
    limit_bytes = SMALL_TEXT_BYTES if vocabulary <= SMALL_VOCABULARY else TEXT_LIMIT_BYTES
    if data.text is None:
        text, name = standard_library_text(limit_bytes), "the standard library"
    else:
        text, name = file_text(Path(data.text), limit_bytes), str(data.text)
    tokens = tokens_of(text, min(vocabulary, LARGEST_VOCABULARY))
    if len(tokens) < 2 * length:
        raise WorkloadError(
            f"text {name!r} is too short: {len(tokens)} tokens, but windows of {length} need "
            f"{2 * length}; give a longer text or a shorter sequence"
        )
    return Windows(tokens=tokens, batch_size=batch_size, length=length, seed=data.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class NextToken:
    """Make (inputs, targets) for a causal language model: int64 [batch, sequence] each."""

    windows: Windows
    device: torch.device

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        window = torch.from_numpy(self.windows(index)).to(self.device)
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def next_token_batches(size: TextSize, data: Data) -> NextToken:
    """Return batches for a causal language model with the size's vocabulary and sequence."""
    windows = text_windows(
        data,
        vocabulary=size.vocabulary,
        batch_size=size.batch_size,
        length=size.sequence + 1,
    )
    return NextToken(windows=windows, device=data.device)


def token_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy of the target tokens, with the softmax in fp32.

    A target of -100, the default `ignore_index` of F.cross_entropy, is not predicted.
    """
    tokens, targets = batch
    logits = model(tokens)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))
