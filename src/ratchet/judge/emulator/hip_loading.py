"""Load a compiled HIP source in the sandbox: its host code runs, and its launches are emulated.

As on a GPU, the host code can neither read nor write the memory of a call's tensors.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import math
import mmap
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.emulator.decode import DecodedKernel, decode
from ratchet.judge.emulator.launch import Emulator, LaunchMemory
from ratchet.judge.emulator.loading import EMULATOR, EmulatedLauncher
from ratchet.judge.workers.candidate.results import DeclinedCase
from ratchet.kernels.abi import MAX_DIMENSIONS, RatchetTensor
from ratchet.problems.dtypes import DTYPE_CODES

METADATA = re.compile(r"(\.amdgpu_metadata\n)(.*?)(\n?[ \t]*\.end_amdgpu_metadata)", re.DOTALL)
DESCRIPTOR = re.compile(
    r"^[ \t]*\.amdhsa_kernel (\S+)\n.*?\.end_amdhsa_kernel\n", re.MULTILINE | re.DOTALL
)
NAME = re.compile(r"^    \.name:\s*(\S+)\s*$", re.MULTILINE)


def one_kernel(text: str, name: str) -> str:
    """Return the text without the other kernels' metadata; raises KernelError without this one.

    Their code stays, under its own labels.
    """
    found = METADATA.search(text)
    if found is None:
        raise KernelError("the assembly has no description of its kernels")
    head, *items = re.split(r"^(?=  - )", found[2], flags=re.MULTILINE)
    *rest, last = items or [""]
    last, tail = _tail(last)
    own = [one for one in (*rest, last) if (said := NAME.search(one)) and _plain(said[1]) == name]
    if len(own) != 1:
        raise KernelError(f"the assembly describes {len(own)} kernels called {name!r:.80}")
    block = found[1] + head + own[0] + tail + found[3]
    kept = text[: found.start()] + block + text[found.end() :]
    return DESCRIPTOR.sub(lambda one: one[0] if one[1] == name else "", kept)


def _tail(item: str) -> tuple[str, str]:
    """Split off what follows the last kernel, such as `amdhsa.target:`."""
    found = re.search(r"^\S", item, re.MULTILINE)
    return (item, "") if found is None else (item[: found.start()], item[found.start() :])


def _plain(name: str) -> str:
    return name.strip("'\"")


DONE: Final = 0
CLOSED: Final = 0
OPEN: Final = mmap.PROT_READ | mmap.PROT_WRITE
MOST_THREADS: Final = 1024
APART_BYTES: Final = 1 << 20
"""Distance between tensors: an access outside of one is a fault, and never hits another."""
MOST_BYTES: Final = 4 << 30
"""Most memory of one call, including what it allocates."""
CODES: Final = {getattr(torch, name): code for name, code in DTYPE_CODES.items()}
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint * 6),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
)
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64)
_RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)


_cast = ctypes.cast
"""The original, which a census does not count."""


def _bytes_at(address: int, size: int) -> bytes:
    """Return bytes of memory; `ctypes.string_at` would count as the candidate's reading."""
    return bytes(_cast(address, ctypes.POINTER(ctypes.c_ubyte * size)).contents)


class _Asked(ctypes.Structure):
    """The struct in hip_host.cpp."""

    _fields_ = (
        ("launch", _LAUNCH),
        ("allocate", _ALLOCATE),
        ("release", _RELEASE),
        ("fill", _FILL),
    )


class ClosedBlock:
    """A stretch of the pretended GPU's memory, closed to the host code."""

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self._map = mmap.mmap(-1, self.size + 2 * APART_BYTES)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.bytes = whole[APART_BYTES : APART_BYTES + self.size]
        self.address = self.bytes.data_ptr()

    def protect(self, allowed: int) -> None:
        """Open or close the memory."""
        if ctypes.CDLL(None).mprotect(
            ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), allowed
        ):
            raise KernelError("the memory of the pretended GPU cannot be protected")


class HipLauncher(EmulatedLauncher):
    """One launch of the host code."""

    def __init__(
        self,
        program: HipProgram,
        kernel: DecodedKernel,
        block: tuple[int, int, int],
        shared_bytes: int,
    ) -> None:
        self._driver: Any = program
        self._kernel = functools.cache(lambda: kernel)
        self._kinds = ["raw"] * len(kernel.arguments)
        self._threads, self.sides = math.prod(block), block[:2]
        self._shared = kernel.lds_bytes + shared_bytes
        self._element_bytes = program.element_bytes


class HipProgram:
    """A HIP source whose entry can be called with tensors."""

    wants_forms = True

    def __init__(
        self,
        assembly: str,
        host: bytes,
        entry: str,
        emulator: Path,
        matrix_cycles: Mapping[str, int] | None = None,
    ) -> None:
        self.emulator = Emulator(emulator, matrix_cycles)
        self.told = self
        self.element_bytes = 1
        """Bytes of the smallest output's element, to count the elements that launches store."""
        self._assembly = assembly
        self._kernel = functools.cache(self._decoded)
        self._blocks: dict[int, ClosedBlock] = {}
        self._error: Exception | None = None
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
        self._asked = _Asked(
            _LAUNCH(self._guarded(self._launch)),
            _ALLOCATE(self._guarded(self._allocate)),
            _RELEASE(self._guarded(self._release)),
            _FILL(self._guarded(self._fill)),
        )
        library.ratchet_hip_install(ctypes.byref(self._asked))

    def memories(self) -> list[LaunchMemory]:
        """Return the memory that a launch may touch."""
        return [LaunchMemory(one.address, one.size) for one in self._blocks.values()]

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        """Call the entry with inputs, scalars, forms of the results and which inputs it changes."""
        *inputs, scalars, forms, in_place = given
        outputs = [one.empty() for one in forms[len(in_place) :]]
        self.element_bytes = min([one.dtype.itemsize for one in forms], default=1)
        self._blocks, self._error = {}, None
        held = [
            self._moved(one, copied=at < len(inputs)) for at, one in enumerate(inputs + outputs)
        ]
        try:
            self._call(held, scalars)
        finally:
            for block in self._blocks.values():
                block.protect(OPEN)
        changed = [held[place] for place in in_place]
        results = tuple(one.clone() for one in (*changed, *held[len(inputs) :]))
        self._blocks = {}
        return results

    def _call(self, tensors: Sequence[Tensor], scalars: Sequence[float]) -> None:
        packed = (RatchetTensor * len(tensors))(*map(_packed, tensors))
        values = (ctypes.c_double * len(scalars))(*scalars)
        for block in self._blocks.values():
            block.protect(CLOSED)
        code = self._entry(
            packed, ctypes.c_int64(len(tensors)), values, ctypes.c_int64(len(scalars))
        )
        if self._error is not None:
            raise self._error
        if code != DONE:
            raise DeclinedCase(int(code))

    def _moved(self, tensor: Tensor, *, copied: bool) -> Tensor:
        """Return a tensor on the pretended GPU, with these strides, and the values if `copied`."""
        spread = zip(tensor.shape, tensor.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in spread) if tensor.numel() else 0
        block = self._block(span * tensor.element_size())
        if not tensor.numel():
            return tensor
        flat = block.bytes[: span * tensor.element_size()].view(tensor.dtype)
        if copied:
            flat.copy_(tensor.as_strided((span,), (1,)))  # elements may share memory
        return flat.as_strided(tensor.shape, tensor.stride())

    def _block(self, size: int) -> ClosedBlock:
        if size + sum(one.size for one in self._blocks.values()) > MOST_BYTES:
            raise KernelError(f"a call with more than {MOST_BYTES >> 30} GiB is not emulated")
        block = ClosedBlock(size)
        block.bytes.fill_(255)  # what nobody wrote is NaN, or -1
        self._blocks[block.address] = block
        return block

    def _decoded(self, name: str) -> DecodedKernel:
        return replace(decode(one_kernel(self._assembly, name)), name=plain_name(name))

    # What the host code asks for. An error is kept: it cannot pass through compiled code.

    def _guarded(self, function: Callable[..., int]) -> Callable[..., int]:
        def ask(*given: Any) -> int:
            if self._error is not None:
                return 0 if function == self._allocate else 1
            try:
                return function(*given)
            except Exception as error:  # the boundary to compiled code: raised after the call
                self._error = error
                return 0 if function == self._allocate else 1

        return ask

    def _launch(self, name: bytes, sizes: Any, arguments: Any, shared_bytes: int) -> int:
        *grid, wide, high, deep = sizes.contents
        if not 1 <= wide * high * deep <= MOST_THREADS:
            raise KernelError(f"a block of {wide} x {high} x {deep} threads cannot be launched")
        kernel = self._kernel(name.decode(errors="replace"))
        own = [one for one in kernel.arguments if not one.kind.startswith("hidden_")]
        values = [_bytes_at(arguments[at], one.size) for at, one in enumerate(own)]
        for block in self._blocks.values():
            block.protect(OPEN)
        try:
            launch = HipLauncher(self, kernel, (wide, high, deep), shared_bytes)
            launch(*grid, *[None] * 6, *values)
        finally:
            for block in self._blocks.values():
                block.protect(CLOSED)
        return 0

    def _allocate(self, size: int) -> int:
        block = self._block(size)
        block.protect(CLOSED)
        return block.address

    def _release(self, place: int | None) -> int:
        if place is not None and place not in self._blocks:
            raise KernelError("the host code frees memory that hipMalloc did not give it")
        return 0  # it goes with the call: a launch is over when the next one begins

    def _fill(self, place: int, value: int, size: int) -> int:
        block = next(
            (one for at, one in self._blocks.items() if at <= (place or 0) < at + one.size), None
        )
        if block is None or place + size > block.address + block.size:
            raise KernelError("hipMemset writes outside of the call's memory")
        block.protect(OPEN)
        begin = place - block.address
        block.bytes[begin : begin + size].fill_(value & 255)
        block.protect(CLOSED)
        return 0


def plain_name(mangled: str) -> str:
    """Return a function's name in its source, if the mangled one tells it: `_Z4rowsPKf`."""
    found = re.match(r"_ZN?L?(\d+)", mangled)
    if found is None:
        return mangled
    name = mangled[found.end() : found.end() + int(found[1])]
    return name if len(name) == int(found[1]) else mangled


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
    library: str | None = None,
    matrix_cycles: Mapping[str, int] | None = None,
) -> HipProgram:
    """Return the entry of a compiled HIP source; `library` is the compiled emulator."""
    emulator = Path(library or os.environ[EMULATOR])
    return HipProgram(assembly, base64.b64decode(host), entry, emulator, matrix_cycles)
