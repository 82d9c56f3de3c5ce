"""torch extensions in the sandbox: their host code runs here, and their launches are emulated.

While a function of an extension runs, its tensors lie in memory that only kernels reach. An
operation of torch opens it, since on a GPU it would be a kernel too.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ratchet.base.errors import KernelError
from ratchet.judge.emulator.extension_build import (
    BuiltExtension,
    ExtensionSource,
    build_extension,
    check_module,
    module_name,
)
from ratchet.judge.emulator.gpu_memory import APART_BYTES, GpuBlock, GpuMemory
from ratchet.judge.emulator.hip_runtime import HipRuntime, move
from ratchet.judge.emulator.loading import EMULATOR, load_emulated

FILLED: Final = re.compile(r"^(new_)?empty")
HOST_ONLY: Final = "no CUDA or HIP source is among"


_compare = ctypes.CDLL(None).memcmp


class _OnGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets torch's operations reach the memory, and keeps their results there."""

    def __init__(self, memory: GpuMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with self._memory.opened():
            result = func(*args, **(kwargs or {}))
            unwritten = FILLED.match(func._schema.name.partition("::")[2]) is not None
            return tree_map_only(Tensor, lambda one: self._kept(one, unwritten), result)

    def _kept(self, tensor: Tensor, unwritten: bool) -> Tensor:
        if tensor.device.type != "cpu" or not tensor.untyped_storage().nbytes():
            return tensor
        if self._memory.find(tensor.data_ptr()) is not None:
            return tensor
        return moved(tensor, self._memory, copied=not unwritten)[0]


def moved(tensor: Tensor, memory: GpuMemory, *, copied: bool) -> tuple[Tensor, GpuBlock]:
    """Return a tensor of the same form on the GPU, and the block that holds its whole storage."""
    storage = tensor.untyped_storage()
    block = memory.block(storage.nbytes())
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

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Tensor, self._to_gpu, (args, kwargs))
        runtime = self._extension.runtime
        try:
            with _OnGpu(self._memory), self._memory.closed():
                result = function(*args, **kwargs)
        except Exception:
            runtime.raise_error()  # it is the reason, and what the host code raised follows from it
            raise
        runtime.raise_error()
        for before, _, block in self._moved.values():
            storage = before.untyped_storage()
            here, size = storage.data_ptr(), storage.nbytes()
            if _compare(
                ctypes.c_void_p(here), ctypes.c_void_p(block.address), ctypes.c_size_t(size)
            ):
                move(here, block.address, size)
        return tree_map_only(Tensor, self._from_gpu, result)

    def _to_gpu(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if tensor.device.type != "cpu" or not tensor.untyped_storage().nbytes():
            return tensor
        if self._memory.find(tensor.data_ptr()) is not None:
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
        built: BuiltExtension,
        emulator: Path,
        memory: GpuMemory,
        matrix_cycles: Mapping[str, int] | None,
    ) -> None:
        self.memory = memory
        self.runtime = HipRuntime([built.assembly], emulator, memory, matrix_cycles)
        library = ctypes.CDLL(str(built.library))
        self.runtime.install(library)
        self.module: ModuleType | None = None
        if hasattr(library, f"PyInit_{built.name}"):
            loader = importlib.machinery.ExtensionFileLoader(built.name, str(built.library))
            spec = importlib.util.spec_from_loader(built.name, loader)
            assert spec is not None
            self.module = importlib.util.module_from_spec(spec)
            loader.exec_module(self.module)

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose tensors lie on the GPU while it runs."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return _Call(self).run(function, args, kwargs)

        call.__name__ = getattr(function, "__name__", "call")
        return call

    def functions(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield what the extension offers to Python, by name."""
        for name in dir(self.module) if self.module is not None else ():
            found = getattr(self.module, name)
            if callable(found) and not isinstance(found, type) and not name.startswith("__"):
                yield name, self.guarded(found)


class EmulatedExtensions:
    """Builds and loads extensions for one target, also where a source asks torch to."""

    def __init__(
        self,
        target: str,
        library: Path,
        matrix_cycles: Mapping[str, int] | None = None,
        headers: str | None = None,
    ) -> None:
        """`library` is the compiled emulator, `headers` a folder of `torch_headers`."""
        self._headers = headers
        self._target, self._library = target, library
        self._matrix_cycles = matrix_cycles
        self._memory = GpuMemory()
        self._made: dict[str, ModuleType] = {}

    def load(
        self,
        name: str,
        sources: Sequence[ExtensionSource],
        *,
        functions: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        headers: Sequence[ExtensionSource] = (),
    ) -> ModuleType:
        """Return the extension as a module; raises KernelError with the compiler's first error."""
        if not functions:
            check_module(sources)
        word = module_name([*sources, *headers], name)
        if word in self._made:
            return self._made[word]
        built = build_extension(
            word,
            sources,
            self._target,
            functions=functions,
            options=options,
            headers=headers,
            precompiled=self._headers,
        )
        before = set(torch._C._dispatch_get_all_op_names())
        loaded = LoadedExtension(built, self._library, self._memory, self._matrix_cycles)
        module = ModuleType(name)
        for key, function in loaded.functions():
            setattr(module, key, function)
        for one in sorted(set(torch._C._dispatch_get_all_op_names()) - before):
            space, _, key = one.partition(".")[0].partition("::")
            packet = getattr(getattr(torch.ops, space), key)
            guarded = loaded.guarded(packet)
            setattr(getattr(torch.ops, space), key, guarded)
            setattr(module, key, guarded)
        self._made[word] = sys.modules[name] = module
        return module

    def install(self) -> None:
        """Let torch's functions that build extensions come here, in this whole process."""
        from torch.utils import cpp_extension

        cpp_extension.load_inline = self._load_inline  # type: ignore[assignment]
        cpp_extension.load = self._load  # type: ignore[assignment]

    def _load_inline(
        self,
        name: str,
        cpp_sources: Any,
        cuda_sources: Any = None,
        functions: Any = None,
        extra_cflags: Any = None,
        extra_cuda_cflags: Any = None,
        *_: Any,
        **__: Any,
    ) -> ModuleType:
        texts = [(f"{name}.cpp", one) for one in _listed(cpp_sources)]
        texts += [(f"{name}.cu", one) for one in _listed(cuda_sources)]
        sources = [
            ExtensionSource(f"{index}/{called}" if index else called, text)
            for index, (called, text) in enumerate(texts)
        ]
        bound = (
            functions if isinstance(functions, dict) else {one: one for one in _listed(functions)}
        )
        options = _macros([*_listed(extra_cflags), *_listed(extra_cuda_cflags)])
        return self.load(name, sources, functions=bound, options=options)

    def _load(
        self,
        name: str,
        sources: Any,
        extra_cflags: Any = None,
        extra_cuda_cflags: Any = None,
        extra_ldflags: Any = None,
        extra_include_paths: Any = None,
        *_: Any,
        **__: Any,
    ) -> ModuleType:
        paths = [Path(one) for one in _listed(sources)]
        folders = [*map(Path, _listed(extra_include_paths)), *(one.parent for one in paths)]
        options = _macros([*_listed(extra_cflags), *_listed(extra_cuda_cflags)])
        options += [f"-I{folder}" for folder in dict.fromkeys(folders)]
        texts = [ExtensionSource(one.name, one.read_text()) for one in paths]
        return self.load(name, texts, options=options)


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return [str(given)] if isinstance(given, (str, Path)) else [str(one) for one in given]


def _macros(options: Sequence[str]) -> list[str]:
    """Return the options that clang shares with nvcc and gcc: macros and folders."""
    return [one for one in options if one.startswith(("-D", "-U", "-I"))]


def load_extension(
    source: str,
    entry: str,
    target: str,
    name: str = "kernel.cu",
    matrix_cycles: Mapping[str, int] | None = None,
    headers: str | None = None,
) -> Callable[..., Any]:
    """Return an extension's function as f(*tensors, scalars), from its one source file."""
    extensions = EmulatedExtensions(target, Path(os.environ[EMULATOR]), matrix_cycles, headers)
    module = extensions.load("extension", [ExtensionSource(name, source)])
    function = getattr(module, entry, None)
    if function is None:
        offered = ", ".join(one for one in vars(module) if not one.startswith("_"))
        raise KernelError(f"the extension binds no function {entry!r}: it binds {offered:.200}")

    def call(*given: Any) -> Any:
        *tensors, scalars = given
        found = function(*tensors, *scalars)
        return (found,) if isinstance(found, Tensor) else tuple(found or ())

    return call


def load_with_extensions(
    source: str,
    entry: str,
    target: str,
    matrix_cycles: Mapping[str, int] | None = None,
    headers: str | None = None,
) -> Callable[..., Any]:
    """Return the entry of a Python source that may build extensions and launch Triton kernels."""
    emulator = Path(os.environ[EMULATOR])
    EmulatedExtensions(target, emulator, matrix_cycles, headers).install()
    return load_emulated(source, entry, target, matrix_cycles=matrix_cycles)
