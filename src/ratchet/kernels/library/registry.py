"""Which compiled kernel serves which op, in this process. Starts empty: nothing is trusted yet.

An op asks `call`; where that returns False it computes its torch composite. The first import of
torch stands above every library load, so that all of them share torch's OpenMP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from ratchet.errors import KernelError
from ratchet.kernels.abi import DTYPE_CODES, MAX_DIMENSIONS, Entry, pack_scalars, pack_tensors
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp

fallbacks: Final[Counter[str]] = Counter()
"""How often an op computed its torch composite, by entry."""

_entries: Final[dict[str, Entry]] = {}
_kernels: Final[dict[str, Kernel]] = {}
_CODES: Final[dict[torch.dtype, int]] = {
    getattr(torch, name): code for name, code in DTYPE_CODES.items()
}
_PADS: Final = tuple((0,) * (MAX_DIMENSIONS - ndim) for ndim in range(MAX_DIMENSIONS + 1))
_NO_SCALARS: Final = b""


def activate(kernel: Kernel, path: Path) -> None:
    """From now on the op of `kernel.entry` runs the compiled library at `path`."""
    if kernel.language != "cpp":
        raise KernelError(
            f"kernel {kernel.name!r} is written in {kernel.language}: only cpp can be activated"
        )
    _entries[kernel.entry] = cpp.load(path, kernel.entry)
    _kernels[kernel.entry] = kernel


def deactivate(entry: str | None = None) -> None:
    """The op of `entry` (all of them without one) computes its torch composite again."""
    if entry is None:
        _entries.clear()
        _kernels.clear()
        return
    _entries.pop(entry, None)
    _kernels.pop(entry, None)


def active() -> dict[str, Kernel]:
    """The active kernels by entry."""
    return dict(_kernels)


def is_active(entry: str) -> bool:
    """Whether a kernel serves this entry."""
    return entry in _entries


def tensor_words(tensors: Sequence[Tensor]) -> list[int] | None:
    """The machine words of `tensors` for the ABI; None where one of them cannot cross it."""
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

    False (counted in `fallbacks`) where no kernel is active, or it does not take these inputs:
    then nothing was written and the caller computes its composite. A negative code of the
    kernel, which means that it broke half-way, raises KernelError.
    """
    function = _entries.get(entry)
    if function is not None:
        flat = tensor_words(tensors)
        if flat is not None and _invoke(entry, function, pack_tensors(flat), len(tensors), scalars):
            return True
    fallbacks[entry] += 1
    return False


def call_packed(entry: str, packed: bytes, count: int, scalars: Sequence[float]) -> bool:
    """As `call`, for tensors that were packed before (`abi.pack_tensors`)."""
    function = _entries.get(entry)
    if function is not None and _invoke(entry, function, packed, count, scalars):
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
