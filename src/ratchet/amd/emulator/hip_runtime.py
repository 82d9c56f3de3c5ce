"""HIP's runtime for compiled host code in the sandbox: its launches are emulated.

The memory of the pretended GPU can neither be read nor written by host code, as on a real one.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import mmap
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.emulator.clock import LaunchClock
from ratchet.amd.emulator.decode import DecodedKernel, decode
from ratchet.amd.emulator.hip_products import Product
from ratchet.amd.emulator.launch import INSTRUCTION_LIMIT, Emulator, LaunchMemory
from ratchet.amd.emulator.linking import KernelTexts, PlacedVariables, linked, plain_name
from ratchet.amd.emulator.loading import EmulatedLaunch, EmulatedLauncher
from ratchet.base.errors import KernelError

CLOSED: Final = 0
OPEN: Final = mmap.PROT_READ | mmap.PROT_WRITE
APART_BYTES: Final = 1 << 20
"""Distance between tensors: an access outside of one is a fault, and never hits another."""
MOST_BYTES: Final = 4 << 30  # most memory at a time, including what the host code allocates
_mprotect: Final = ctypes.CDLL(None).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class GpuBlock:
    """A stretch of the memory."""

    def __init__(self, size: int, *, open_to_host: bool = False, lasts: bool = False) -> None:
        """`lasts`: `forget` keeps it."""
        self.size = max(1, size)
        self.lasts = lasts
        self.open_to_host = open_to_host
        whole = torch.frombuffer(mmap.mmap(-1, self.size + 2 * APART_BYTES), dtype=torch.uint8)
        self._storage: Any = StorageWeakRef(whole.untyped_storage())  # type: ignore[no-untyped-call]
        self._held: Tensor | None = whole[APART_BYTES : APART_BYTES + self.size]
        self.address = self._held.data_ptr()
        if not open_to_host:  # an operating system gives a process zeros
            self._held.fill_(255)  # what nobody wrote is NaN, or -1

    @property
    def bytes(self) -> Tensor:
        """The block's bytes, unless only its tensors hold it."""
        assert self._held is not None
        return self._held

    @property
    def is_gone(self) -> bool:
        """True if no tensor lies here any more."""
        return self._held is None and bool(self._storage.expired())

    def leave_to_tensors(self) -> None:
        """Keep the block only as long as a tensor lies in it."""
        self._held = None

    def holds(self, place: int, size: int = 1) -> bool:
        """Return whether a stretch lies inside."""
        return self.address <= place and place + size <= self.address + self.size

    def protect(self, allowed: int) -> None:
        """Open or close the memory."""
        if self.is_gone:
            return
        if (
            _mprotect(self.address, self.size, allowed) and not self.is_gone
        ):  # the last tensor may have been collected on the way
            raise KernelError("the memory of the pretended GPU cannot be protected")


class GpuMemory:
    """All blocks, closed while host code runs."""

    def __init__(self) -> None:
        self._blocks: dict[int, GpuBlock] = {}
        self._starts: list[int] = []  # their addresses in order; empty after a change
        self._allowed = OPEN

    def block(self, size: int, *, open_to_host: bool = False, lasts: bool = False) -> GpuBlock:
        """Return a new block, closed if the memory is."""
        self._keep(lambda one: not one.is_gone)
        if size + sum(one.size for one in self._blocks.values()) > MOST_BYTES:
            raise KernelError(f"a call with more than {MOST_BYTES >> 30} GiB is not emulated")
        made = GpuBlock(size, open_to_host=open_to_host, lasts=lasts)
        if not open_to_host:
            made.protect(self._allowed)
        self._blocks[made.address] = made
        return made

    def _keep(self, is_kept: Callable[[GpuBlock], bool]) -> None:
        self._blocks = {at: one for at, one in self._blocks.items() if is_kept(one)}
        self._starts = []

    def forget(self) -> None:
        """Drop the blocks of a call."""
        self._keep(lambda one: one.lasts)

    def release(self, place: int) -> bool:
        """Drop the block that begins here; False if there is none."""
        self._starts = []
        return self._blocks.pop(place, None) is not None

    def find(self, place: int, size: int = 1) -> GpuBlock | None:
        """Return the block around a stretch of memory."""
        self._starts = self._starts or sorted(self._blocks)
        at = bisect.bisect_right(self._starts, place) - 1
        one = self._blocks[self._starts[at]] if at >= 0 else None
        return one if one is not None and one.holds(place, size) and not one.is_gone else None

    def memories(self) -> list[LaunchMemory]:
        return [
            LaunchMemory(one.address, one.size) for one in self._blocks.values() if not one.is_gone
        ]

    def closed(self) -> AbstractContextManager[None]:
        return self._set(CLOSED)

    def opened(self) -> AbstractContextManager[None]:
        """Open the memory inside, for a launch or a copy."""
        return self._set(OPEN)

    @contextlib.contextmanager
    def opened_at(self, *places: int | None) -> Iterator[None]:
        """Open the blocks around some places inside, for a copy: there may be many others."""
        found = [] if self._allowed == OPEN else [self.find(place or 0) for place in places]
        closed = [one for one in found if one is not None and not one.open_to_host]
        for one in closed:
            one.protect(OPEN)
        try:
            yield
        finally:
            for one in closed:
                one.protect(CLOSED)

    @contextlib.contextmanager
    def _set(self, allowed: int) -> Iterator[None]:
        before = self._allowed
        self.protect(allowed)
        try:
            yield
        finally:
            self.protect(before)

    def protect(self, allowed: int) -> None:
        """Open or close all of it, but what is open to the host."""
        if allowed == self._allowed:
            return
        self._allowed = allowed
        for one in self._blocks.values():
            if not one.open_to_host:
                one.protect(allowed)


# Text that kernels print: notes in a buffer of the GPU's memory, formatted after each launch.

VARIABLE: Final = "_ZL12ratchet_said"  # the buffer in ratchet_printf.h
SPECIFICATION: Final = re.compile(
    r"%([-+ #0]*)(\*|\d+)?(\.(?:\*|\d+))?(hh|h|ll|l|L|q|j|z|t)?([diouxXeEfFgGaAcsp%])"
)
WIDE: Final = ("l", "ll", "q", "j", "z", "t")  # lengths of 64 bits
SIGNED, UNSIGNED, FLOAT, POINTER, TEXT = range(5)


def notes(words: Sequence[int]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the format's address, and the kind and 64 bits of each value, of each note."""
    at, end = 1, min(words[0] + 1, len(words))
    while at + 3 <= end:
        count, format_at = words[at], words[at + 1] | words[at + 2] << 32
        at += 3
        if at + 3 * count > end:
            return
        found = words[at : at + 3 * count]
        yield (
            format_at,
            [(found[i], found[i + 1] | found[i + 2] << 32) for i in range(0, len(found), 3)],
        )
        at += 3 * count


def formatted(text: str, values: Sequence[tuple[int, int]], text_at: Callable[[int], str]) -> str:
    """Return a note as C's printf writes it; `text_at` reads a text of the GPU's memory."""
    left = iter(values)

    def value(conversion: str) -> object:
        kind, bits = next(left, (SIGNED, 0))
        if conversion == "s":
            return text_at(bits) if kind == TEXT else ""
        if conversion in "eEfFgGaA":
            whole = bits - (bits >> 63 << 64) if kind == SIGNED else bits
            return (
                struct.unpack("<d", struct.pack("<Q", bits))[0] if kind == FLOAT else float(whole)
            )
        if kind == FLOAT:
            return int(struct.unpack("<d", struct.pack("<Q", bits))[0])
        return bits - (bits >> 63 << 64) if kind == SIGNED and conversion in "dic" else bits

    def written(found: re.Match[str]) -> str:
        flags, width, precision, length, conversion = found.groups()
        if conversion == "%":
            return "%"
        size = str(value("d")) if width == "*" else width or ""
        exact = f".{value('d')}" if precision == ".*" else precision or ""
        given = value(conversion)
        if conversion in "aA":
            return float.hex(float(str(given)))
        if conversion == "p":
            return f"{given:#x}"
        if conversion == "c":
            return chr(int(str(given)) & 255)
        if conversion in "uoxX" and isinstance(given, int):
            given &= (1 << (64 if length in WIDE else 32)) - 1
        return f"%{flags}{size}{exact}{conversion}" % given

    return SPECIFICATION.sub(written, text)


MOST_THREADS: Final = 1024
MOST_PRINTED: Final = 4096  # most bytes of a text that a kernel prints
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
_COPY = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
)
_SYMBOL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))
_FACT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
_EXIT = ctypes.CFUNCTYPE(None, ctypes.c_int)
_PRODUCT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Product))
TO_HOST, FROM_HOST, ON_HOST = 2, 1, 0  # values of hipMemcpyKind
WIDEST: Final = 64  # bytes of the widest scalar load
LAUNCH_FAILURE: Final = 719  # of hipError_t

_cast = ctypes.cast
move = ctypes.memmove  # the originals, which a census does not count


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
        ("copy", _COPY),
        ("symbol", _SYMBOL),
        ("allocate_open", _ALLOCATE),
        ("fact", _FACT),
        ("target", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("open", _OPEN),
        ("exit", _EXIT),
        ("product", _PRODUCT),
    )


class HipRuntime:
    """Everything that one compiled source asks of HIP."""

    def __init__(
        self,
        assemblies: Sequence[str],
        emulator: Emulator,
        memory: GpuMemory,
        device: PretendedDevice,
    ) -> None:
        self.emulator, self.clock = emulator, LaunchClock(emulator)
        self.told = self.memory = memory  # a launch may touch all of it
        self.element_bytes = 1
        """Bytes of the smallest output's element, to count the elements that launches store."""
        self.file = ""  # the source of which a fault shows the line
        self.limit = INSTRUCTION_LIMIT
        self.error: Exception | None = None
        """The first error of a call; it cannot pass through compiled code."""
        self._device = device
        self._library: Any = None
        self._assemblies = assemblies
        self._texts = [KernelTexts(one) for one in assemblies]
        self._variables: dict[int, PlacedVariables] = {}  # by the number of the assembly
        self._kernel = functools.cache(self._decoded)
        self._asked = _Asked(
            _LAUNCH(self._guarded(self._launch, LAUNCH_FAILURE)),
            _ALLOCATE(self._guarded(lambda size: memory.block(size).address, 0)),
            _RELEASE(self._guarded(self._release, 1)),
            _FILL(self._guarded(self._fill, 1)),
            _COPY(self._guarded(self._copy, 1)),
            _SYMBOL(self._guarded(self._symbol, 0)),
            _ALLOCATE(self._guarded(lambda size: memory.block(size, open_to_host=True).address, 0)),
            _FACT(self._guarded(self._fact, 0)),
            device.architecture.name.encode(),
            device.name.encode(),
            _OPEN(self._guarded(self._open, 1)),
            _EXIT(self.exit) if self.exit is not None else _EXIT(),
            _PRODUCT(self._guarded(self._product, 1)),
        )

    exit: Callable[[int], None] | None = None
    """Takes the place of C's exit; None if there is none."""

    def launched(self, launch: EmulatedLaunch) -> None:
        """Take a launch that was executed."""

    def _open(self, allowed: int) -> int:
        self.memory.protect(OPEN if allowed else CLOSED)
        return 0

    def install(self, library: ctypes.CDLL) -> None:
        library.ratchet_hip_install(ctypes.byref(self._asked))
        library.ratchet_hip_complaint.restype = ctypes.c_char_p
        self._library = library

    @contextlib.contextmanager
    def called(self) -> Iterator[None]:
        """Serve the host code's call inside, and raise the first error that it caused."""
        self._library.ratchet_hip_begin()
        try:
            yield
        except Exception:  # whatever the host code raises
            self._raise_error()  # it is the reason, and what the host code raised follows from it
            raise
        self._raise_error()

    def _raise_error(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        if complaint := self._library.ratchet_hip_complaint():
            raise KernelError(complaint.decode())

    def _decoded(self, name: str) -> DecodedKernel:
        for part, text in enumerate(self._texts):
            if name in text.names:
                own = linked(text.of(name), self._placed(part))
                return replace(decode(own), name=plain_name(name))
        raise KernelError(f"no kernel is called {name!r:.80}")

    def _placed(self, part: int) -> PlacedVariables:
        """Return one assembly's variables, in the GPU's memory from the first time on."""
        if part not in self._variables:
            self._variables[part] = PlacedVariables(self._assemblies[part], self._written)
        return self._variables[part]

    def _written(self, data: bytes) -> int:
        # LLVM reads a constant of 28 bytes as 32, since they lie in one aligned stretch
        block = self.memory.block(-(-len(data) // WIDEST) * WIDEST, lasts=True)
        with self.memory.opened():
            move(block.address, data, len(data))
        return block.address

    # What the host code asks for. An error is kept: it cannot pass through compiled code.

    def _guarded(self, function: Callable[..., int], failed: int) -> Callable[..., int]:
        def ask(*given: object) -> int:
            if self.error is not None:
                return failed
            try:
                return function(*given)
            except Exception as error:  # the boundary to compiled code: raised after the call
                self.error = error
                return failed

        return ask

    def _launch(self, name: bytes, sizes: Any, arguments: Any, shared_bytes: int) -> int:
        *grid, wide, high, deep = sizes.contents
        if not 1 <= wide * high * deep <= MOST_THREADS:
            raise KernelError(f"a block of {wide} x {high} x {deep} threads cannot be launched")
        kernel = self._kernel(name.decode(errors="replace"))
        own = [one for one in kernel.arguments if not one.kind.startswith("hidden_")]
        values = [_bytes_at(arguments[at], one.size) for at, one in enumerate(own)]
        with self.memory.opened():
            launcher = EmulatedLauncher(
                driver=self,
                kernel=lambda: kernel,
                kinds=["raw"] * len(kernel.arguments),
                threads=wide * high * deep,
                shared_bytes=kernel.lds_bytes + shared_bytes,
                element_bytes=self.element_bytes,
                sides=(wide, high),
                file=self.file,
                limit=self.limit,
                clock=self.clock,
            )
            try:
                self.launched(launcher.run(*grid, *[None] * 6, *values))
            finally:
                self._print()
        return 0

    def _print(self) -> None:
        """Print what kernels said since the last launch."""
        for placed in self._variables.values():
            at = placed.addresses.get(VARIABLE)
            if at is None or not (count := int.from_bytes(_bytes_at(at, 4), "little")):
                continue
            size = min(4 * (count + 1), len(placed.begin_with[VARIABLE]))
            words = struct.unpack(f"<{size // 4}I", _bytes_at(at, size))
            ctypes.memset(at, 0, 4)
            for format_at, given in notes(words):
                sys.stdout.write(formatted(self._text_at(format_at), given, self._text_at))
            sys.stdout.flush()

    def _text_at(self, address: int) -> str:
        block = self.memory.find(address)
        if block is None:
            return ""
        found = _bytes_at(address, min(MOST_PRINTED, block.address + block.size - address))
        return found.partition(b"\0")[0].decode(errors="replace")

    def _release(self, place: int | None) -> int:
        if place is not None and not self.memory.release(place):
            raise KernelError("the host code frees memory that hipMalloc did not give it")
        return 0

    def _fill(self, place: int | None, value: int, size: int) -> int:
        if size and self.memory.find(place or 0, size) is None:
            raise KernelError("hipMemset writes outside of the call's memory")
        with self.memory.opened_at(place):
            ctypes.memset(place or 0, value & 255, size)
        return 0

    def _copy(self, to: int | None, of: int | None, size: int, kind: int) -> int:
        sides = {FROM_HOST: ((to, "writes"),), TO_HOST: ((of, "reads"),), ON_HOST: ()}
        for place, word in sides.get(kind, ()):
            if size and self.memory.find(place or 0, size) is None:
                raise KernelError(f"hipMemcpy {word} outside of the GPU's memory")
        if size and not (to and of):
            raise KernelError("hipMemcpy gets a null pointer")
        with self.memory.opened_at(to, of):
            move(to or 0, of or 0, size)
        return 0

    def _product(self, asked: Any) -> int:
        """Answer a product of hipBLAS, in whole programs alone."""
        raise KernelError(
            "its host code calls hipBLAS, which is not here: write the product as a kernel"
        )

    def _symbol(self, name: bytes, size: Any) -> int:
        word = name.decode(errors="replace")
        for part in range(len(self._assemblies)):
            placed = self._placed(part)
            if word in placed.addresses:
                size.contents.value = len(placed.begin_with[word])
                return placed.addresses[word]
        raise KernelError(f"the GPU's code has no variable {word:.80}")

    def _fact(self, name: bytes) -> int:
        one = self._device.architecture
        digits = one.name.removeprefix("gfx")
        known = {
            b"lanes": one.wavefront_size,
            b"lds": one.lds_bytes_per_workgroup,
            b"compute_units": self._device.units,
            b"memory_mib": self._device.memory_bytes >> 20,
            b"major": int(digits[:-2]),
            b"minor": int(digits[-2], 16),
        }
        return known[name]
