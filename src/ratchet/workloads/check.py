"""Whether a workload is a training step: checked before anything is timed."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ratchet.errors import DeviceError, WorkloadError
from ratchet.workloads.fake import saved_bytes
from ratchet.workloads.memory import require, state_bytes
from ratchet.workloads.names import is_user_spec, user_file
from ratchet.workloads.place import place
from ratchet.workloads.step import compiled_loss
from ratchet.workloads.user import blamed_on
from ratchet.workloads.workload import Workload

BYTES_PER_ID = 8
"""A token is an int64 id, in the inputs and in the targets: a batch holds no less."""
SMALLER = "use a smaller batch or sequence, activation checkpointing, or a larger device"


def check(workload: Workload) -> None:
    """Run one forward and backward pass, and leave the workload as it was.

    Raises WorkloadError when a field has the wrong type, the user's code raises, the same index
    gives two batches, or the loss is no scalar, not finite or without a gradient; DeviceError when
    the device is missing or the batch does not fit in its memory.
    """
    device = place(workload.device)
    _check_fields(workload)
    _check_memory(workload, device)
    batch, again = _guarded(workload, lambda: (workload.batch(0), workload.batch(0)))
    _check_batch(workload, batch, again)
    _check_loss(workload, batch)


def _check_fields(workload: Workload) -> None:
    name = workload.name
    model: Any = workload.model  # a user's file may pass anything
    if not isinstance(model, nn.Module):
        given = type(model).__name__
        raise WorkloadError(f"workload {name!r}: model is {given}, not an nn.Module; pass one")
    for field in ("loss", "batch", "optimizer"):
        if not callable(getattr(workload, field)):
            raise WorkloadError(f"workload {name!r}: {field} cannot be called; pass a function")
    if not isinstance(workload.tokens_per_batch, int) or workload.tokens_per_batch < 1:
        raise WorkloadError(
            f"workload {name!r}: tokens_per_batch is {workload.tokens_per_batch!r}; give the "
            "number of tokens (or images) in a batch, 1 or more"
        )
    if workload.clip_norm is not None and not workload.clip_norm > 0:
        raise WorkloadError(
            f"workload {name!r}: clip_norm is {workload.clip_norm!r}; give a positive norm or None"
        )
    try:
        workload.as_written()
    except ValidationError as error:
        first = error.errors()[0]
        raise WorkloadError(
            f"workload {name!r}: {first['loc'][0]} is {first['input']!r}; {first['msg']}"
        ) from None
    if not any(parameter.requires_grad for parameter in workload.model.parameters()):
        raise WorkloadError(f"workload {name!r}: no parameter requires a gradient; train some")


def _check_memory(workload: Workload, device: torch.device) -> None:
    """Refuse a batch that cannot fit, from lower bounds, before any of it is allocated."""
    what = f"a step of {workload.name!r}"
    require(workload.tokens_per_batch * BYTES_PER_ID * 2, device, what, SMALLER)
    batch = _guarded(workload, lambda: workload.batch(0))
    saved = saved_bytes(workload, batch)
    if saved is None:
        return
    # The weights are there already; their gradients and two moments are still to come.
    needed_bytes = saved + state_bytes(workload.model) * 3 // 4
    require(needed_bytes, device, what, SMALLER)


def _check_batch(workload: Workload, batch: Any, again: Any) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    others = [leaf for leaf in pytree.tree_leaves(again) if isinstance(leaf, Tensor)]
    same = len(tensors) == len(others) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(tensors, others, strict=False)
    )
    if not same:
        raise WorkloadError(
            f"workload {workload.name!r}: batch(0) gave two different batches; make it depend on "
            "the index alone (seed a generator with it)"
        )


def _check_loss(workload: Workload, batch: Any) -> None:
    parameters = [p for p in workload.model.parameters() if p.requires_grad]
    loss_of = compiled_loss(workload, workload.as_written())
    workload.model.train()
    loss = _guarded(workload, lambda: loss_of(workload.model, batch))
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise WorkloadError(
            f"workload {workload.name!r}: the loss is {found}, not a scalar tensor; return its mean"
        )
    value = float(loss.detach())
    if not math.isfinite(value):
        raise WorkloadError(
            f"workload {workload.name!r}: the loss of the first batch is {value}; it must be "
            "finite: check the data, the initialisation and the learning rate"
        )
    if not loss.requires_grad:
        raise WorkloadError(_no_gradient(workload))
    gradients = _guarded(workload, lambda: torch.autograd.grad(loss, parameters, allow_unused=True))
    _check_gradients(workload, gradients)


def _check_gradients(workload: Workload, gradients: tuple[Tensor | None, ...]) -> None:
    found = [gradient for gradient in gradients if gradient is not None]
    if not any(bool(gradient.count_nonzero()) for gradient in found):
        raise WorkloadError(_no_gradient(workload))
    if not all(bool(gradient.isfinite().all()) for gradient in found):
        raise WorkloadError(
            f"workload {workload.name!r}: a gradient of the first batch is not finite; check the "
            "loss for a division or logarithm of zero"
        )


def _no_gradient(workload: Workload) -> str:
    return (
        f"workload {workload.name!r}: the loss does not depend on the weights; compute it from "
        "the model's output, without detach or no_grad"
    )


def _guarded(workload: Workload, call: Any) -> Any:
    """`call()`, with what it raises as one line; a failed allocation is a DeviceError."""
    source = workload.source
    path = user_file(source) if is_user_spec(source) else None
    try:
        with blamed_on(path, source or workload.name):
            return call()
    except WorkloadError as error:
        if error.__cause__ is not None and _is_out_of_memory(error.__cause__):
            raise DeviceError(_does_not_fit(workload)) from error
        raise


def _does_not_fit(workload: Workload) -> str:
    return f"a step of {workload.name!r} does not fit in the memory of {workload.device}; {SMALLER}"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # The CPU allocator has no exception of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
