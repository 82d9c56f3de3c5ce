"""Operators that a program registers for the GPU, in a process whose tensors are all the CPU's.

They are registered for the CPU. A call that has nothing on the GPU goes to the CPU's own kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ratchet.judge.emulator.pretending import EmulatedGpu


def registered(gpu: EmulatedGpu, register: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Library.impl` that registers a GPU's operator for the CPU."""

    def impl(library: Any, name: Any, function: Any, dispatch_key: str = "", **named: Any) -> Any:
        is_own = not str(getattr(function, "__module__", "")).startswith("torch.")
        key = "CPU" if dispatch_key == "CUDA" and is_own else dispatch_key
        run = function if key in ("Meta", "Autograd") else gpu.callback(function)
        if key != dispatch_key and not named.get("with_keyset"):
            run = _for_gpu_alone(gpu, run, _own_kernel(library, name))
        return register(library, name, run, key, **named)

    return impl


def _own_kernel(library: Any, name: Any) -> Any:
    """Return the CPU's kernel of an operator; None where torch has none."""
    try:
        op = name if not isinstance(name, str) else f"{library.ns}::{name.rpartition('::')[2]}"
        return torch.library.get_kernel(op, "CPU")
    except (RuntimeError, ValueError):
        return None


def _for_gpu_alone(gpu: EmulatedGpu, run: Callable[..., Any], own: Any) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    @functools.wraps(run)
    def chosen(*given: Any, **named: Any) -> Any:
        if own is not None and gpu.is_for_host(given, named, gpu.told.device):
            return own.call_boxed(keys, *given, **named)
        return run(*given, **named)

    return chosen
