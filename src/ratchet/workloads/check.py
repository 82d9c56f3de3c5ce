"""Check that a workload is a valid training step, before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ratchet.errors import DeviceError, WorkloadError
from ratchet.kernels.model_file import seeded
from ratchet.workloads.blame import SMALLER, blamed_on, does_not_fit, is_out_of_memory
from ratchet.workloads.fake import saved_bytes
from ratchet.workloads.memory import require, state_bytes
from ratchet.workloads.names import is_user_spec, user_file
from ratchet.workloads.place import place
from ratchet.workloads.randomness import buffers_of, noise_in, put_back
from ratchet.workloads.step import compiled_loss
from ratchet.workloads.workload import Workload

BYTES_PER_ID = 8
"""Size of an int64 token id; inputs and targets hold at least one each per token."""


def check(workload: Workload) -> tuple[str, ...]:
    """Run one forward and backward pass, restore the workload, and return warnings.

    Raises WorkloadError if a field has the wrong type, the user's code raises, one index gives two
    different batches, or the loss is not a finite scalar with a gradient. Raises DeviceError if the
    device is missing or the batch does not fit in its memory. A random loss is only a warning.
    """
    device = place(workload.device)
    _check_fields(workload)
    needed_bytes = (workload.tokens_per_batch or 0) * BYTES_PER_ID * 2
    require(needed_bytes, device, f"a step of {workload.name!r}", SMALLER)
    batch, again = _guarded(workload, lambda: (workload.batch(0), workload.batch(0)))
    _check_batch(workload, batch, again)
    _check_memory(workload, batch, device)
    _check_optimizer(workload)
    warning = _check_loss(workload, batch, device)
    return (warning,) if warning else ()


def _check_fields(workload: Workload) -> None:
    name = workload.name
    model: Any = workload.model  # a user's file may pass anything
    if not isinstance(model, nn.Module):
        given = type(model).__name__
        raise WorkloadError(f"workload {name!r}: model is {given}, not an nn.Module; pass one")
    for field in ("loss", "batch", "optimizer"):
        if not callable(getattr(workload, field)):
            raise WorkloadError(f"workload {name!r}: {field} is not callable; pass a function")
    tokens = workload.tokens_per_batch
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise WorkloadError(
            f"workload {name!r}: tokens_per_batch is {tokens!r}; give the number of tokens in a "
            "batch, 1 or more, or leave it out to count samples"
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
    _refuse_meta(workload, "the model", list(workload.model.parameters()))
    if not any(parameter.requires_grad for parameter in workload.model.parameters()):
        raise WorkloadError(f"workload {name!r}: no parameter requires a gradient; train some")


def _refuse_meta(workload: Workload, what: str, tensors: Sequence[Tensor]) -> None:
    if any(tensor.is_meta for tensor in tensors):
        raise WorkloadError(
            f"workload {workload.name!r}: {what} is on the meta device, where tensors have no "
            f"values; make it on {workload.device!r}"
        )


def _check_memory(workload: Workload, batch: Any, device: torch.device) -> None:
    """Refuse a batch whose step cannot fit, by a lower bound, before any memory is allocated."""
    saved = saved_bytes(workload, batch)
    if saved is None:
        return
    # The weights are already allocated; their gradients and two moments are not.
    needed_bytes = saved + state_bytes(workload.model) * 3 // 4
    require(needed_bytes, device, f"a step of {workload.name!r}", SMALLER)


def _check_optimizer(workload: Workload) -> None:
    """Build the optimizer once, on the real parameters, without stepping it."""
    parameters = [p for p in workload.model.parameters() if p.requires_grad]
    made: Any = _guarded(workload, lambda: workload.optimizer(parameters))
    if not isinstance(made, Optimizer):
        raise WorkloadError(
            f"workload {workload.name!r}: optimizer returned {type(made).__name__} {made!r}, not a "
            "torch.optim.Optimizer; return one over the given parameters"
        )


def _check_batch(workload: Workload, batch: Any, again: Any) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    others = [leaf for leaf in pytree.tree_leaves(again) if isinstance(leaf, Tensor)]
    _refuse_meta(workload, "batch(0)", tensors)
    same = len(tensors) == len(others) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(tensors, others, strict=False)
    )
    if not same:
        raise WorkloadError(
            f"workload {workload.name!r}: two calls of batch(0) returned different batches; "
            "make it depend on the index alone (seed a generator with it)"
        )


def _check_loss(workload: Workload, batch: Any, device: torch.device) -> str | None:
    """Check the loss and its gradients; return a warning if the loss is random."""
    model, loss_of = workload.model.train(), compiled_loss(workload, workload.as_written())
    before = buffers_of(model)

    def value() -> float:
        put_back(model, before)
        return float(_guarded(workload, lambda: loss_of(model, batch)).detach())

    def first_again() -> float:
        with seeded(0, device):
            return value()

    try:
        with seeded(0, device):
            loss = _guarded(workload, lambda: loss_of(model, batch))
            _check_differentiable(workload, loss)
            first, second = float(loss.detach()), value()
        return noise_in(workload.name, device, first, second, first_again)
    finally:
        put_back(model, before)


def _check_differentiable(workload: Workload, loss: Any) -> None:
    parameters = [p for p in workload.model.parameters() if p.requires_grad]
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


def _guarded(workload: Workload, call: Callable[[], Any]) -> Any:
    """Return `call()`, reporting exceptions as one line and failed allocations as DeviceError."""
    source = workload.source
    path = user_file(source) if is_user_spec(source) else None
    try:
        with blamed_on(f"workload {source or workload.name!r}", file=path):
            return call()
    except WorkloadError as error:
        if error.__cause__ is not None and is_out_of_memory(error.__cause__):
            raise DeviceError(does_not_fit(workload)) from error
        raise
