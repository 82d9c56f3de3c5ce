"""Read gradients from .safetensors files, without torch, one parameter at a time.

The format: eight bytes of header length (little endian), a JSON header that gives each tensor's
dtype, shape and byte range, then the bytes (https://github.com/huggingface/safetensors, "Format").
safetensors' own numpy reader does not know bfloat16.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ratchet.base import Json
from ratchet.base.errors import JudgeError

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The place of one tensor in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class GradientFile:
    """The gradients of one step, by parameter name. Raises JudgeError for a damaged file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.entries = _entries(self._bytes)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise JudgeError(
                f"{path}: cannot be read as a .safetensors file of gradients ({error}); write it "
                "again with safetensors.torch.save_file"
            ) from error

    def read(self, name: str) -> NDArray[np.float64]:
        """Return one gradient as a flat fp64 array."""
        entry = self.entries[name]
        raw = self._bytes[entry.begin : entry.end]
        if entry.dtype == "BF16":
            bits = np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16
            return bits.view(np.float32).astype(np.float64)
        kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
        return np.frombuffer(raw, dtype=kinds[entry.dtype]).astype(np.float64)


def _entries(data: mmap.mmap) -> dict[str, Entry]:
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"the header claims {length} bytes")
    header = json.loads(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    start = 8 + length
    return {
        name: _entry(fields, start, len(data))
        for name, fields in header.items()
        if name != "__metadata__"
    }


def _entry(fields: dict[str, Json], start: int, size: int) -> Entry:
    dtype, shape = fields["dtype"], tuple(int(extent) for extent in fields["shape"])
    begin, end = (start + int(offset) for offset in fields["data_offsets"])
    if dtype not in ITEM_BYTES:
        raise ValueError(f"dtype {dtype} is not a gradient's dtype")
    if not start <= begin <= end <= size or end - begin != ITEM_BYTES[dtype] * math.prod(shape):
        raise ValueError("a tensor's bytes do not match its shape")
    return Entry(dtype=dtype, shape=shape, begin=begin, end=end)
