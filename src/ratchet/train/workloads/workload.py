"""A training step as its author wrote it: model, batches, optimizers, and a loss or a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.config import OwnPrecision, Precision, StepConfig

Batch: TypeAlias = Any
"""A batch, which a workload's `batch` returns and its loss takes: tensors, alone or together."""
LossFunction = Callable[[nn.Module, Batch], Tensor]
TrainStep = Callable[..., Tensor | float]
BatchFunction = Callable[[int], Batch]
Unit = Literal["tokens", "images", "samples"]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
ModelOptimizerFactory = Callable[[nn.Module], Optimizer]

ALONE: Final = "optimizer"
"""Name of the optimizer that the field `optimizer` makes."""
OWN_DTYPES: Final[Mapping[torch.dtype, OwnPrecision]] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
}
"""Precision of a step whose parameters have this dtype from the start."""


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
    """One training job. The model is trained in place; load again for a fresh one.

    Its step is a `loss`, whose backward pass and update Ratchet runs, or a `train_step` of your own
    that does all three.
    """

    name: str
    model: nn.Module
    """Model with its weights, already on `device`."""
    batch: BatchFunction
    """index -> a batch on `device`; the same index always gives the same batch."""
    loss: LossFunction | None = None
    """(model, batch) -> scalar tensor with a gradient. `torch.compile` sees all of it."""
    train_step: TrainStep | None = None
    """(model, batch, optimizers) -> the loss: one whole step, in place of `loss`.

    The third argument is the optimizer or, with `optimizers`, the dict of them. A fourth is what
    `state` returned, if that is given.
    """
    optimizer: AdamWSpec | OptimizerFactory = AdamWSpec()
    """Makes the optimizer from the list of trained parameters."""
    optimizers: Mapping[str, ModelOptimizerFactory] | None = None
    """Several optimizers, or parameter groups, in place of `optimizer`: name -> a function that
    makes one from the model."""
    state: Callable[..., object] | None = None
    """(model, optimizers) -> what `train_step` carries from step to step, as its fourth argument:
    hidden states, an EMA, a generator, a schedule, a GradScaler."""
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    """Makes the schedule of an optimizer, which steps after each update of a `loss`."""
    accumulate: int = 1
    """Batches in one step. Their gradients are averaged; a `train_step` gets the list of them."""
    sync: Callable[[bool], None] | None = None
    """Called before each pass of a `loss` that accumulates: True for the step's last, after which
    ranks exchange their gradients."""
    clip_norm: float | None = None
    """Largest global gradient norm of a `loss`; None does not clip."""
    precision: Precision = "fp32"
    """The author's training precision.

    With a `loss`, Ratchet enters autocast for `bf16_autocast`; a `train_step` enters it itself.
    """
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
        """Return the author's own settings: eager, with their precision and checkpointing.

        The precision of a model whose parameters are bf16, fp16 or fp64 is theirs.
        """
        precision: Precision | OwnPrecision = self.precision
        if precision == "fp32":
            dtypes = {parameter.dtype for parameter in self.model.parameters()}
            own = (name for dtype, name in OWN_DTYPES.items() if dtype in dtypes)
            precision = next(own, precision)
        return StepConfig(precision=precision, checkpointing=self.checkpointing)

    def trained(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def make_optimizers(self) -> dict[str, Optimizer]:
        """Make the optimizers, by name; the one that `optimizer` makes is called `optimizer`."""
        if self.optimizers is not None:
            return {name: make(self.model) for name, make in self.optimizers.items()}
        return {ALONE: self.optimizer(list(self.trained().values()))}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Options of `load` besides the workload's name; None keeps the workload's own value."""

    seed: int
    batch_size: int | None
    sequence: int | None
    precision: Precision | None
    text: Path | None
    device: torch.device
    shapes_only: bool = False
    """Sizes are those of a GPU, and tensors have no values."""

    def __post_init__(self) -> None:
        for what, value in (("batch size", self.batch_size), ("sequence", self.sequence)):
            if value is not None and value < 1:
                raise WorkloadError(f"{what} {value} is not positive; give 1 or more")
        known = get_args(Precision)
        if self.precision is not None and self.precision not in known:
            raise WorkloadError(f"precision {self.precision!r} is unknown; use {', '.join(known)}")


# Equal parts of a batch, whose gradients are averaged as if it were whole.
#
# They are the whole batch's if the loss is a mean over equally many tokens in each part.


def samples_of(batch: object) -> int:
    """Return the leading dimension of the batch's first tensor; 1 without one."""
    leaves = (one for one in pytree.tree_leaves(batch) if isinstance(one, Tensor) and one.ndim)
    return next((len(one) for one in leaves), 1)


def split_batch(batch: object, parts: int) -> list[Batch]:
    """Return `parts` batches; tensors without a row for each sample are whole in each of them.

    Raises WorkloadError if `parts` does not divide the batch's samples.
    """
    if parts == 1:
        return [batch]
    samples = samples_of(batch)
    if samples % parts:
        raise WorkloadError(
            f"micro_batches {parts} does not divide the batch's {samples} samples: give a divisor"
        )
    leaves, form = pytree.tree_flatten(batch)
    cut = [
        one.chunk(parts)
        if isinstance(one, Tensor) and one.ndim and len(one) == samples
        else (one,) * parts
        for one in leaves
    ]
    return [pytree.tree_unflatten([one[part] for one in cut], form) for part in range(parts)]


def count(workload: Workload, batch: Batch) -> tuple[int, Unit]:
    """Count the items in one step, which takes as many batches as it accumulates, in their unit.

    Without `tokens_per_batch`, the leading dimension of `batch`'s first tensor is the number of
    samples in each.
    """
    if workload.tokens_per_batch is not None:
        return workload.tokens_per_batch * workload.accumulate, workload.unit
    unit: Unit = "samples" if workload.unit == "tokens" else workload.unit
    return max(samples_of(batch), 1) * workload.accumulate, unit
