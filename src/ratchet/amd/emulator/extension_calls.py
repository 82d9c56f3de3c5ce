"""A built extension in the sandbox: its functions' tensors lie in memory that only kernels reach.

An operation of torch opens that memory while it runs, since on a GPU it would be a kernel too.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, _tensor_str
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.emulator.extension_build import PROGRAM
from ratchet.amd.emulator.gpu_memory import APART_BYTES, GpuBlock, GpuMemory
from ratchet.amd.emulator.hip_runtime import HipRuntime, move
from ratchet.amd.emulator.launch import Emulator
from ratchet.amd.emulator.linking import plain_name
from ratchet.base.errors import KernelError

DYNAMO: Final = "torch._dynamo"
FILLED: Final = re.compile(r"^(new_)?empty")
_str: Final[Callable[..., str]] = _tensor_str._str
_compare: Final = ctypes.CDLL(None).memcmp


class _OnGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets torch's operations reach the memory, and keeps their results there."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import dynamo for it, for 0.9 s. `guarded` does without."""
        return False

    def __init__(self, memory: GpuMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named, name = dict(kwargs or {}), func._schema.name.partition("::")[2]
        to_host = bool(named.pop("pin_memory", False)) or "pin_memory" in name
        if name == "is_pinned":
            return False
        with self._memory.opened():
            result = args[0].clone() if "pin_memory" in name else func(*args, **named)
            unwritten = FILLED.match(name) is not None
            return tree_map_only(Tensor, lambda one: self._kept(one, unwritten, to_host), result)

    def _kept(self, tensor: Tensor, unwritten: bool, to_host: bool) -> Tensor:
        if not is_outside(tensor, self._memory):
            return tensor
        return moved(tensor, self._memory, copied=not unwritten, open_to_host=to_host)[0]


def is_outside(tensor: Tensor, memory: GpuMemory) -> bool:
    """Return whether a tensor has bytes of this process that are not the GPU's."""
    is_here = tensor.device.type == "cpu" and bool(tensor.untyped_storage().nbytes())
    return is_here and memory.find(tensor.data_ptr()) is None


def moved(
    tensor: Tensor, memory: GpuMemory, *, copied: bool, open_to_host: bool = False
) -> tuple[Tensor, GpuBlock]:
    """Return a tensor of the same form on the GPU, and the block that holds its whole storage."""
    storage = tensor.untyped_storage()
    block = memory.block(storage.nbytes(), open_to_host=open_to_host)
    if copied:
        with memory.opened():
            move(block.address, storage.data_ptr(), storage.nbytes())
    made = placed_at(tensor, block.bytes, APART_BYTES)
    block.leave_to_tensors()
    return made, block


def placed_at(tensor: Tensor, memory: Tensor, first: int) -> Tensor:
    """Return a tensor of the same form in another storage, moved on by `first` bytes."""
    offset = first // tensor.element_size() + tensor.storage_offset()
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())


class _Call:
    """One call of an extension's function."""

    def __init__(self, extension: LoadedExtension) -> None:
        self._extension = extension
        self._memory = extension.memory
        self._moved: dict[int, tuple[Tensor, Tensor, GpuBlock]] = {}
        """By the address of a storage: a tensor in it, the one on the GPU, and its block."""

    def run(
        self, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        args, kwargs = tree_map_only(Tensor, self._to_gpu, (args, kwargs))
        with (
            self._extension.runtime.called(),
            _OnGpu(self._memory),
            self._memory.closed(),
            mock.patch.object(_tensor_str, "_str", self._shown),
        ):
            result = function(*args, **kwargs)
        for before, _, block in self._moved.values():
            storage = before.untyped_storage()
            here, size = storage.data_ptr(), storage.nbytes()
            if _compare(
                ctypes.c_void_p(here), ctypes.c_void_p(block.address), ctypes.c_size_t(size)
            ):
                move(here, block.address, size)
        return tree_map_only(Tensor, self._from_gpu, result)

    def _shown(self, *args: Any, **kwargs: Any) -> str:
        """Return a tensor as text: torch takes away every mode for it, and pybind11 shows tensors
        in the error about a call with other arguments."""
        with self._memory.opened():
            return str(_str(*args, **kwargs))

    def _to_gpu(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if not is_outside(tensor, self._memory):
            return tensor
        at = tensor.untyped_storage().data_ptr()
        if at not in self._moved:
            self._moved[at] = (tensor, *moved(tensor, self._memory, copied=True))
        return placed_at(tensor, self._moved[at][1], APART_BYTES)

    def _from_gpu(self, tensor: Tensor) -> Tensor:
        at = tensor.untyped_storage().data_ptr()
        for before, after, _ in self._moved.values():
            if after.untyped_storage().data_ptr() == at:
                return placed_at(tensor, before, -APART_BYTES)
        return tensor


class LoadedExtension:
    """A built extension in this process."""

    def __init__(
        self,
        name: str,
        built: Path,
        emulator: Emulator,
        memory: GpuMemory,
        device: PretendedDevice,
    ) -> None:
        """`built` is the folder of its program: the assemblies, `0.s` and on, and its library."""
        self.memory = memory
        count = len(list(built.glob("*.s")))
        assemblies = [(built / f"{at}.s").read_text() for at in range(count)]
        self.runtime = HipRuntime(assemblies, emulator, memory, device)
        path = str(built / PROGRAM)
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            found = re.search(r"undefined symbol: (\S+)", str(error))
            missing = found[1] if found else str(error)
            raise KernelError(
                f"the extension calls {plain_name(missing)!r:.80}, which is not here: only torch, "
                "HIP's runtime and what its own sources define"
            ) from error
        self.runtime.install(library)
        self.module: ModuleType | None = None
        if hasattr(library, f"PyInit_{name}"):
            loader = importlib.machinery.ExtensionFileLoader(name, path)
            spec = importlib.util.spec_from_loader(name, loader)
            assert spec is not None
            self.module = importlib.util.module_from_spec(spec)
            loader.exec_module(self.module)

    def guarded(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return a function whose tensors lie on the GPU while it runs."""

        def call(*args: object, **kwargs: object) -> object:
            run = _Call(self).run
            if DYNAMO in sys.modules:  # a kernel that compiles must not compile the mode
                run = torch._dynamo.disable(run)  # type: ignore[no-untyped-call]
            with torch._C.DisableTorchFunction():  # a mode may say that tensors are on `cuda`
                return run(function, args, kwargs)

        call.__name__ = getattr(function, "__name__", "call")
        return call

    def functions(self) -> Iterator[tuple[str, Callable[..., object]]]:
        """Yield what the extension offers to Python, by name."""
        for name in dir(self.module) if self.module is not None else ():
            found = getattr(self.module, name)
            if callable(found) and not isinstance(found, type) and not name.startswith("__"):
                yield name, self.guarded(found)


class ExtensionOperator:
    """An operator of an extension in `torch.ops`, whose tensors lie on the GPU while it runs."""

    def __init__(self, loaded: LoadedExtension, operator: Any) -> None:
        self._loaded, self._operator = loaded, operator

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the operator's code for this device, if it has such.

        Dispatched by torch, it would be one operation to the mode that opens the memory. Code for
        all devices is not: torch calls it before any mode.
        """
        overload = self._operator
        if not isinstance(overload, torch._ops.OpOverload):
            names = overload.overloads()
            overload = getattr(overload, "default" if "default" in names else names[0])
        code = overload
        if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CPU"):
            code = functools.partial(overload._op_dk, torch._C.DispatchKey.CPU)
        return self._loaded.guarded(code)(*args, **kwargs)

    def __getattr__(self, name: str) -> object:
        """Return what the operator has; its overloads are operators too."""
        found = getattr(self._operator, name)
        overload = isinstance(found, torch._ops.OpOverload)
        return ExtensionOperator(self._loaded, found) if overload else found
