"""Load a compiled HIP source with an entry of the C++ interface in the sandbox."""

from __future__ import annotations

import base64
import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.emulator.decode import target_of
from ratchet.amd.emulator.hip_runtime import GpuMemory, HipRuntime
from ratchet.amd.emulator.launch import Emulator
from ratchet.amd.emulator.loading import EMULATOR
from ratchet.base.errors import KernelError
from ratchet.judge.abi import DTYPE_CODES, MAX_DIMENSIONS, RatchetTensor
from ratchet.judge.workers.candidate.results import DeclinedCase

DONE: Final = 0
CODES: Final = {getattr(torch, name): code for name, code in DTYPE_CODES.items()}


class HipProgram:
    """A HIP source whose entry can be called with tensors."""

    wants_forms = True

    def __init__(
        self,
        assembly: str,
        host: bytes,
        entry: str,
        emulator: Path,
        device: Mapping[str, object] | None = None,
    ) -> None:
        """`emulator` is the compiled machine; `device` is what `PretendedDevice.of` takes."""
        self._memory = GpuMemory()
        told = PretendedDevice.of(target_of(assembly), device or {})
        self._runtime = HipRuntime([assembly], Emulator(emulator), self._memory, told)
        handle = os.memfd_create("host")
        os.write(handle, host)
        library = ctypes.CDLL(f"/proc/self/fd/{handle}")
        os.close(handle)
        try:
            self._entry = getattr(library, entry)
        except AttributeError as error:
            raise KernelError(
                f"the source defines no RATCHET_ENTRY {entry}: its host code is the kernel's entry"
            ) from error
        self._entry.restype = ctypes.c_int64
        self._runtime.install(library)

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        """Call the entry with inputs, scalars, forms of the results and which inputs it changes."""
        *inputs, scalars, forms, in_place = given
        self._memory.forget()
        outputs = [one.empty() for one in forms[len(in_place) :]]
        self._runtime.element_bytes = min([one.dtype.itemsize for one in forms], default=1)
        held = [
            self._moved(one, copied=at < len(inputs)) for at, one in enumerate(inputs + outputs)
        ]
        self._call(held, scalars)
        changed = [held[place] for place in in_place]
        return tuple(one.clone() for one in (*changed, *held[len(inputs) :]))

    def _call(self, tensors: Sequence[Tensor], scalars: Sequence[float]) -> None:
        packed = (RatchetTensor * len(tensors))(*map(_packed, tensors))
        values = (ctypes.c_double * len(scalars))(*scalars)
        with self._runtime.called(), self._memory.closed():
            code = self._entry(
                packed, ctypes.c_int64(len(tensors)), values, ctypes.c_int64(len(scalars))
            )
        if code != DONE:
            raise DeclinedCase(int(code))

    def _moved(self, tensor: Tensor, *, copied: bool) -> Tensor:
        """Return a tensor on the pretended GPU, with these strides, and the values if `copied`."""
        spread = zip(tensor.shape, tensor.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in spread) if tensor.numel() else 0
        block = self._memory.block(span * tensor.element_size())
        if not tensor.numel():
            return tensor
        flat = block.bytes[: span * tensor.element_size()].view(tensor.dtype)
        block.leave_to_tensors()
        if copied:
            flat.copy_(tensor.as_strided((span,), (1,)))  # elements may share memory
        return flat.as_strided(tensor.shape, tensor.stride())


def _packed(tensor: Tensor) -> RatchetTensor:
    ndim = tensor.dim()
    if ndim > MAX_DIMENSIONS:
        raise KernelError(f"a tensor of {ndim} dimensions: the interface has {MAX_DIMENSIONS}")
    padding = [0] * (MAX_DIMENSIONS - ndim)
    return RatchetTensor(
        tensor.data_ptr(),
        CODES[tensor.dtype],
        ndim,
        (ctypes.c_int64 * MAX_DIMENSIONS)(*tensor.shape, *padding),
        (ctypes.c_int64 * MAX_DIMENSIONS)(*tensor.stride(), *padding),
    )


def load_hip(
    assembly: str,
    host: str,
    entry: str,
    device: Mapping[str, object] | None = None,
) -> HipProgram:
    """Return the entry of a compiled HIP source; raises KernelError if there is none.

    `device` is what `PretendedDevice.of` takes.
    """
    emulator = Path(os.environ[EMULATOR])
    return HipProgram(assembly, base64.b64decode(host), entry, emulator, device)
