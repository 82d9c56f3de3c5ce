"""Count a step's saved bytes and operations, on tensors that have shapes but no values."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ratchet.judge.problems.references import ATTENTION, backward_flops, forward_flops
from ratchet.train.workloads.checkpointing import apply_checkpointing
from ratchet.train.workloads.step import TrainingStep, compiled_loss
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
    # Its caller handles operators without a fake form.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        own = detect_fake_mode(list(workload.model.parameters()))
        with own or FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake_batch = pytree.tree_map_only(Tensor, mode.from_tensor, batch)
            return inspect(lambda: loss_of(workload.model, fake_batch), mode)
    # A user's model may raise anything here. A real fault appears again in the real run.
    except Exception:
        return None
    finally:
        logger.disabled = before
        apply_checkpointing(workload.model, "none")


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


def gradients_of(loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Return the gradients of `loss`, and leave each parameter's `grad` as it was.

    `torch.autograd.grad` does not see parameters behind reentrant checkpointing.
    """
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        loss.backward()  # type: ignore[no-untyped-call]
        return [parameter.grad for parameter in parameters]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


aten = torch.ops.aten


def _lstm_flops(
    x: Tensor, inner: Tensor, recurrent: Tensor, *args: object, out_val: object, **kw: object
) -> int:
    steps = x.numel() // x.shape[-1]
    return int(2 * steps * (inner.numel() + recurrent.numel()))


def _lstm_backward_flops(*args: Any, out_val: object, **kw: Any) -> int:
    return 2 * _lstm_flops(*args, out_val=out_val, **kw)


FUSED: dict[object, Any] = {
    **ATTENTION,
    aten._scaled_dot_product_flash_attention_for_cpu: forward_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: backward_flops,
    aten.mkldnn_rnn_layer: _lstm_flops,
    aten.mkldnn_rnn_layer_backward: _lstm_backward_flops,
}
"""Formulas for fused attention and the CPU's LSTM, whose products torch does not count, or not in
every version."""
for _formula in FUSED.values():
    _formula._get_raw = True


class StepProduct(msgspec.Struct, frozen=True, kw_only=True):
    """Equal products [rows, inner] x [inner, columns] of a step's forward and backward pass."""

    rows: int
    columns: int
    inner: int
    count: int


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts products of two matrices by their sizes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[tuple[int, int, int]] = Counter()  # by rows, columns, inner size

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        if func._overloadpacket in (aten.mm, aten.addmm):
            left, right = args[-2:]
            self.found[left.shape[0], right.shape[1], left.shape[1]] += 1
        return func(*args, **(kwargs or {}))


def step_products(workload: Workload) -> list[StepProduct] | None:
    """Return the products of matrices of one step as written; None if only a real run can tell.

    Attention and batched products are left out.
    """
    if workload.train_step is not None:
        return None
    batch, parameters = workload.batch(0), list(workload.trained().values())

    def record(forward: Callable[[], Tensor], _: object) -> Counter[tuple[int, int, int]]:
        with _Products() as products:
            gradients_of(forward(), parameters)
        return products.found  # type: ignore[no-any-return]  # the mode is untyped

    found = pretend(workload, batch, record)
    if found is None:
        return None
    return [
        StepProduct(rows=rows, columns=columns, inner=inner, count=count * workload.accumulate)
        for (rows, columns, inner), count in found.items()
    ]


_counted: WeakKeyDictionary[Workload, int] = WeakKeyDictionary()


def flops_of(step: TrainingStep, batch: object) -> int:
    """Count the operations of one run of a step; see `step_flops`.

    A `train_step` trains on `batch` once, and the operations of its update count too.
    """
    if step.workload.train_step is not None:
        return _counting(lambda: step(batch))
    found = step_flops(step.workload)
    apply_checkpointing(step.model, step.config.checkpointing)  # counting has taken it off
    return found


def step_flops(workload: Workload) -> int:
    """Count the eager model's forward and backward operations with torch's flop counter.

    A multiply-add counts as two. Matrix products, convolutions and attention are counted; causal
    attention counts in full, as is usual for MFU. Recomputation by checkpointing is not counted.
    The result is cached.
    """
    if workload not in _counted:
        batch, parameters = workload.batch(0), list(workload.trained().values())

        def count(forward: Callable[[], Tensor], _: object = None) -> int:
            return _counting(lambda: gradients_of(forward(), parameters))

        counted = pretend(workload, batch, count)
        if counted is None:
            loss_of = compiled_loss(workload, workload.as_written())
            counted = count(lambda: loss_of(workload.model, batch))
        _counted[workload] = counted
    return _counted[workload] * workload.accumulate


class _NoModules:
    """Stands for the counter's tracker of modules, whose hooks break parametrised layers."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _counting(run: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        # The counter sees through torch.jit, which torch itself has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        counter = FlopCounterMode(display=False, custom_mapping=FUSED)
        counter.mod_tracker = _NoModules()  # type: ignore[assignment]
        with counter:
            run()
    return int(counter.get_total_flops())
