"""Take the workload out of a transformers.Trainer as it stands.

The step is the Trainer's own: its model, collated batches, loss, optimizer, clipping, accumulation
and bf16 setting. What a Trainer does between steps (schedule, callbacks, evaluation, NEFTune's
noise) is no part of a step and is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.workload import Batch, LossFunction, Request, Unit, Workload

if TYPE_CHECKING:
    from transformers import Trainer

KEPT_STEPS = 64  # Steps whose batches are drawn; later steps begin with the first of them again
ITEMS = "num_items_in_batch"
"""The argument with which a Trainer tells its model how many labels a whole step has."""


def is_trainer(value: object) -> bool:
    """Return True for a transformers.Trainer; transformers is not imported to find out."""
    module = sys.modules.get("transformers.trainer")
    return module is not None and isinstance(value, module.Trainer)


def trainer_workload(trainer: Trainer, spec: str, request: Request) -> Workload:
    """Return the Trainer's step as a workload; the seed chooses its order of batches.

    Raises WorkloadError if the Trainer has no training data, or trains in a way that a step on one
    device cannot repeat.
    """
    _check(trainer, spec)
    if trainer.model_init is not None:
        torch.manual_seed(request.seed)
        trainer.model = trainer.call_model_init().to(trainer.args.device)
    _checkpoint_activations(trainer)
    return _workload(trainer, trainer.model, TrainerBatches(trainer, spec, request.seed))


def _workload(trainer: Trainer, model: nn.Module, batches: TrainerBatches) -> Workload:
    from transformers import PreTrainedModel

    args, first = trainer.args, batches(0)
    tokens = first.get("input_ids")
    of_tokens = isinstance(tokens, Tensor)
    unit: Unit = "tokens" if of_tokens else "images" if "pixel_values" in first else "samples"
    # From its configuration alone.
    can_shrink = isinstance(trainer.model, PreTrainedModel) and trainer.optimizer is None
    return Workload(
        name=type(model).__name__,
        model=model,
        loss=_loss_of(trainer),
        batch=batches,
        optimizer=TrainerOptimizer(trainer, model),
        accumulate=batches.accumulate,
        clip_norm=args.max_grad_norm or None,
        precision="bf16_autocast" if args.bf16 else "fp32",
        tokens_per_batch=tokens.numel() if isinstance(tokens, Tensor) else None,
        unit=unit,
        device=str(args.device),
        shrink=partial(_shrink, trainer) if can_shrink else None,
    )


def _check(trainer: Trainer, spec: str) -> None:
    args = trainer.args
    if trainer.train_dataset is None:
        raise WorkloadError.of(spec, "the Trainer has no train_dataset; give it one")
    if args.fp16:
        raise WorkloadError.of(
            spec,
            "the Trainer trains with fp16=True, but Ratchet's steps are fp32 or bf16; set "
            "bf16=True, or neither",
        )
    for what in ("deepspeed", "fsdp"):
        if getattr(trainer, f"is_{what}_enabled", False):
            raise WorkloadError.of(
                spec,
                f"the Trainer trains with {what}, but a workload is a step on one device; leave "
                "it out of the arguments here",
            )


def _checkpoint_activations(trainer: Trainer) -> None:
    """Checkpoint the model's blocks if the arguments ask for it: a Trainer waits until it trains.

    transformers 5 renamed the setting; the older name stays for its older versions.
    """
    args = trainer.args
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if getattr(args, name, None):
            options = dict(getattr(args, f"{name}_kwargs", None) or {})
            others = {
                key: options.pop(key) for key in ("every_n_layers", "offload") if key in options
            }
            getattr(trainer.model, f"{name}_enable")(options or None, **others)
            return


class TrainerBatches:
    """index -> micro-batch number `index` as the model's arguments, on the Trainer's device.

    Batches are drawn in order and kept, so an index gives the same one in every process. The loader
    has no workers: loading is no part of a step.
    """

    def __init__(self, trainer: Trainer, spec: str, seed: int) -> None:
        self.accumulate = max(1, int(trainer.args.gradient_accumulation_steps))
        self.seed = seed
        self._trainer, self._spec = trainer, spec
        self._drawn: list[dict[str, object]] = []
        self._stream = self._epochs()

    def __call__(self, index: int) -> dict[str, object]:
        index %= KEPT_STEPS * self.accumulate
        while len(self._drawn) <= index:
            self._draw_step()
        return self._drawn[index]

    def _draw_step(self) -> None:
        """Draw the micro-batches of one step, which share their number of labels."""
        from ratchet.judge.problems.model_file import seeded

        trainer = self._trainer
        device = trainer.args.device
        with seeded(self.seed + len(self._drawn), device):
            drawn, items = trainer.get_batch_samples(self._stream, self.accumulate, device)
        for inputs in drawn:
            told = {ITEMS: items} if items is not None else {}
            self._drawn.append({**inputs, **told})

    def _epochs(self) -> Iterator[Batch]:
        """Yield the Trainer's batches of one epoch after the other."""
        args = self._trainer.args
        args.dataloader_num_workers = 0
        args.dataloader_prefetch_factor = None
        args.dataloader_persistent_workers = args.dataloader_pin_memory = False
        loader = self._trainer.get_train_dataloader()
        while True:
            batch = None
            for batch in loader:
                yield batch
            if batch is None:
                raise WorkloadError.of(
                    self._spec, "the Trainer's train_dataset has no batch; give it at least one"
                )


def _loss_of(trainer: Trainer) -> LossFunction:
    """Return the Trainer's loss: the model's own, or `compute_loss` where the script changes it.

    A step averages the losses of its micro-batches. Where the Trainer sums them, because each is
    divided by the labels of the whole step, they are multiplied by their number.
    """
    from transformers import Trainer

    count = max(1, int(trainer.args.gradient_accumulation_steps))
    own = type(trainer).compute_loss is not Trainer.compute_loss
    if own or trainer.compute_loss_func is not None or trainer.label_smoother is not None:
        return ComputedLoss(trainer, count)
    return ModelLoss(takes_items=bool(trainer.model_accepts_loss_kwargs), count=count)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLoss:
    """The loss that the model computes from its labels."""

    takes_items: bool  # The model divides by the labels of the whole step
    count: int  # Micro-batches in a step

    def __call__(self, model: nn.Module, batch: dict[str, object]) -> Tensor:
        if self.takes_items and ITEMS in batch:
            return _first(model(**batch)) * self.count
        return _first(model(**{name: value for name, value in batch.items() if name != ITEMS}))


def _first(outputs: dict[str, Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Return the loss of a model's outputs, which it may give by name or first in a tuple."""
    loss: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
    return loss


class ComputedLoss:
    """The Trainer's `compute_loss`."""

    def __init__(self, trainer: Trainer, count: int) -> None:
        self.trainer, self.count = trainer, count

    def __call__(self, model: nn.Module, batch: dict[str, object]) -> Tensor:
        inputs = dict(batch)
        items = inputs.pop(ITEMS, None)
        loss: Tensor = self.trainer.compute_loss(model, inputs, num_items_in_batch=items)
        trainer = self.trainer
        summed = getattr(trainer, "loss_is_scaled_for_ga", None)  # divided by nothing more
        if summed is None:
            counted = trainer.model_accepts_loss_kwargs and items is not None
            summed = counted or trainer.compute_loss_func is not None
        return loss * self.count if summed else loss


class TrainerOptimizer:
    """Makes the Trainer's optimizer over `model`, with its groups by name; a fresh one each time.

    An optimizer that was handed to the Trainer is the same object each time, as before its first
    step.
    """

    def __init__(self, trainer: Trainer, model: nn.Module) -> None:
        self._trainer, self._model = trainer, model
        self._given: Optimizer | None = trainer.optimizer
        self._groups = [dict(group) for group in self._given.param_groups] if self._given else []

    def __call__(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        if self._given is None:
            trainer = self._trainer
            kept, trainer.model = trainer.model, self._model
            try:
                made: Optimizer = trainer.create_optimizer()
            finally:
                trainer.model, trainer.optimizer = kept, None
            return made
        self._given.state.clear()
        for group, first in zip(self._given.param_groups, self._groups, strict=True):
            group.clear()
            group.update(first)
        return self._given


def _shrink(trainer: Trainer, seed: int) -> Workload:
    """Return a small model of the same class with the Trainer's loss, optimizer and data."""
    from ratchet.train.workloads.hf import TINY, TINY_WIDTHS, quiet_transformers
    from ratchet.train.workloads.hf_config import small_config

    config = trainer.model.config
    positions = getattr(config, "max_position_embeddings", None) or TINY_WIDTHS.positions
    vocabulary = getattr(config, "vocab_size", None) or TINY.vocabulary
    with quiet_transformers():
        widths = replace(TINY_WIDTHS, positions=positions)
        small = small_config(config, replace(TINY, vocabulary=vocabulary, widths=widths))
        for name in ("image_size", "num_labels"):
            if getattr(config, name, None) is not None:
                setattr(small, name, getattr(config, name))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = type(trainer.model)(small).to(trainer.args.device)
    batches = TrainerBatches(trainer, type(model).__name__, seed)
    workload = _workload(trainer, model, batches)
    return replace(workload, name=f"{workload.name}-small", shrink=None)
