"""HIP programs compiled for the emulator, each in a sandbox of its own, and kept between verdicts.

The compiler runs where no candidate does: the judge hands it texts, and takes what it made. Its
source may still fool or break it, so a program is known by the hash of all that decides it: its
files, its options, and the compiler with its headers. What a source makes of its compiler comes
back to the same source alone.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile import hip_compiler
from ratchet.amd.compile.hip_compiler import (
    OWN_HEADERS,
    SIDES,
    HipSources,
    bitcode_options,
    find_hip,
    precompile,
    shared_options,
)
from ratchet.amd.compile.process import ProfileProcess, hip_interface
from ratchet.amd.compile.tools import HEADERS
from ratchet.amd.emulator import source
from ratchet.amd.emulator.extension_build import (
    FORWARDS,
    PROGRAM,
    ExtensionOrder,
    build_extension,
    forwards,
)
from ratchet.base import scratch
from ratchet.base.errors import KernelError
from ratchet.base.files import cache_folder
from ratchet.base.process import Clock
from ratchet.base.process.child import ChildFailure
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.languages.cpp import keep_few
from ratchet.judge.kernels.source_files import split_files
from ratchet.judge.sandbox.shared_memory import PackedFiles

# HIP's headers, with torch's or without, are precompiled once for each target: they take nine
# tenths of a small program's compilation. They hold nothing of a candidate's, and its sandbox can
# only read them.

LOG = logging.getLogger(__name__)
FOLDERS: Final = {True: "torch-headers", False: "hip-headers"}
"""The cache's folders of headers with torch's and without."""
MOST_HEADERS: Final = 6
"""Most sets of each kind in the cache, at 180 MB with torch's headers and 25 without; the oldest is
removed."""


def precompiled(
    target: str, *, with_torch: bool, sides: Sequence[str] = tuple(SIDES)
) -> Path | None:
    """Return the folder of a target's precompiled headers; None if they cannot be made here."""
    try:
        folder = cache_folder("kernels") / FOLDERS[with_torch] / toolchain(target)[:24]
        if _missing(folder, sides):
            with scratch.locked(folder):  # another command that precompiles the same is waited for
                if missing := _missing(folder, sides):
                    if with_torch:
                        LOG.warning("compiling torch's headers for %s, once for this cache", target)
                    architecture = ARCHITECTURES[target]
                    precompile(folder, architecture, with_torch=with_torch, sides=missing)
            keep_few(folder.parent, MOST_HEADERS)
    except (OSError, KernelError):
        return None  # the program's own compilation says what is wrong
    return folder


def _missing(folder: Path, sides: Sequence[str]) -> list[str]:
    return [side for side in sides if not (folder / f"{side}.pch").exists()]


MOST_BUILDS: Final = 64  # most compiled programs in the cache; the oldest is removed
MOST_BYTES: Final = 8 << 20  # most text of one program


def build_hip(kernel: Kernel, target: str, clock: Clock) -> tuple[str, bytes]:
    """Return a source's assembly, and the library of its host code.

    Raises KernelError (the source does not compile, or there is no compiler); ChildFailure (the
    compiler's process died or took too long).
    """
    text, carried = split_files(kernel.source)
    source = os.path.join(carried.place, f"kernel_{target}.hip")
    interface = os.path.join(carried.place, "ratchet_abi.h")
    headers = precompiled(target, with_torch=False)
    sources = HipSources(
        target=target,
        files={**carried.texts, source: text, interface: hip_interface()},
        units=(source,),
        options=tuple(f"-D{key}={value}" for key, value in kernel.schedule),
        folders=(carried.place,),
        precompiled=None if headers is None else str(headers),
    )
    folder = _kept(sources, clock)
    return (folder / "0.s").read_text(), (folder / PROGRAM).read_bytes()


def build_program(
    files: Mapping[str, str],
    units: Sequence[str],
    target: str,
    clock: Clock,
    *,
    folders: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Path:
    """Return the folder of a compiled program with a main function: `0.s` and on, and PROGRAM.

    `units` are the files that are compiled; `folders` are searched for headers besides the root.
    Raises KernelError with the compiler's first error, and ChildFailure.
    """
    headers = precompiled(target, with_torch=False)
    outer = {f"{FORWARDS}/{name}": text for name, text in forwards().items()}
    sources = HipSources(
        target=target,
        files={**outer, **files},
        units=tuple(units),
        options=("-DUSE_ROCM", *options),
        folders=("", *folders),
        outer_folders=(FORWARDS,),
        precompiled=None if headers is None else str(headers),
    )
    return _kept(sources, clock)


def build_ordered(target: str, clock: Clock, headers: Path | None, order: Any) -> PackedFiles:
    """Build an extension that a candidate's process orders.

    `headers` is the folder of torch's precompiled headers. Returns the assemblies, `0.s` and on,
    and the library; the caller closes them. Raises KernelError if the sources do not compile, or
    the order is none.
    """
    try:
        asked = msgspec.convert(order, ExtensionOrder)
    except msgspec.ValidationError as error:
        raise KernelError(f"an extension was ordered with nonsense: {error}") from error
    try:
        folder = build_extension(
            asked, target, lambda sources: _kept(sources, clock), precompiled=headers
        )
    except ChildFailure as error:
        raise KernelError(f"the extension does not compile: its compiler {error}") from error
    return PackedFiles.of(folder)


def _kept(sources: HipSources, clock: Clock) -> Path:
    """Return the folder of a compiled program in the cache, compiled now if it is not there."""
    size = sum(len(name) + len(text) for name, text in sources.files.items())
    if size > MOST_BYTES:
        raise KernelError(f"a program of {size} characters is over {MOST_BYTES}: give less")
    place = cache_folder("kernels") / "hip-builds"
    packed = msgspec.json.encode(sources, order="sorted")
    key = hashlib.sha256(packed + toolchain(sources.target).encode()).hexdigest()[:32]
    folder = place / key
    if (folder / PROGRAM).is_file():
        os.utime(folder)
        return folder
    assemblies, host = _compiled(sources, clock)
    place.mkdir(parents=True, exist_ok=True)
    with scratch.folder("build", place=place) as fresh:
        whole = fresh / "made"
        whole.mkdir()
        for at, text in enumerate(assemblies):
            (whole / f"{at}.s").write_text(text)
        (whole / PROGRAM).write_bytes(host)
        with contextlib.suppress(OSError):  # another process was first
            os.rename(whole, folder)
    keep_few(place, MOST_BUILDS)
    return folder


def _compiled(sources: HipSources, clock: Clock) -> tuple[list[str], bytes]:
    headers = None if sources.precompiled is None else Path(sources.precompiled)
    with contextlib.closing(ProfileProcess(clock, headers)) as process:
        reply = process.ask({"do": "build", "sources": msgspec.to_builtins(sources)})
    try:
        assemblies = msgspec.convert(reply.get("assemblies"), list[str])
        host = base64.b64decode(msgspec.convert(reply.get("host"), str))
    except (msgspec.ValidationError, ValueError) as error:
        raise KernelError("the compiler's process answered nonsense") from error
    return assemblies, host


def toolchain(target: str) -> str:
    """Return a hash of what decides a program's code besides itself: the compiler, its headers."""
    tools, architecture = find_hip(), ARCHITECTURES[target]
    parts = [version("torch"), tools.clang, *bitcode_options(tools, architecture)]
    found = [Path(os.path.realpath(tools.clang))]
    if tools.headers is not None:
        found += [tools.headers / "hip" / "hip_runtime.h", tools.headers / "hip" / "hip_version.h"]
    if tools.bitcode is not None:
        found.append(tools.bitcode / "ocml.bc")
    for one in found:
        if one.exists():
            told = one.stat()
            parts.append(f"{one}:{told.st_size}:{told.st_mtime_ns}")
    if tools.whole:
        parts += shared_options(tools, architecture, with_torch=True)
    own = (*OWN_HEADERS.rglob("*"), *HEADERS.rglob("*"), Path(hip_compiler.__file__))
    parts += [one.read_text() for one in sorted(own) if one.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


TIMEOUT_S: Final = 900.0  # it takes 12 s on an idle core, and much longer on a busy one
FLAGS: Final = (
    "-fvect-cost-model=dynamic",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-std=c++17",
)
"""A product and a sum must round twice: the GPU's instruction says when they round once."""


def compiled_machine(target: str) -> Path:
    """Return the library of the emulator for a target's waves, compiled once.

    `RATCHET_EMULATOR_OPT` names another level of optimisation than -O2: at -O0 it is compiled in a
    ninth of the time, and runs kernels several times slower. Raises CompilerMissing.
    """
    text = source.written(ARCHITECTURES[target].wavefront_size)
    flags = (*FLAGS, os.environ.get("RATCHET_EMULATOR_OPT", "-O2"))
    kernel = Kernel(name="emulator", language="cpp", source=text, entry="ratchet_emulate")
    return cpp.compile_kernel(kernel, flags=flags, limit_s=TIMEOUT_S)
