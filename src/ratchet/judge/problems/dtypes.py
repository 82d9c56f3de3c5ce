"""The dtypes that tensors of problems have. Imports no torch."""

from __future__ import annotations

from typing import Final

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
