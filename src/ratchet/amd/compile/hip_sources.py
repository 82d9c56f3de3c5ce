"""A HIP program as its compiler reads it: files, options, and a folder of precompiled headers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.hip_compiler import (
    HipBinary,
    build_small,
    compile_whole,
    find_hip,
    torch_libraries,
)
from ratchet.base.errors import KernelError


class HipSources(msgspec.Struct, frozen=True, kw_only=True):
    """A program's own texts and options. The rest of what decides its code is the machine's."""

    target: str
    files: dict[str, str]
    """Texts by their names below one folder."""
    units: tuple[str, ...]
    """The files that are compiled, together one library."""
    options: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("",)
    """Folders that are searched for headers."""
    outer_folders: tuple[str, ...] = ()
    """Folders that are searched as those of a system."""
    with_torch: bool = False
    precompiled: str | None = None
    """A folder that `precompile` filled."""


def compile_sources(sources: HipSources, folder: Path) -> HipBinary:
    """Compile a program in an empty folder of this process's own.

    Raises:
        KernelError: the first error with file and line, what is missing here, or a name that leaves
            the folder.
    """
    write_files(sources.files, folder)
    architecture, tools = ARCHITECTURES[sources.target], find_hip()
    options = [*sources.options, *(f"-I{folder / one}" for one in sources.folders)]
    for one in sources.outer_folders:
        options += ["-isystem", str(folder / one)]
    units = [folder / one for one in sources.units]
    if not (tools.whole or sources.with_torch):
        return build_small(tools, units[0], architecture, sources.options)
    return compile_whole(
        units,
        architecture,
        options,
        with_torch=sources.with_torch,
        libraries=torch_libraries() if sources.with_torch else (),
        precompiled=None if sources.precompiled is None else Path(sources.precompiled),
    )


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Write texts by their names below a folder; raises KernelError for a name that leaves it."""
    for name, text in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise KernelError(f"the name of a source leaves its folder: {name!r:.120}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
