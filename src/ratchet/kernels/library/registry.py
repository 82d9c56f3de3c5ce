"""Compiled kernels that serve ops in this process. It starts empty: no kernel is trusted yet.

An op asks `call`; if that returns False, it runs its torch composite. torch is imported before any
library is loaded, so that all of them share torch's OpenMP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.kernels.abi import MAX_DIMENSIONS, Entry, pack_scalars, pack_tensors
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp
from ratchet.problems.dtypes import DTYPE_CODES

fallbacks: Final[Counter[str]] = Counter()
"""Number of times that an op ran its torch composite, by entry."""

_entries: Final[dict[str, Entry]] = {}
_kernels: Final[dict[str, Kernel]] = {}
_CODES: Final[dict[torch.dtype, int]] = {
    getattr(torch, name): code for name, code in DTYPE_CODES.items()
}
_PADS: Final = tuple((0,) * (MAX_DIMENSIONS - ndim) for ndim in range(MAX_DIMENSIONS + 1))
_NO_SCALARS: Final = b""


def activate(kernel: Kernel, path: Path, *, name: str = "") -> None:
    """Make the op of `kernel.entry`, or of `name`, run the compiled library at `path`."""
    if kernel.language != "cpp":
        raise KernelError(
            f"kernel {kernel.name!r} is written in {kernel.language}: only cpp can be activated"
        )
    _entries[name or kernel.entry] = cpp.load(path, kernel.entry)
    _kernels[name or kernel.entry] = kernel


def deactivate(entry: str | None = None) -> None:
    """Make the op of `entry` (default: all ops) run its torch composite again."""
    if entry is None:
        _entries.clear()
        _kernels.clear()
        return
    _entries.pop(entry, None)
    _kernels.pop(entry, None)


def active() -> dict[str, Kernel]:
    """Return the active kernels by entry."""
    return dict(_kernels)


def is_active(entry: str) -> bool:
    """Return whether a kernel serves this entry."""
    return entry in _entries


def tensor_words(tensors: Sequence[Tensor]) -> list[int] | None:
    """Return the machine words of `tensors` for the ABI; None if one is not supported."""
    flat: list[int] = []
    for tensor in tensors:
        code = _CODES.get(tensor.dtype)
        size = tensor.shape
        ndim = len(size)
        if code is None or ndim > MAX_DIMENSIONS or not tensor.is_cpu:
            return None
        pad = _PADS[ndim]
        flat += (tensor.data_ptr(), code, ndim, *size, *pad, *tensor.stride(), *pad)
    return flat


def call(entry: str, tensors: Sequence[Tensor], scalars: Sequence[float] = ()) -> bool:
    """Run the active kernel of `entry` on `tensors` (inputs, then outputs).

    Return False (counted in `fallbacks`) if no kernel is active or it declines these inputs. Then
    nothing was written, and the caller runs its composite. A negative code, which means that the
    kernel failed half-way, raises a KernelError.
    """
    function = _entries.get(entry)
    if function is not None:
        flat = tensor_words(tensors)
        if flat is not None and _invoke(entry, function, pack_tensors(flat), len(tensors), scalars):
            return True
    fallbacks[entry] += 1
    return False


def _invoke(
    entry: str, function: Entry, packed: bytes, count: int, scalars: Sequence[float]
) -> bool:
    numbers = pack_scalars(scalars) if scalars else _NO_SCALARS
    code = function(packed, count, numbers, len(scalars))
    if code < 0:
        raise KernelError(f"kernel {entry!r} failed with code {code}: run without it (kernels=())")
    return code == 0
