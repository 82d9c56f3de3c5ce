"""torch extensions in the sandbox: their host code runs here, and their launches are emulated.

While a function of an extension runs, its tensors lie in memory that only kernels reach. An
operation of torch opens it, since on a GPU it would be a kernel too.
"""

from __future__ import annotations

import ctypes
import functools
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
from ratchet.judge.emulator.kernel_text import plain_name
from ratchet.judge.emulator.loading import EMULATOR, load_emulated, told_device
from ratchet.judge.workers.candidate.torch_cuda import PretendedDevice
from ratchet.kernels.carried_files import CarriedFiles, split_files

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
        named, name = dict(kwargs or {}), func._schema.name.partition("::")[2]
        to_host = bool(named.pop("pin_memory", False)) or "pin_memory" in name
        if name == "is_pinned":
            return False
        with self._memory.opened():
            result = args[0].clone() if "pin_memory" in name else func(*args, **named)
            unwritten = FILLED.match(name) is not None
            return tree_map_only(Tensor, lambda one: self._kept(one, unwritten, to_host), result)

    def _kept(self, tensor: Tensor, unwritten: bool, to_host: bool) -> Tensor:
        if tensor.device.type != "cpu" or not tensor.untyped_storage().nbytes():
            return tensor
        if self._memory.find(tensor.data_ptr()) is not None:
            return tensor
        return moved(tensor, self._memory, copied=not unwritten, open_to_host=to_host)[0]


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

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Tensor, self._to_gpu, (args, kwargs))
        with self._extension.runtime.called(), _OnGpu(self._memory), self._memory.closed():
            result = function(*args, **kwargs)
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
        device: PretendedDevice,
    ) -> None:
        self.memory = memory
        self.runtime = HipRuntime(built.assemblies, emulator, memory, device, matrix_cycles)
        try:
            library = ctypes.CDLL(str(built.library))
        except OSError as error:
            found = re.search(r"undefined symbol: (\S+)", str(error))
            missing = found[1] if found else str(error)
            raise KernelError(
                f"the extension calls {plain_name(missing)!r:.80}, which is not here: only torch, "
                "HIP's runtime and what its own sources define"
            ) from error
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
            with torch._C.DisableTorchFunction():  # a mode may say that tensors are on `cuda`
                return _Call(self).run(function, args, kwargs)

        call.__name__ = getattr(function, "__name__", "call")
        return call

    def functions(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield what the extension offers to Python, by name."""
        for name in dir(self.module) if self.module is not None else ():
            found = getattr(self.module, name)
            if callable(found) and not isinstance(found, type) and not name.startswith("__"):
                yield name, self.guarded(found)


class _Operator:
    """An operator of an extension in `torch.ops`, whose tensors lie on the GPU while it runs."""

    def __init__(self, loaded: LoadedExtension, operator: Any) -> None:
        self._loaded, self._operator = loaded, operator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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

    def __getattr__(self, name: str) -> Any:
        """Return what the operator has; its overloads are operators too."""
        found = getattr(self._operator, name)
        overload = isinstance(found, torch._ops.OpOverload)
        return _Operator(self._loaded, found) if overload else found


class EmulatedExtensions:
    """Builds and loads extensions for one target, also where a source asks torch to."""

    def __init__(
        self,
        target: str,
        library: Path,
        matrix_cycles: Mapping[str, int] | None = None,
        headers: str | None = None,
        carried: CarriedFiles | None = None,
        device: Mapping[str, Any] | None = None,
    ) -> None:
        """`library` is the compiled emulator, `headers` a folder of `torch_headers`.

        `carried` are the files that follow the kernel's source, `device` what `told_device` takes.
        """
        self._device = told_device(target, device)
        self._headers = headers
        self._carried = carried or CarriedFiles()
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
        folders: Sequence[str] = (),
    ) -> ModuleType:
        """Return the extension as a module; `folders` are searched for headers.

        Raises KernelError with the compiler's first error.
        """
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
            folders=folders,
            precompiled=self._headers,
        )
        before = set(torch._C._dispatch_get_all_op_names())
        loaded = LoadedExtension(
            built, self._library, self._memory, self._matrix_cycles, self._device
        )
        module = ModuleType(name)
        for key, function in loaded.functions():
            setattr(module, key, function)
        for one in sorted(set(torch._C._dispatch_get_all_op_names()) - before):
            space, _, key = one.partition(".")[0].partition("::")
            packet = getattr(getattr(torch.ops, space), key)
            if not isinstance(packet, _Operator):
                packet = _Operator(loaded, packet)
                setattr(getattr(torch.ops, space), key, packet)
            if not hasattr(module, key):
                setattr(module, key, packet)
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
        paths = [self._carried_name(one) for one in _listed(sources)]
        options = _macros([*_listed(extra_cflags), *_listed(extra_cuda_cflags)])
        headers = [ExtensionSource(*one) for one in self._carried.texts.items()]
        return self.load(
            name,
            [ExtensionSource(one, self._carried.texts[one]) for one in paths],
            options=[one for one in options if one[:2] != "-I"],
            headers=[one for one in headers if one.name not in paths],
            folders=[*(os.path.dirname(one) for one in paths), *self._carried.folders()],
        )

    def _carried_name(self, given: str) -> str:
        """Return the name from the root of a file that the source names: its end is the same."""
        parts = Path(os.path.normpath(given)).parts
        fits = [
            (_same_end(parts, Path(one).parts), one)
            for one in self._carried.texts
            if Path(one).name == parts[-1]
        ]
        if not fits:
            raise KernelError(
                f"the extension's source {given!r:.120} does not lie beside the kernel's file"
            )
        return max(fits)[1]


def _same_end(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many of the last parts of two paths are the same."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(a), len(b)))


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
    device: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return an extension's function as f(*tensors, scalars), from its one source file."""
    text, carried = split_files(source)
    emulator = Path(os.environ[EMULATOR])
    extensions = EmulatedExtensions(target, emulator, matrix_cycles, headers, device=device)
    module = extensions.load(
        "extension",
        [ExtensionSource(os.path.join(carried.place, name), text)],
        headers=[ExtensionSource(*one) for one in carried.texts.items()],
        folders=carried.folders(),
    )
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
    device: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return the entry of a Python source that may build extensions and launch Triton kernels."""
    emulator = Path(os.environ[EMULATOR])
    _, carried = split_files(source)
    EmulatedExtensions(target, emulator, matrix_cycles, headers, carried, device).install()
    return load_emulated(source, entry, target, matrix_cycles=matrix_cycles, device=device)
