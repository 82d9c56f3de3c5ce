"""The plain C interface between Python and a compiled kernel. Imports no torch.

`languages/ratchet_abi.h` defines the same layout; a test compares the two.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Final

MAX_DIMENSIONS: Final = 6

Entry = Callable[[bytes, int, bytes, int], int]
"""ENTRY(tensors, count, scalars, scalar_count) of a loaded kernel; takes packed bytes."""


class RatchetTensor(ctypes.Structure):
    """One tensor as a kernel receives it; sizes and strides count elements."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("ndim", ctypes.c_int64),
        ("size", ctypes.c_int64 * MAX_DIMENSIONS),
        ("stride", ctypes.c_int64 * MAX_DIMENSIONS),
    )


_ZEROS: Final = tuple((0,) * count for count in range(MAX_DIMENSIONS + 1))
_TENSOR_PACKERS: Final[dict[int, struct.Struct]] = {}
_SCALAR_PACKERS: Final[dict[int, struct.Struct]] = {}


def words(address: int, dtype_code: int, size: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Return the 15 machine words of one tensor, in the order of `RatchetTensor`."""
    pad = _ZEROS[MAX_DIMENSIONS - len(size)]
    return [address, dtype_code, len(size), *size, *pad, *stride, *pad]


def pack_tensors(flat_words: Sequence[int]) -> bytes:
    """Return the words of any number of tensors as the bytes of an array of `RatchetTensor`."""
    count = len(flat_words)
    packer = _TENSOR_PACKERS.get(count)
    if packer is None:
        packer = _TENSOR_PACKERS[count] = struct.Struct(f"{count}q")
    return packer.pack(*flat_words)


def pack_scalars(scalars: Sequence[float]) -> bytes:
    """Return scalars as the bytes of an array of doubles."""
    count = len(scalars)
    packer = _SCALAR_PACKERS.get(count)
    if packer is None:
        packer = _SCALAR_PACKERS[count] = struct.Struct(f"{count}d")
    return packer.pack(*scalars)


DTYPE_CODES: Final[dict[str, int]] = {
    "float32": 0,
    "bfloat16": 1,
    "float64": 2,
    "int64": 3,
    "int32": 4,
    "bool": 5,
    "float16": 6,
    "uint8": 7,
    "int8": 8,
    "float8_e4m3fn": 9,
    "float8_e5m2": 10,
}
"""Codes of `ratchet_abi.h` by torch's dtype names (without `torch.`)."""

ITEM_BYTES: Final[dict[str, int]] = {
    "float32": 4,
    "bfloat16": 2,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "bool": 1,
    "float16": 2,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes per element, by the same names."""
