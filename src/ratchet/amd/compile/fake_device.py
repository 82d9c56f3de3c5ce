"""Tensors that claim to be on a GPU, on a machine without one; only for a candidate's sandbox.

Meta tensors have shapes, strides and dtypes but no values, so a problem of any size costs nothing.
An entry that reads a value on the host (`lengths.max().item()`) needs values, and gets tensors on
the CPU. Both only claim the GPU as their device: torch's fake tensors cannot even be sliced for a
device that this build of torch lacks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ratchet.amd.architectures import Architecture, PretendedDevice
from ratchet.amd.compile.torch_cuda import answering

FIRST_ADDRESS, ADDRESS_STEP = 1 << 40, 1 << 36
"""Each storage begins at its own multiple, as aligned as by a GPU's allocator."""


@contextlib.contextmanager
def pretended_device(architecture: Architecture, units: int, *, values: bool) -> Iterator[None]:
    """Make `device="cuda"` work, and torch.cuda describe the GPU, inside."""
    device = PretendedDevice(architecture=architecture, name=architecture.name, units=units)
    with answering(device), torch.no_grad(), _SayCuda("cpu" if values else "meta"):
        yield


def moved(tensors: Sequence[Tensor], *, values: bool) -> list[Tensor]:
    """Return the tensors on the pretended device, with values or without."""
    if values:
        return list(tensors)
    return [
        torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="cuda")
        for one in tensors
    ]


class _SayCuda(TorchFunctionMode):
    """Makes tensors claim the GPU as their device, and creates new ones on the real device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)
        self._addresses = _Addresses()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda", 0)
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        tensor = args[0] if args else None
        if isinstance(tensor, Tensor):
            if func is torch.Tensor.data_ptr and tensor.is_meta:
                return self._addresses.of(tensor)
            if func in (torch.Tensor.cuda, torch.Tensor.cpu) and self._device.type == "cpu":
                return tensor
            if func is torch.Tensor.cuda:
                return tensor.to(self._device)
        own = {key: self._real(value) for key, value in (kwargs or {}).items()}
        return func(*(self._real(value) for value in args), **own)

    def _real(self, value: object) -> object:
        """Return the real device for the pretended one, and other values unchanged."""
        named = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
        if named or (isinstance(value, torch.device) and value.type == "cuda"):
            return self._device
        return value


class _Addresses:
    """A fixed address for each storage."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._count = itertools.count()

    def of(self, tensor: Tensor) -> int:
        """Return the result of `tensor.data_ptr()`."""
        storage = tensor.untyped_storage()._cdata
        if storage not in self._known:
            self._known[storage] = FIRST_ADDRESS + ADDRESS_STEP * next(self._count)
        return self._known[storage] + int(tensor.storage_offset()) * tensor.element_size()
