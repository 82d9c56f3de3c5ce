"""torch extensions in the sandbox: built by the judge, also where a source asks torch to."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from torch import Tensor

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.emulator.extension_build import (
    SHARED,
    ExtensionOrder,
    check_module,
    extension_order,
    module_name,
)
from ratchet.amd.emulator.extension_calls import ExtensionOperator, LoadedExtension
from ratchet.amd.emulator.gpu_memory import GpuMemory
from ratchet.amd.emulator.launch import Emulator
from ratchet.amd.emulator.loading import EMULATOR, load_emulated
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

        `options` are those of nvcc or gcc; macros and folders are kept, which clang has too.
        `folders` are searched for headers besides those of the carried files. Raises KernelError
        with the compiler's first error.
        """
        if not functions:
            check_module(sources.values())
        headers = {key: one for key, one in self._carried.texts.items() if key not in sources}
        word = module_name([*sources.values(), *headers.values()], name)
        if word in self._made:
            return self._made[word]
        order = extension_order(
            word,
            sources,
            functions=functions,
            options=[one for one in options if one.startswith(SHARED)],
            headers=headers,
            folders=[*folders, *self._carried.folders()],
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
    matrix_cycles: Mapping[str, int] | None = None,
    device: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Return an extension's function as f(*tensors, scalars), from its one source file."""
    text, carried = split_files(source)
    extensions = _extensions(target, matrix_cycles, device, carried)
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
    matrix_cycles: Mapping[str, int] | None = None,
    device: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Return the entry of a Python source that may build extensions and launch Triton kernels."""
    _, carried = split_files(source)
    _extensions(target, matrix_cycles, device, carried).install()
    return load_emulated(source, entry, target, matrix_cycles=matrix_cycles, device=device)


def _extensions(
    target: str,
    matrix_cycles: Mapping[str, int] | None,
    device: Mapping[str, object] | None,
    carried: CarriedFiles,
) -> EmulatedExtensions:
    emulator = Emulator(Path(os.environ[EMULATOR]), matrix_cycles)
    return EmulatedExtensions(emulator, PretendedDevice.of(target, device or {}), carried)
