"""torch extensions in the sandbox: built by the judge, also where a source asks torch to."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from torch import Tensor

from ratchet.amd.emulator.extension_build import (
    SHARED,
    ExtensionOrder,
    ExtensionSource,
    check_module,
    extension_order,
    module_name,
)
from ratchet.amd.emulator.extension_calls import ExtensionOperator, LoadedExtension
from ratchet.amd.emulator.gpu_memory import GpuMemory
from ratchet.amd.emulator.loading import EMULATOR, ToldDevice, load_emulated, told_device
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.source_files import CarriedFiles, split_files
from ratchet.judge.sandbox.serving import ask_judge
from ratchet.judge.sandbox.shared_memory import PackedFiles

Texts = str | Path | Iterable[object] | None
"""One text or several, as torch's functions that build extensions take them."""


class EmulatedExtensions:
    """Builds and loads extensions for one target, also where a source asks torch to."""

    def __init__(
        self,
        target: str,
        library: Path,
        matrix_cycles: Mapping[str, int] | None = None,
        carried: CarriedFiles | None = None,
        device: ToldDevice | None = None,
        build: Callable[[ExtensionOrder], Path] | None = None,
    ) -> None:
        """`library` is the compiled emulator, `device` what `told_device` takes.

        `carried` are the files that follow the kernel's source. `build` returns the folder of a
        compiled extension; by default the judge compiles it.
        """
        self._device = told_device(target, device)
        self._build = build or built_by_the_judge
        self._carried = carried or CarriedFiles()
        self._library = library
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
        order = extension_order(
            word,
            sources,
            functions=functions,
            options=options,
            headers=headers,
            folders=folders,
        )
        built = self._build(order)
        before = set(torch._C._dispatch_get_all_op_names())
        loaded = LoadedExtension(
            word, built, self._library, self._memory, self._matrix_cycles, self._device
        )
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
        sources = [
            ExtensionSource(f"{index}/{called}" if index else called, text)
            for index, (called, text) in enumerate(texts)
        ]
        bound = (
            functions if isinstance(functions, dict) else {one: one for one in _listed(functions)}
        )
        options = _macros([*_listed(extra_cflags), *_listed(extra_cuda_cflags)])
        place = self._carried.place
        return self.load(
            name,
            [replace(one, name=os.path.join(place, one.name)) for one in sources],
            functions=bound,
            options=options,
            headers=[ExtensionSource(*one) for one in self._carried.texts.items()],
            folders=self._carried.folders(),
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


def _listed(given: Texts) -> list[str]:
    if given is None:
        return []
    return [str(given)] if isinstance(given, (str, Path)) else [str(one) for one in given]


def _macros(options: Sequence[str]) -> list[str]:
    """Return the options that clang shares with nvcc and gcc: macros and folders."""
    return [one for one in options if one.startswith(SHARED)]


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
    matrix_cycles: Mapping[str, int] | None = None,
    device: ToldDevice | None = None,
) -> Callable[..., object]:
    """Return an extension's function as f(*tensors, scalars), from its one source file."""
    text, carried = split_files(source)
    emulator = Path(os.environ[EMULATOR])
    extensions = EmulatedExtensions(target, emulator, matrix_cycles, device=device)
    module = extensions.load(
        "extension",
        [ExtensionSource(os.path.join(carried.place, "kernel.cu"), text)],
        headers=[ExtensionSource(*one) for one in carried.texts.items()],
        folders=carried.folders(),
    )
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
    matrix_cycles: Mapping[str, int] | None = None,
    device: ToldDevice | None = None,
) -> Callable[..., object]:
    """Return the entry of a Python source that may build extensions and launch Triton kernels."""
    emulator = Path(os.environ[EMULATOR])
    _, carried = split_files(source)
    EmulatedExtensions(target, emulator, matrix_cycles, carried, device).install()
    return load_emulated(source, entry, target, matrix_cycles=matrix_cycles, device=device)
