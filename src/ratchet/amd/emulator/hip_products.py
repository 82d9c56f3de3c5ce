"""Products of hipBLAS and hipBLASLt for emulated programs, as torch computes them on the CPU.

They are added up in doubles by torch's BLAS and rounded once, so an epilogue sees the whole sum.
Epilogues are those of `hipblasLtEpilogue_t` (https://rocm.docs.amd.com/projects/hipBLASLt); GELU is
the approximation by tanh.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

KINDS: Final = {
    0: torch.float32, 1: torch.float64, 2: torch.float16, 3: torch.int8, 8: torch.uint8,
    10: torch.int32, 14: torch.bfloat16, 28: torch.float8_e4m3fn, 29: torch.float8_e5m2,
    1000: torch.float8_e4m3fnuz, 1001: torch.float8_e5m2fnuz,
}  # fmt: skip
"""Types by their numbers in hipDataType."""
RELU, BIAS, BIAS_GRADIENT, GELU = 2, 4, 16, 32
GRADIENT, KEEP, SUM_A, SUM_B, SWISH = 64, 128, 256, 512, 65536
"""Bits of an epilogue; 1 is none. With GRADIENT, aux is what KEEP left, and is read."""
KNOWN: Final = 1 | RELU | BIAS | BIAS_GRADIENT | GELU | GRADIENT | KEEP | SUM_A | SUM_B | SWISH
NOT_SUPPORTED: Final = 2


class _Matrix(ctypes.Structure):
    """The struct in hip_blas.cpp."""

    _fields_ = (
        ("at", ctypes.c_uint64),
        ("kind", ctypes.c_int32),
        ("turned", ctypes.c_int32),
        ("by_rows", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "ld", "stride")),
    )


class Product(ctypes.Structure):
    """The struct in hip_blas.cpp."""

    _fields_ = (
        *((name, _Matrix) for name in "abcd"),
        ("aux", _Matrix),
        *(
            (name, ctypes.c_uint64)
            for name in ("alpha", "beta", "bias", "a_scale", "b_scale", "d_scale")
        ),
        *((name, ctypes.c_int32) for name in ("scalar_kind", "batches", "epilogue", "bias_kind")),
    )


Check = Callable[[int, int], None]
"""Raises KernelError for a stretch of memory, an address and bytes, that is not the GPU's."""


def multiply(asked: Any, check: Check) -> int:
    """Carry out a product, the GPU's memory open; return 0, or NOT_SUPPORTED."""
    used = [asked.a, asked.b, asked.c, asked.d]
    kinds = {one.kind for one in used} | {asked.scalar_kind, asked.bias_kind, asked.aux.kind}
    if not kinds <= KINDS.keys() or asked.epilogue & ~KNOWN:
        return NOT_SUPPORTED
    alpha, beta = (_number(at, asked.scalar_kind) for at in (asked.alpha, asked.beta))
    for scale in (asked.a_scale, asked.b_scale, asked.d_scale):
        alpha *= _number(scale, 0) if scale else 1.0
    for batch in range(asked.batches):
        left, right = (_operand(one, batch, check) for one in (asked.a, asked.b))
        made = alpha * (left @ right)
        if beta:
            made += beta * _view(asked.c, batch, check).double()
        made = _finished(made, left, right, asked, batch, check)
        _view(asked.d, batch, check).copy_(made)
    return 0


def _finished(
    made: Tensor, left: Tensor, right: Tensor, asked: Any, batch: int, check: Check
) -> Tensor:
    does = asked.epilogue
    if does & BIAS:
        made = made + _row(asked, made.shape[0], check).double()[:, None]
    if does & GRADIENT:
        made = made * _gelu_gradient(_view(asked.aux, batch, check).double())
    elif does & KEEP:
        _view(asked.aux, batch, check).copy_(made)
    if does & RELU:
        made = made.relu()
    if does & GELU and not does & GRADIENT:
        made = torch.nn.functional.gelu(made, approximate="tanh")
    if does & SWISH:
        made = torch.nn.functional.silu(made)
    if does & (BIAS_GRADIENT | SUM_A | SUM_B):
        sums = made.sum(1) if does & BIAS_GRADIENT else left.sum(1)
        sums = right.sum(0) if does & SUM_B else sums
        _row(asked, len(sums), check).copy_(sums)
    return made


def _gelu_gradient(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    tanh = inner.tanh()
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * slope


def _operand(matrix: Any, batch: int, check: Check) -> Tensor:
    found = _view(matrix, batch, check).double()
    return found.T if matrix.turned else found


def _view(matrix: Any, batch: int, check: Check) -> Tensor:
    """Return a matrix of rows and columns where it lies."""
    kind = KINDS[matrix.kind]
    lines, length = (
        (matrix.rows, matrix.columns) if matrix.by_rows else (matrix.columns, matrix.rows)
    )
    count = (lines - 1) * matrix.ld + length
    at = matrix.at + batch * matrix.stride * kind.itemsize
    flat = _flat(at, max(0, count), kind, check)
    steps = (matrix.ld, 1) if matrix.by_rows else (1, matrix.ld)
    return flat.as_strided((matrix.rows, matrix.columns), steps)


def _row(asked: Any, length: int, check: Check) -> Tensor:
    return _flat(asked.bias, length, KINDS[asked.bias_kind], check)


def _flat(at: int, count: int, kind: torch.dtype, check: Check) -> Tensor:
    if not count:
        return torch.empty(0, dtype=kind)
    check(at, count * kind.itemsize)
    data = (ctypes.c_ubyte * (count * kind.itemsize)).from_address(at)
    return torch.frombuffer(data, dtype=torch.uint8).view(kind)


def _number(at: int, kind: int) -> float:
    """Return a scalar of the host's memory or of the GPU's."""
    size = KINDS[kind].itemsize
    data = (ctypes.c_ubyte * size).from_address(at)
    return float(torch.frombuffer(data, dtype=torch.uint8).clone().view(KINDS[kind])[0])
