"""The least work of one call of a problem: its operations and bytes, by shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ratchet.judge.problems.case import TensorSpec
from ratchet.judge.problems.flop_count import FlopCount
from ratchet.judge.problems.inputs import dtype_named
from ratchet.judge.problems.problem import Problem

NARROW: Final = {"bfloat16": "bf16", "float16": "fp16"}
"""Dtypes of inputs whose products run at a higher rate, by the catalogue's names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeastWork:
    """The work that one call cannot do without."""

    flops: float
    """Operations of products and convolutions; a multiply-add counts as two."""
    size_bytes: int
    """Bytes of the inputs, read once, and of the outputs, written once."""
    dtype: str
    """The catalogue's name of the narrowest float among the inputs: `bf16`, `fp16` or `fp32`."""


def least_work(
    problem: Problem, inputs: Sequence[TensorSpec], scalars: tuple[float, ...] = ()
) -> LeastWork:
    """Count what the reference does on inputs of these shapes, on tensors without values.

    Raises what the reference raises on such tensors, as where it reads values.
    """
    reference = problem.load_reference()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), FlopCount() as counted:
        given = [torch.empty(one.shape, dtype=dtype_named(one.dtype)) for one in inputs]
        read_bytes = sum(map(_bytes, given))
        outputs = reference(*given, scalars)
        moved_bytes = read_bytes + sum(map(_bytes, outputs))
    narrow = [NARROW[one.dtype] for one in inputs if one.dtype in NARROW]
    return LeastWork(
        flops=counted.total, size_bytes=moved_bytes, dtype=narrow[0] if narrow else "fp32"
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
