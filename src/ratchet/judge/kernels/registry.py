"""Kernels that serve ops in this process, by entry and kind of device, in C++ or in Triton.

It starts empty: no kernel is trusted yet. An op asks `call`; without a kernel that takes its
tensors it runs plain torch. torch is imported before any library is loaded, so that all of them
share torch's OpenMP.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.base import scratch
from ratchet.base.errors import KernelError
from ratchet.base.files import cache_folder
from ratchet.judge.abi import DTYPE_CODES, MAX_DIMENSIONS, Entry, pack_scalars, pack_tensors
from ratchet.judge.kernels import source_files
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.kernels.languages import cpp

# Kernels as files that a process can load: compiled libraries, and sources in Triton. No torch.

DEVICES: Final[dict[Language, str]] = {"cpp": "cpu", "triton": "cuda"}
"""The kind of device that kernels of a language run on in a step."""


def build_kernel(kernel: Kernel) -> Path:
    """Return the file of a kernel in the cache: compiled, or its source in Triton.

    Raises CompilerMissing, or a KernelError for a source that does not compile and any language but
    these.
    """
    _check(kernel)
    if kernel.language == "cpp":
        return cpp.compile_kernel(kernel)
    path = cache_folder("kernels") / f"triton_{kernel.build_hash[:40]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch.folder("source", place=path.parent) as folder:
        written = folder / path.name
        written.write_text(kernel.source, encoding="utf-8")
        os.replace(written, path)
    return path


def load_entry(kernel: Kernel, path: Path) -> Callable[..., object]:
    """Return a kernel's entry from the file that `build_kernel` returned."""
    _check(kernel)
    if kernel.language == "cpp":
        return cpp.load(path, kernel.entry)
    return source_files.load(path, kernel.entry)


def _check(kernel: Kernel) -> None:
    if kernel.language not in DEVICES:
        raise KernelError(
            f"kernel {kernel.name!r} is written in {kernel.language}: only kernels in "
            f"{' and '.join(DEVICES)} can be activated"
        )


fallbacks: Final[Counter[str]] = Counter()
"""Number of times that an op ran its torch composite, by entry."""

Serves = Callable[[Sequence[Tensor], Sequence[float], Sequence[Tensor]], Sequence[Tensor] | None]
_serving: Final[dict[tuple[str, str], Serves]] = {}
_kernels: Final[dict[tuple[str, str], Kernel]] = {}
_CODES: Final[dict[torch.dtype, int]] = {
    getattr(torch, name): code for name, code in DTYPE_CODES.items()
}
_PADS: Final = tuple((0,) * (MAX_DIMENSIONS - ndim) for ndim in range(MAX_DIMENSIONS + 1))
_NO_SCALARS: Final = b""
_FLOATS: Final = (torch.float32, torch.bfloat16)
"""The floating-point dtypes that Triton's entries, which sum in fp32, take."""


def activate(kernel: Kernel, path: Path, *, name: str = "", device: str = "") -> None:
    """Make the op of `kernel.entry`, or of `name`, run the kernel that `build_kernel` made.

    It serves tensors on the language's kind of device, or on `device`: Triton's interpreter runs on
    the CPU.
    """
    entry, function = name or kernel.entry, load_entry(kernel, path)
    place = entry, device or DEVICES[kernel.language]
    serve(*place, function, compiled=kernel.language == "cpp")
    _kernels[place] = kernel


def serve(entry: str, device: str, function: Callable[..., Any], *, compiled: bool) -> None:
    """Make the op of `entry` run a loaded kernel: a C function, or one called as its reference."""
    run = functools.partial(_run_compiled, entry) if compiled else _run_in_python
    _serving[entry, device] = functools.partial(run, function)


def deactivate(entry: str | None = None) -> None:
    """Make the op of `entry` (default: all ops) run its torch composite again."""
    for place in list(_kernels):
        if entry in (None, place[0]):
            del _serving[place], _kernels[place]


def active() -> dict[str, Kernel]:
    return {entry: kernel for (entry, _), kernel in _kernels.items()}


def is_active(entry: str, device: str = "cpu") -> bool:
    return (entry, device) in _serving


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


def call(
    entry: str,
    tensors: Sequence[Tensor],
    scalars: Sequence[float] = (),
    outputs: Sequence[Tensor] = (),
) -> Sequence[Tensor] | None:
    """Return the outputs of the active kernel of `entry` for the device of `tensors`.

    A compiled kernel writes `outputs`; one in Triton returns tensors of the same form, and copies
    nothing. Both change tensors in place where the entry does. None, counted in `fallbacks`, means
    that no kernel is active or that it declines these tensors. Then nothing was written, and the
    caller runs its composite. Raises KernelError: the kernel failed half-way (a negative code).
    """
    serves = _serving.get((entry, (tensors or outputs)[0].device.type))
    found = None if serves is None else serves(tensors, scalars, outputs)
    if found is None:
        fallbacks[entry] += 1
    return found


def _run_compiled(
    entry: str,
    function: Entry,
    tensors: Sequence[Tensor],
    scalars: Sequence[float],
    outputs: Sequence[Tensor],
) -> Sequence[Tensor] | None:
    flat = tensor_words((*tensors, *outputs))
    if flat is None:
        return None
    numbers = pack_scalars(scalars) if scalars else _NO_SCALARS
    count = len(tensors) + len(outputs)
    code = function(pack_tensors(flat), count, numbers, len(scalars))
    if code < 0:
        raise KernelError(f"kernel {entry!r} failed with code {code}: run without it (kernels=())")
    return outputs if code == 0 else None


def _run_in_python(
    function: Callable[..., Sequence[Tensor]],
    tensors: Sequence[Tensor],
    scalars: Sequence[float],
    outputs: Sequence[Tensor],
) -> Sequence[Tensor] | None:
    """Run an entry with its reference's signature; it declines by a ValueError, before it writes.

    Its results are the tensors that it changed in place, then the outputs. It also declines where
    an output would have to be widened: the result has been rounded already.
    """
    device = tensors[0].device
    given = [one if one.numel() or one.device == device else _nothing(device) for one in tensors]
    if any(_is_foreign(one, device) for one in given):
        return None
    try:
        with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
            results = function(*given, tuple(scalars))
    except ValueError:
        return None
    first = len(results) - len(outputs)
    in_place, new = set(map(id, results[:first])) <= set(map(id, given)), results[first:]
    narrow = any(
        one.dtype.itemsize < own.dtype.itemsize for own, one in zip(outputs, new, strict=True)
    )
    return filled(outputs, new) if in_place and not narrow else None


@functools.cache
def _nothing(device: torch.device) -> Tensor:
    """Return a missing optional tensor, whose placeholder is on the CPU, on another device."""
    return torch.empty(0, device=device)


def _is_foreign(tensor: Tensor, device: torch.device) -> bool:
    kind = tensor.dtype
    return tensor.device != device or (kind.is_floating_point and kind not in _FLOATS)


def filled(outputs: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return `results` in the form of `outputs`: what has another dtype or layout is copied.

    An output without elements is one that nobody asked for. On the meta device an output is a form
    alone.
    """
    return tuple(map(_in_form, outputs, results))


def _in_form(own: Tensor, result: Tensor) -> Tensor:
    form = own.dtype, own.shape, own.stride()
    if own.numel() and form == (result.dtype, result.shape, result.stride()):
        return result
    if own.is_meta:
        own = torch.empty_strided(*form[1:], dtype=own.dtype, device=result.device)
    return own.copy_(result.reshape(own.shape)) if own.numel() else own
