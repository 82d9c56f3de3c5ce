"""Floating-point operations of one training step, for MFU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ratchet.judge.problems.references import ATTENTION, backward_flops, forward_flops
from ratchet.train.workloads.backward import gradients_of
from ratchet.train.workloads.checkpointing import apply_checkpointing
from ratchet.train.workloads.fake import pretend
from ratchet.train.workloads.step import TrainingStep, compiled_loss
from ratchet.train.workloads.workload import Workload

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
        _counted[workload] = _count(workload)
    return _counted[workload] * workload.accumulate


def _count(workload: Workload) -> int:
    batch = workload.batch(0)
    parameters = list(workload.trained().values())
    counted = pretend(
        workload,
        batch,
        lambda forward, _: _counting(lambda: gradients_of(forward(), parameters)),
    )
    if counted is not None:
        return counted
    loss_of = compiled_loss(workload, workload.as_written())
    return _counting(lambda: gradients_of(loss_of(workload.model, batch), parameters))


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
