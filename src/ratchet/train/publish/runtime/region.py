"""Ops for regions of a training step: a chain of operations that one kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ratchet.judge.kernels import registry
from ratchet.judge.kernels.custom_op import define, on_meta


def declare_region(name: str, entry: str, reference: Callable[..., Sequence[Tensor]]) -> None:
    """Define an op of a list of tensors that returns the list of the region's contiguous outputs.

    Inputs are as they lie in memory. The op has no derivative: a region is a part of a step that
    holds its own backward.
    """

    def fake(inputs: list[Tensor]) -> list[Tensor]:
        return [one.new_empty(one.shape) for one in reference(*inputs, ())]

    def run(inputs: list[Tensor]) -> list[Tensor]:
        given = [one.contiguous() for one in inputs]
        forms = fake([on_meta(one) for one in given])
        outputs = [torch.empty_like(one, device=given[0].device) for one in forms]
        results: Any = registry.call(entry, given, (), outputs)
        found = reference(*given, ()) if results is None else results
        return [one.contiguous() for one in found]

    define(name, "(Tensor[] inputs) -> Tensor[]", run=run, fake=fake)
