"""Run a step on tensors that have shapes but no values, to count bytes and operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from ratchet.train.workloads.checkpointing import apply_checkpointing
from ratchet.train.workloads.step import compiled_loss
from ratchet.train.workloads.workload import Workload

Result = TypeVar("Result")


def pretend(
    workload: Workload,
    batch: object,
    inspect: Callable[[Callable[[], Tensor], FakeTensorMode], Result],
) -> Result | None:
    """Return `inspect(forward, mode)`; `forward()` computes the loss on tensors without values.

    Returns None if the model reads values (`.item()`, a branch on data). Only a real run can then
    give the answer.
    """
    config = workload.as_written()
    loss_of = compiled_loss(workload, config)
    apply_checkpointing(workload.model, config.checkpointing)
    try:
        own = detect_fake_mode(list(workload.model.parameters()))
        with _unlogged(), own or FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake_batch = pytree.tree_map_only(Tensor, mode.from_tensor, batch)
            return inspect(lambda: loss_of(workload.model, fake_batch), mode)
    # A user's model may raise anything here. A real fault appears again in the real run.
    except Exception:
        return None
    finally:
        apply_checkpointing(workload.model, "none")


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silence torch's log of operators without a fake form; the caller handles that case."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def saved_bytes(workload: Workload, batch: object) -> int | None:
    """Return the bytes, besides the weights, that forward keeps for backward.

    This is a lower bound on the activation memory of the step. None if only a real run can tell,
    as of a `train_step`.
    """
    if workload.train_step is not None:
        return None
    return pretend(
        workload, batch, lambda forward, mode: _count_saved(workload.model, forward, mode)
    )


def _count_saved(model: nn.Module, forward: Callable[[], Tensor], mode: FakeTensorMode) -> int:
    # The mode turns each weight into one fake tensor, which views of it share.
    weights = [
        tensor for weight in model.parameters() for tensor in (weight, mode.from_tensor(weight))
    ]
    known = {weight.untyped_storage()._cdata for weight in weights}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            sizes[storage._cdata] = storage.nbytes()
            alive.append(tensor)  # keeps a later storage from reusing the address
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward()
    del loss
    return sum(sizes.values())
