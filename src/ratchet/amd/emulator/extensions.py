"""torch extensions in the sandbox: built by the judge, also where a source asks torch to."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

import msgspec
import torch
from torch import Tensor, _tensor_str
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.emulator.extension_build import (
    PROGRAM,
    SHARED,
    ExtensionOrder,
    as_hip,
    check_module,
    module_name,
)
from ratchet.amd.emulator.hip_runtime import APART_BYTES, GpuBlock, GpuMemory, HipRuntime, move
from ratchet.amd.emulator.launch import Emulator
from ratchet.amd.emulator.linking import plain_name
from ratchet.amd.emulator.loading import EMULATOR, load_emulated
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.source_files import CarriedFiles, split_files
from ratchet.judge.sandbox.serving import ask_judge
from ratchet.judge.sandbox.shared_memory import PackedFiles

# The tensors of a built extension's functions lie in memory that only kernels reach. An operation
# of torch opens that memory while it runs, since on a GPU it would be a kernel too.

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
        self, name: str, built: Path, emulator: Emulator, memory: GpuMemory, device: PretendedDevice
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


Texts = str | Path | Iterable[object] | None
"""One text or several, as torch's functions that build extensions take them."""


class EmulatedExtensions:
    """Builds and loads extensions for one target, also where a source asks torch to."""

    def __init__(
        self,
        emulator: Emulator,
        device: PretendedDevice,
        carried: CarriedFiles | None = None,
        build: Callable[[ExtensionOrder], Path] | None = None,
    ) -> None:
        """`carried` are the files that follow the kernel's source.

        `build` returns the folder of a compiled extension; by default the judge compiles it.
        """
        self._emulator = emulator
        self._device = device
        self._build = build or built_by_the_judge
        self._carried = carried or CarriedFiles()
        self._memory = GpuMemory()
        self._made: dict[str, ModuleType] = {}

    def load(
        self,
        name: str,
        sources: Mapping[str, str],
        *,
        functions: Mapping[str, str] | None = None,
        options: Iterable[str] = (),
        folders: Sequence[str] = (),
    ) -> ModuleType:
        """Return an extension of texts by name, and of the carried files, as a module.

        `functions` are bound by name, with their documentation. `options` are those of nvcc or gcc;
        macros and folders are kept, which clang has too. `folders` are searched for headers besides
        those of the carried files. Raises KernelError with the compiler's first error.
        """
        if not functions:
            check_module(sources.values())
        headers = {key: one for key, one in self._carried.texts.items() if key not in sources}
        word = module_name([*sources.values(), *headers.values()], name)
        if word in self._made:
            return self._made[word]
        bound = [f'  m.def("{key}", &{key}, "{one}");\n' for key, one in (functions or {}).items()]
        body = f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{''.join(bound)}}}\n"
        order = ExtensionOrder(
            name=word,
            sources=tuple(sources),
            files={key: as_hip(key, one) for key, one in {**headers, **sources}.items()},
            bound=body if bound else "",
            options=tuple(one for one in options if one.startswith(SHARED)),
            folders=tuple(dict.fromkeys(["", *folders, *self._carried.folders()])),
        )
        built = self._build(order)
        before = set(torch._C._dispatch_get_all_op_names())
        loaded = LoadedExtension(word, built, self._emulator, self._memory, self._device)
        module = ModuleType(name)
        for key, function in loaded.functions():
            setattr(module, key, function)
        for one in sorted(set(torch._C._dispatch_get_all_op_names()) - before):
            space, _, key = one.partition(".")[0].partition("::")
            packet = getattr(getattr(torch.ops, space), key)
            if not isinstance(packet, ExtensionOperator):
                packet = ExtensionOperator(loaded, packet)
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
        cpp_sources: Texts,
        cuda_sources: Texts = None,
        functions: Texts = None,
        extra_cflags: Texts = None,
        extra_cuda_cflags: Texts = None,
        *_: object,
        **__: object,
    ) -> ModuleType:
        texts = [(f"{name}.cpp", one) for one in _listed(cpp_sources)]
        texts += [(f"{name}.cu", one) for one in _listed(cuda_sources)]
        called = [f"{at}/{one}" if at else one for at, (one, _) in enumerate(texts)]
        return self.load(
            name,
            {
                os.path.join(self._carried.place, one): text
                for one, (_, text) in zip(called, texts, strict=True)
            },
            functions=(
                functions
                if isinstance(functions, dict)
                else {one: one for one in _listed(functions)}
            ),
            options=[*_listed(extra_cflags), *_listed(extra_cuda_cflags)],
        )

    def _load(
        self,
        name: str,
        sources: Texts,
        extra_cflags: Texts = None,
        extra_cuda_cflags: Texts = None,
        extra_ldflags: object = None,
        extra_include_paths: object = None,
        *_: object,
        **__: object,
    ) -> ModuleType:
        names = [self._carried_name(one) for one in _listed(sources)]
        options = [*_listed(extra_cflags), *_listed(extra_cuda_cflags)]
        return self.load(
            name,
            {one: self._carried.texts[one] for one in names},
            options=[one for one in options if one[:2] != "-I"],
            folders=[os.path.dirname(one) for one in names],
        )

    def _carried_name(self, given: str) -> str:
        """Return the name from the root of a file that the source names: its end is the same."""
        parts = Path(os.path.normpath(given)).parts
        fits = []
        for one in self._carried.texts:
            pairs = zip(reversed(parts), reversed(Path(one).parts), strict=False)
            if same := len([*takewhile(lambda pair: pair[0] == pair[1], pairs)]):
                fits.append((same, one))
        if not fits:
            raise KernelError(
                f"the extension's source {given!r:.120} does not lie beside the kernel's file"
            )
        return max(fits)[1]


def _listed(given: Texts) -> list[str]:
    if given is None:
        return []
    return [str(given)] if isinstance(given, (str, Path)) else [str(one) for one in given]


def built_by_the_judge(order: ExtensionOrder) -> Path:
    """Have the judge compile an extension, outside of this process's reach; see `hip_build`.

    Raises KernelError with the compiler's first error.
    """
    reply, descriptors = ask_judge({"build": msgspec.to_builtins(order)})
    if "error" in reply:
        raise KernelError(reply["error"])
    folder = Path(tempfile.mkdtemp(prefix="extension-"))
    PackedFiles(files=reply["files"], descriptor=descriptors[0]).unpack(folder)
    os.close(descriptors[0])
    return folder


def load_extension(
    source: str,
    entry: str,
    target: str,
    device: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Return an extension's function as f(*tensors, scalars), from its one source file."""
    text, carried = split_files(source)
    extensions = _extensions(target, device, carried)
    module = extensions.load("extension", {os.path.join(carried.place, "kernel.cu"): text})
    function = getattr(module, entry, None)
    if function is None:
        offered = ", ".join(one for one in vars(module) if not one.startswith("_"))
        raise KernelError(f"the extension binds no function {entry!r}: it binds {offered:.200}")

    def call(*given: Any) -> tuple[object, ...]:
        *tensors, scalars = given
        found = function(*tensors, *scalars)
        return (found,) if isinstance(found, Tensor) else tuple(found or ())

    return call


def load_with_extensions(
    source: str,
    entry: str,
    target: str,
    device: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Return the entry of a Python source that may build extensions and launch Triton kernels."""
    _, carried = split_files(source)
    _extensions(target, device, carried).install()
    return load_emulated(source, entry, target, device=device)


def _extensions(
    target: str,
    device: Mapping[str, object] | None,
    carried: CarriedFiles,
) -> EmulatedExtensions:
    emulator = Emulator(Path(os.environ[EMULATOR]))
    return EmulatedExtensions(emulator, PretendedDevice.of(target, device or {}), carried)
