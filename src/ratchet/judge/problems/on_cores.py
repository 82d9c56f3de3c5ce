"""Support for problem files that ask for `cuda`, on the CPU.

The judge always draws values on the CPU, so that a seed means the same everywhere. KernelBench's
files must also run without a GPU. So a tensor that a file would create on a GPU is created in main
memory. If the judge uses a GPU, it copies the tensor there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _OnCores(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.to:
            args = [torch.device("cpu") if _is_cuda(one) else one for one in args]
        if _is_cuda(named.get("device")):
            named["device"] = "cpu"
        return func(*args, **named)


def on_cores(text: str) -> contextlib.AbstractContextManager[object]:
    """Create all tensors on the CPU inside the context, if the file's text names a GPU."""
    return _OnCores() if "cuda" in text else contextlib.nullcontext()


def _is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"
