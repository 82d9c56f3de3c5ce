"""Tensors that claim to be on a GPU, on a machine without one; only for a candidate's sandbox.

Meta tensors have shapes, strides and dtypes but no values, so a problem of any size costs nothing.
An entry that reads a value on the host (`lengths.max().item()`) needs values, and gets tensors on
the CPU. Both only claim the GPU as their device: torch's fake tensors cannot even be sliced for a
device that this build of torch lacks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ratchet.judge.workers.candidate.architectures import Architecture
from ratchet.judge.workers.candidate.fake_driver import capability

FIRST_ADDRESS, ADDRESS_STEP = 1 << 40, 1 << 36
"""Each storage begins at its own multiple, as aligned as by a GPU's allocator."""
MEMORY_BYTES = 64 << 30


@contextlib.contextmanager
def pretended_device(architecture: Architecture, units: int, *, values: bool) -> Iterator[None]:
    """Make `device="cuda"` work, and torch.cuda describe the GPU, inside."""
    version = {"hip": None, "cuda": None} | {architecture.backend: "7.0"}
    with contextlib.ExitStack() as stack:
        for name, value in device_answers(architecture, units).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for name, value in version.items():
            stack.enter_context(mock.patch.object(torch.version, name, value))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_SayCuda("cpu" if values else "meta"))
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
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda", 0)
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func is torch.Tensor.data_ptr and args[0].is_meta:
            return self._addresses.of(args[0])
        if func in (torch.Tensor.cuda, torch.Tensor.cpu) and self._device.type == "cpu":
            return args[0]
        if func is torch.Tensor.cuda:
            return args[0].to(self._device)
        own = {key: self._real(value) for key, value in (kwargs or {}).items()}
        return func(*(self._real(value) for value in args), **own)

    def _real(self, value: Any) -> Any:
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


def _properties(architecture: Architecture, units: int) -> Any:
    major, minor = capability(architecture)
    return SimpleNamespace(
        name=architecture.name,
        gcnArchName=architecture.name,
        major=major,
        minor=minor,
        multi_processor_count=units,
        warp_size=architecture.wavefront_size,
        total_memory=MEMORY_BYTES,
        shared_memory_per_block=architecture.lds_bytes_per_workgroup,
        shared_memory_per_block_optin=architecture.lds_bytes_per_workgroup,
        shared_memory_per_multiprocessor=architecture.lds_bytes_per_unit,
        regs_per_multiprocessor=architecture.vgprs_per_lane
        * architecture.wavefront_size
        * architecture.simds_per_unit,
        max_threads_per_multi_processor=architecture.max_waves_per_simd
        * architecture.simds_per_unit
        * architecture.wavefront_size,
    )


def device_answers(architecture: Architecture, units: int) -> dict[str, Any]:
    """Return the attributes of torch.cuda that describe a GPU with this many compute units."""
    properties, stream = _properties(architecture, units), _Anything()
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: capability(architecture),
        "get_device_name": lambda *_: properties.name,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (MEMORY_BYTES, MEMORY_BYTES),
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "device": _Context,
        "device_of": _Context,
        "stream": _Context,
        "Stream": _Anything,
        "Event": _Anything,
        "_lazy_init": lambda: None,
    }


class _Anything:
    """A stream or an event that accepts every call."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def elapsed_time(self, _: Any) -> float:
        """Return milliseconds."""
        return 1.0


class _Context:
    """`with torch.cuda.device(...)`, which does nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass
