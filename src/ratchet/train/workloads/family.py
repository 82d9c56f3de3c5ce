"""The description of a built-in model family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn

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
class Family:
    """One architecture with its sizes. The functions take a size of this family."""

    name: str
    summary: str
    sizes: Mapping[str, Any]
    on_gpu: Mapping[str, int]
    """Batch size of a step on a GPU, by size: 8,192 to 65,536 tokens, so that
    three processes fit beside each other in 80 GB. Two cores would take minutes
    for such a step, and a GPU idles in the step of two cores."""
    alone: str
    """The size meant by the family's bare name: 0.3 to 2 s a step on two cores."""
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
