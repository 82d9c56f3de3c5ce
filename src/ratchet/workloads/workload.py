"""A training step as its author wrote it: model, batches, loss and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ratchet.workloads.config import Precision, StepConfig

LossFunction = Callable[[nn.Module, Any], Tensor]
BatchFunction = Callable[[int], Any]
Unit = Literal["tokens", "images", "samples"]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWSpec:
    """AdamW with decoupled weight decay on every parameter (one group)."""

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __call__(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return torch's own AdamW over `parameters`, with torch's default implementation."""
        return AdamW(
            parameters,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class Workload:
    """One training job. The model is trained in place; load again for a fresh one."""

    name: str
    model: nn.Module
    """Model with fp32 weights, already on `device`."""
    loss: LossFunction
    """(model, batch) -> scalar fp32 tensor with a gradient. `torch.compile` sees all of it."""
    batch: BatchFunction
    """index -> a batch on `device`; the same index always gives the same batch."""
    optimizer: AdamWSpec | OptimizerFactory = AdamWSpec()
    clip_norm: float | None = 1.0
    """Largest global gradient norm; None disables clipping."""
    precision: Precision = "fp32"
    """The author's training precision."""
    tokens_per_batch: int | None = None
    """Tokens (or images, if `unit` says so) in one batch.

    None counts samples: the leading dimension of the batch's first tensor.
    """
    unit: Unit = "tokens"
    checkpointing: str = "none"
    """The author's checkpointing; see `config.Checkpointing`."""
    device: str = "cpu"
    shrink: Callable[[int], Workload] | None = None
    """seed -> a small copy of the same family, for comparing loss curves."""
    source: str = ""
    """The text that `load` built this from."""

    def as_written(self) -> StepConfig:
        """Return the author's own settings: eager, with their precision and checkpointing."""
        return StepConfig(precision=self.precision, checkpointing=self.checkpointing)
