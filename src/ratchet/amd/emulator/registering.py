"""Operators that a program registers for the GPU, in a process whose tensors are all the CPU's.

They are registered for the CPU. A call that has nothing on the GPU goes to the CPU's own kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch._ops import OpOverload
from torch.library import Library

if TYPE_CHECKING:
    from ratchet.amd.emulator.pretending import EmulatedGpu


Operator = str | OpOverload


def registered(gpu: EmulatedGpu, register: Callable[..., object]) -> Callable[..., object]:
    """Return `Library.impl` that registers a GPU's operator for the CPU."""

    def impl(
        library: Library,
        name: Operator,
        function: Callable[..., object],
        dispatch_key: str = "",
        **named: object,
    ) -> object:
        is_own = not str(getattr(function, "__module__", "")).startswith("torch.")
        key = "CPU" if dispatch_key == "CUDA" and is_own else dispatch_key
        run = function if key in ("Meta", "Autograd") else gpu.callback(function)
        if key != dispatch_key and not named.get("with_keyset"):
            run = _for_gpu_alone(gpu, run, _own_kernel(library, name))
        return register(library, name, run, key, **named)

    return impl


def _own_kernel(library: Library, name: Operator) -> Callable[..., object] | None:
    """Return the CPU's kernel of an operator; None where torch has none."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    full = (
        f"{library.ns}::{name.rpartition('::')[2]}" if isinstance(name, str) else str(name.name())  # type: ignore[no-untyped-call]
    )
    try:
        kernel = torch.library.get_kernel(full, "CPU")
        schema = torch._C._get_schema(*(full.split(".") if "." in full else (full, "")))
    except (RuntimeError, ValueError):
        return None
    tensors = [str(one.type) == "Tensor" for one in schema.arguments]

    def own(*given: object, **named: object) -> object:
        # a number in a tensor's place comes as a number to Python's kernels alone
        is_number = [isinstance(one, (bool, int, float, complex)) for one in given]
        places = zip(given, is_number, tensors, strict=False)
        values = [torch.tensor(one) if plain and wants else one for one, plain, wants in places]
        return kernel.call_boxed(keys, *values, **named)

    return own


def _for_gpu_alone(
    gpu: EmulatedGpu, run: Callable[..., object], own: Callable[..., object] | None
) -> Callable[..., object]:
    @functools.wraps(run)
    def chosen(*given: object, **named: object) -> object:
        if own is not None and gpu.is_for_host(given, named, gpu.told.device):
            return own(*given, **named)
        if gpu.told.device is not None and named.get("device") is not None:
            named["device"] = gpu.told.device  # torch knows the CPU alone
        return run(*given, **named)

    return chosen
