"""Check that a workload is a valid training step, before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ratchet.base.errors import DeviceError, WorkloadError
from ratchet.judge.problems.model_file import seeded
from ratchet.train.workloads.blame import (
    SMALLER,
    batch_of,
    blamed_on,
    does_not_fit,
    is_out_of_memory,
    planned_by,
)
from ratchet.train.workloads.config import Checkpointing, Precision
from ratchet.train.workloads.device import place, require, state_bytes
from ratchet.train.workloads.fake import gradients_of, saved_bytes
from ratchet.train.workloads.load import load
from ratchet.train.workloads.names import is_user_spec, user_file
from ratchet.train.workloads.own_step import autocasts
from ratchet.train.workloads.step import TrainingStep, compiled_loss
from ratchet.train.workloads.workload import Workload

SAME_LOSS = {"cpu": 1e-5, "cuda": 1e-4}
"""Relative tolerance. Atomic additions on a GPU and products in bf16 stay below it."""

BYTES_PER_ID = 8  # Size of an int64 token id; inputs and targets hold at least one each per token


def load_checked(spec: str, **options: Any) -> tuple[Workload, tuple[str, ...]]:
    """Load a workload and check it; return it with the check's warnings.

    What a `train_step` carries cannot be put back, so its workload is loaded again.
    """
    workload = load(spec, **options)
    warnings = check(workload)
    return (load(spec, **options) if workload.train_step is not None else workload), warnings


def check(workload: Workload) -> tuple[str, ...]:
    """Run one forward and backward pass, restore the workload, and return warnings.

    Raises WorkloadError if a field has the wrong type, the user's code raises, one index gives two
    different batches, or the loss is not a finite scalar with a gradient. Raises DeviceError if the
    device is missing or the batch does not fit in its memory. A random loss is only a warning.

    A `train_step` runs once, with its update undone; what it carries in `state` or elsewhere stays.
    """
    device = place(workload.device)
    _check_fields(workload)
    needed_bytes = (workload.tokens_per_batch or 0) * BYTES_PER_ID * 2
    require(needed_bytes, device, f"a step of {workload.name!r}", SMALLER)
    batch, again = _guarded(workload, lambda: (workload.batch(0), workload.batch(0)))
    _check_batch(workload, batch, again)
    if workload.train_step is not None:
        _check_optimizers(workload)
        _check_own_step(workload, device)
        return ()
    # By a lower bound, before any memory is allocated. The weights are already there; their
    # gradients and two moments are not.
    if (saved := saved_bytes(workload, batch)) is not None:
        needed_bytes = saved + state_bytes(workload.model) * 3 // 4
        remedy = f"{SMALLER}; {planned_by(workload)}"
        require(needed_bytes, device, f"a step of {workload.name!r}", remedy)
    _check_optimizers(workload)
    warning = _check_loss(workload, batch, device)
    return (warning,) if warning else ()


def _check_fields(workload: Workload) -> None:
    name = workload.name
    model: object = workload.model  # a user's file may pass anything
    if not isinstance(model, nn.Module):
        given = type(model).__name__
        raise WorkloadError.of(name, f"model is {given}, not an nn.Module; pass one")
    own = workload.train_step is not None
    if (workload.loss is None) != own:
        both = "both loss and train_step" if own else "neither loss nor train_step"
        raise WorkloadError(f"workload {name!r} has {both}; give one of the two")
    for field in ("clip_norm", "scheduler") if own else ():
        if getattr(workload, field) is not None:
            raise WorkloadError.of(name, f"{field} belongs to a loss; do it in train_step instead")
    if own and workload.precision == "bf16_master":
        raise WorkloadError.of(
            name,
            "precision 'bf16_master' belongs to a loss; give fp32 or bf16_autocast, as "
            "train_step does it",
        )
    if not own and workload.state is not None:
        raise WorkloadError.of(name, "state is for a train_step; write one instead of the loss")
    for field in ("loss", "train_step", "batch", "optimizer", "state", "scheduler"):
        given = getattr(workload, field)
        if given is not None and not callable(given):
            raise WorkloadError.of(name, f"{field} is not callable; pass a function")
    for field, what in (("tokens_per_batch", " to count samples"), ("accumulate", "")):
        value: object = getattr(workload, field)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise WorkloadError.of(
                name, f"{field} is {value!r}; give a whole number, 1 or more, or leave it out{what}"
            )
    if workload.clip_norm is not None and not workload.clip_norm > 0:
        raise WorkloadError.of(
            name, f"clip_norm is {workload.clip_norm!r}; give a positive norm or None"
        )
    if workload.precision not in get_args(Precision):
        raise WorkloadError.of(
            name,
            f"precision is {workload.precision!r}; use one of {', '.join(get_args(Precision))}, "
            "or leave it out for weights in another dtype",
        )
    try:
        msgspec.convert(workload.checkpointing, Checkpointing)
    except msgspec.ValidationError as error:
        raise WorkloadError.of(
            name, f"checkpointing is {workload.checkpointing!r}; {error}"
        ) from None
    _refuse_meta(workload, "the model", list(workload.model.parameters()))
    if not workload.trained():
        raise WorkloadError.of(name, "no parameter requires a gradient; train some")


def _refuse_meta(workload: Workload, what: str, tensors: Sequence[Tensor]) -> None:
    if any(tensor.is_meta for tensor in tensors):
        raise WorkloadError.of(
            workload.name,
            f"{what} is on the meta device, where tensors have no values; make it on "
            f"{workload.device!r}",
        )


def _check_optimizers(workload: Workload) -> None:
    """Make the optimizers once, on the real parameters, without stepping them."""
    several: Any = workload.optimizers
    if several is not None and not (isinstance(several, Mapping) and several):
        raise WorkloadError.of(
            workload.name,
            f"optimizers is {several!r}; give a dict of name: function that makes an optimizer "
            "from the model",
        )
    for name, made in _guarded(workload, workload.make_optimizers).items():
        if not isinstance(made, Optimizer):
            called = "optimizer" if several is None else f"optimizers[{name!r}]"
            raise WorkloadError.of(
                workload.name,
                f"{called} returned {type(made).__name__} {made!r}, not a torch.optim.Optimizer; "
                "return one over the given parameters",
            )


def _check_batch(workload: Workload, batch: object, again: object) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    others = [leaf for leaf in pytree.tree_leaves(again) if isinstance(leaf, Tensor)]
    _refuse_meta(workload, "batch(0)", tensors)
    same = len(tensors) == len(others) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(tensors, others, strict=False)
    )
    if not same:
        raise WorkloadError.of(
            workload.name,
            "two calls of batch(0) returned different batches; make it depend on the index alone "
            "(seed a generator with it)",
        )


def _check_loss(workload: Workload, batch: object, device: torch.device) -> str | None:
    """Check the loss and its gradients; return a warning if the loss is random."""
    model, loss_of = workload.model.train(), compiled_loss(workload, workload.as_written())
    before = buffers_of(model)

    def computed() -> Tensor:
        put_back(model, before)
        loss: Tensor = _guarded(workload, lambda: loss_of(model, batch))
        return loss

    def first_again() -> float:
        with seeded(0, device):
            return float(computed().detach())

    try:
        with seeded(0, device):
            loss = computed()
            _check_differentiable(workload, loss)
            first, second = float(loss.detach()), float(computed().detach())
        return noise_in(workload.name, device, first, second, first_again)
    finally:
        put_back(model, before)


def _check_differentiable(workload: Workload, loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise WorkloadError.of(
            workload.name, f"the loss is {found}, not a scalar tensor; return its mean"
        )
    _check_finite(workload, float(loss.detach()))
    if not loss.requires_grad:
        raise WorkloadError(_no_gradient(workload))
    parameters = list(workload.trained().values())
    _check_gradients(workload, _guarded(workload, lambda: gradients_of(loss, parameters)))


def _check_finite(workload: Workload, loss: float) -> None:
    if not math.isfinite(loss):
        raise WorkloadError.of(
            workload.name,
            f"the loss of the first batch is {loss}; it must be finite: check the data, the "
            "initialisation and the learning rate",
        )


def _check_own_step(workload: Workload, device: torch.device) -> None:
    """Run a `train_step` once; check its loss, its gradients and its precision."""
    model, batch = workload.model, batch_of(workload, 0)
    before = buffers_of(model)
    try:
        with seeded(0, device), autocasts() as entered:
            step = _guarded(workload, lambda: TrainingStep(workload, workload.as_written()))
            loss = _guarded(workload, lambda: step.forward_backward(batch))
        _check_finite(workload, float(loss))
        _check_gradients(workload, list(step.gradients().values()))
        written = workload.as_written().precision
        if entered and written == "fp32":
            raise WorkloadError.of(
                workload.name,
                "train_step enters torch.autocast; say so with precision='bf16_autocast', or "
                "--precision bf16_autocast",
            )
        if written == "bf16_autocast" and not entered:
            raise WorkloadError.of(
                workload.name,
                "precision is 'bf16_autocast', but train_step does not enter torch.autocast; "
                "enter it there, or leave precision out",
            )
    finally:
        put_back(model, before)
        for parameter in model.parameters():
            parameter.grad = None


def _check_gradients(workload: Workload, gradients: Sequence[Tensor | None]) -> None:
    # Of a sparse gradient, the stored values: they have a row for each index.
    values = [
        one.coalesce().values() if one.layout == torch.sparse_coo else one
        for one in gradients
        if one is not None
    ]
    if not any(bool(one.count_nonzero()) for one in values):
        raise WorkloadError(_no_gradient(workload))
    if not all(bool(one.isfinite().all()) for one in values):
        raise WorkloadError.of(
            workload.name,
            "a gradient of the first batch is not finite; check the loss for a division or "
            "logarithm of zero",
        )


def _no_gradient(workload: Workload) -> str:
    if workload.train_step is not None:
        return (
            f"workload {workload.name!r}: the first call of train_step updates no weight: no "
            "optimizer stepped, or the loss does not depend on the weights; update in each call"
        )
    return (
        f"workload {workload.name!r}: the loss does not depend on the weights; compute it from "
        "the model's output, without detach or no_grad"
    )


def _guarded(workload: Workload, call: Callable[[], object]) -> Any:
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


def buffers_of(model: nn.Module) -> list[Tensor]:
    """Return copies of the model's buffers, for `put_back`."""
    return [buffer.detach().clone() for buffer in model.buffers()]


def put_back(model: nn.Module, buffers: list[Tensor]) -> None:
    """Undo a forward pass's changes to buffers (running means); skip unchanged buffers."""
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        if not torch.equal(buffer, before):
            with torch.no_grad():
                buffer.copy_(before)


def noise_in(
    name: str, device: torch.device, first: float, second: float, first_again: Callable[[], float]
) -> str | None:
    """Return a warning if a loss is random.

    `first` and `second` are losses of one batch, computed in sequence. `first_again` recomputes the
    first from the same seeds.
    """
    tolerance = SAME_LOSS[device.type]
    if math.isclose(first, second, rel_tol=tolerance):
        return None
    again = first_again()
    if math.isclose(first, again, rel_tol=tolerance):
        return (
            f"workload {name!r}: the loss is random ({first:.6g}, then {second:.6g} for the same "
            "batch), as with dropout. Compiled code draws other numbers with the same odds, so "
            "gradients are compared with the draws of the step as written"
        )
    return (
        f"workload {name!r}: two runs with the same seed and batch gave the losses {first:.6g} and "
        f"{again:.6g}: no seed controls the noise. Seed it from the batch's index or remove it; "
        "otherwise no change can be checked"
    )
