"""Where LLVM and ROCm lie on this machine, and what a sandbox needs to find the same ones.

A sandbox has a PATH and folders of its own. So the judge looks first, shows the sandbox the folders
that are not the system's, and hands over the paths that it found.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

LLVM_VERSIONS: Final = range(24, 16, -1)
CLANG: Final = "RATCHET_CLANG"
BITCODE: Final = "HIP_DEVICE_LIB_PATH"
ROCM: Final = "ROCM_PATH"
OPT: Final = Path("/opt")
"""The folder where ROCm's packages install it: `rocm`, and `rocm-VERSION` for each version."""
PROGRAMS: Final = ("bin", "llvm/bin", "lib/llvm/bin")
BITCODE_BELOW: Final = (
    "amdgcn/bitcode",
    "lib/amdgcn/bitcode",
    "lib/x86_64-linux-gnu/amdgcn/bitcode",
    "lib/clang/*/lib/amdgcn/bitcode",
    "lib/clang/*/amdgcn/bitcode",
    "lib/llvm/lib/clang/*/lib/amdgcn/bitcode",
)
"""Places of the device libraries below ROCm, LLVM, an environment of conda's, or /usr."""
RUN_IN_SANDBOX: Final = ("hipcc", "llvm-mca")  # Programs besides clang that a sandbox runs
SYSTEM: Final = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives")
"""Folders that every sandbox shows."""


def rocm_folders() -> list[Path]:
    """Return the installations of ROCm: that of ROCM_PATH, /opt/rocm, the newest /opt/rocm-*."""
    asked = os.environ.get(ROCM, "").strip()
    versions = sorted(
        OPT.glob("rocm-*"),
        key=lambda folder: [int(one) for one in re.findall(r"\d+", folder.name)],
        reverse=True,
    )
    folders = [*([Path(asked).absolute()] if asked else []), OPT / "rocm", *versions]
    return [one for one in dict.fromkeys(folders) if one.is_dir()]


def installed(name: str) -> Iterator[str]:
    """Yield every `name` and `name-NN` on this machine: ROCm's, then the newest version first."""
    for folder in rocm_folders():
        for below in PROGRAMS:
            if found := shutil.which(name, path=str(folder / below)):
                yield found
    for one in (*(f"{name}-{version}" for version in LLVM_VERSIONS), name):
        if found := shutil.which(one):
            yield os.path.abspath(found)


def find_tool(name: str) -> str | None:
    """Return `name` or the newest `name-NN`, ROCm's first; or None. RATCHET_CLANG names clang."""
    if name == "clang" and (asked := os.environ.get(CLANG, "").strip()):
        found = shutil.which(asked)
        return found and os.path.abspath(found)
    return next(installed(name), None)


def why_no_clang() -> str:
    if asked := os.environ.get(CLANG, "").strip():
        return f"{CLANG}={asked} is no program on this machine: correct or unset {CLANG}"
    return "HIP kernels are emulated where clang 17 or later is installed: install it or set " + (
        f"{CLANG} to its path"
    )


def include_folders() -> list[Path]:
    """Return the folders of ROCm's headers: HIP's, and those of its libraries."""
    return [one / "include" for one in rocm_folders() if (one / "include").is_dir()]


def bitcode_folder() -> Path | None:
    """Return the folder of ROCm's device libraries: HIP_DEVICE_LIB_PATH, or that of a ROCm, of
    clang's installation or of the system's; or None."""
    asked = os.environ.get(BITCODE, "").strip()
    clang = find_tool("clang")
    own = [] if clang is None else [_prefix(one) for one in _ways(Path(clang))]
    folders = [one for one in (*rocm_folders(), *own, Path("/usr")) if one != Path("/")]
    below = (place for one in folders for how in BITCODE_BELOW for place in sorted(one.glob(how)))
    places = [*([Path(asked).absolute()] if asked else []), *below]
    return next((one for one in places if (one / "ocml.bc").exists()), None)


def told(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a sandbox's environment in which `find_tool` and the others find what they find here.

    ROCm's folder is named, and PATH also has the folders of programs that are not the system's.
    """
    found = dict(environment)
    if clang := find_tool("clang"):
        found[CLANG] = clang
    if bitcode := bitcode_folder():
        found[BITCODE] = str(bitcode)
    if os.environ.get(ROCM, "").strip():
        found[ROCM] = str(Path(os.environ[ROCM].strip()).absolute())
    folders = [str(Path(one).parent) for one in _programs() if not _is_shown(Path(one))]
    own = os.environ.get("PATH", "").split(os.pathsep)
    ahead = set(takewhile(lambda one: not _is_shown(Path(one)), own))  # of the system's
    first, last = ([one for one in folders if (one in ahead) is there] for there in (True, False))
    found["PATH"] = os.pathsep.join(dict.fromkeys([*first, found["PATH"], *last]))
    return found


def folders_to_show(seen: Sequence[str] = ()) -> list[str]:
    """Return the folders of LLVM and ROCm that a sandbox must show besides the system's.

    Those below another, or below one of `seen`, are left out: a link cannot be bound there.
    """
    bitcode = bitcode_folder()
    needed = [_prefix(way) for one in _programs() for way in _ways(Path(one))]
    needed += [way for one in rocm_folders() for way in _ways(one)]
    needed += [way for include in include_folders() for way in _linked(include)]
    needed += [] if bitcode is None else list(_ways(bitcode))
    parts = [part for folder in needed for part in _without_home(folder)]
    kept = [one for one in dict.fromkeys(parts) if not _is_shown(one)]
    above = {*kept, *map(Path, seen)}
    return [str(one) for one in kept if str(one) not in seen and above.isdisjoint(one.parents)]


def _programs() -> list[str]:
    clang = find_tool("clang")
    others = [one for name in RUN_IN_SANDBOX for one in installed(name)]
    return [*([clang] if clang else []), *others]


def _ways(path: Path) -> Iterator[Path]:
    """Yield a path, what each link on the way names, and where it ends."""
    yield path
    while path.is_symlink():
        path = Path(os.path.normpath(path.parent / path.readlink()))
        yield path
    yield path.resolve()


def _linked(include: Path) -> Iterator[Path]:
    """Yield a folder of headers, and those folders elsewhere that links in it name."""
    yield from _ways(include)
    for one in sorted(include.iterdir()):
        if one.is_symlink() and one.is_dir():
            yield from list(_ways(one))[1:]


def _prefix(program: Path) -> Path:
    return program.parent.parent if program.parent.name == "bin" else program.parent


def _without_home(folder: Path) -> list[Path]:
    """Return a folder, or what compilers need of one that holds the user's home."""
    if not Path.home().resolve().is_relative_to(folder.resolve()):
        return [folder]
    return [folder / one for one in ("bin", "lib", "include") if (folder / one).is_dir()]


def _is_shown(path: Path) -> bool:
    return any(path.is_relative_to(one) for one in SYSTEM)
