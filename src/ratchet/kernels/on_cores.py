"""A problem's file that asks for `cuda`, run on the machine's cores.

Values are drawn on the cores wherever the judge computes, so that a seed means the same everywhere;
and KernelBench's files are to run where there is no GPU. So what a file would make on a GPU is made
in the machine's memory. The judge places it on a GPU where it judges on one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _OnCores(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.to:
            args = [torch.device("cpu") if _is_cuda(one) else one for one in args]
        if _is_cuda(named.get("device")):
            named["device"] = "cpu"
        return func(*args, **named)


def on_cores(text: str) -> contextlib.AbstractContextManager[Any]:
    """While it lasts, torch makes no tensor on a GPU; for the text of a file that names one."""
    return _OnCores() if "cuda" in text else contextlib.nullcontext()


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"
