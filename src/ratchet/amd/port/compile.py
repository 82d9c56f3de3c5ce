"""Compile ported CUDA code for AMD's GPUs: the proof that what is called clean does build.

The headers are ROCm's, where it is installed, or those that Triton's wheel carries. Nothing is
executed: `Compilation.why_not_executed` says why.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from ratchet.amd.compile.device_check import (
    MISSING,
    TIME_LIMIT_S,
    CheckedUnit,
    DeviceBuild,
    DeviceTexts,
)
from ratchet.amd.compile.hip_compiler import hip_headers
from ratchet.amd.compile.process import ProfileProcess
from ratchet.amd.compile.tools import NOT_STARTED
from ratchet.amd.emulator.extension_build import forwards
from ratchet.amd.emulator.hip_build import precompiled
from ratchet.amd.port.device_code import device_codes
from ratchet.amd.port.patch import edited
from ratchet.amd.port.python_tree import PythonTree
from ratchet.amd.port.rule import CodeText
from ratchet.amd.port.rules.libraries import hipified
from ratchet.amd.port.scan import HEADER_SUFFIXES, ScannedFile
from ratchet.base.errors import JudgeError, KernelError, RatchetError
from ratchet.base.process import Clock
from ratchet.base.process.child import ChildFailure
from ratchet.judge.kernels.kernel import TARGETS
from ratchet.judge.sandbox.rocm import find_tool

Status = Literal["compiled", "failed", "not compiled"]
NO_COMPILER: Final = "clang is not installed: apt install clang-19, or install ROCm"
NO_HEADERS: Final = "there are no headers of HIP: pip install triton, or install ROCm"
NOT_EXECUTED: Final = (
    "compiled, not executed: a problem says what is right; "
    "execute it with ratchet judge PROBLEM KERNEL --target gfx942"
)
OF_TORCH: Final = re.compile(r"undeclared identifier '(at|c10|torch)'")
OF_TORCH_HEADERS: Final = ("torch/", "ATen/", "c10/", "pybind11/")
NO_KERNEL: Final = "no launch says with which arguments its kernels' templates are used"
LIBRARIES: Final = {
    **{"hipblaslt": "hipBLASLt", "hipblas": "hipBLAS", "hipsparse": "hipSPARSE"},
    **{"hipsolver": "hipSOLVER", "hipfft": "hipFFT", "hiprand": "hipRAND", "hipdnn": "MIOpen"},
    **{"miopen": "MIOpen", "rccl": "RCCL", "nccl": "RCCL", "roctx": "roctracer"},
    **{"rocblas": "rocBLAS", "thrust": "rocThrust", "rocprim": "rocPRIM"},
}
"""ROCm's libraries by how their names begin."""
OF_LIBRARY: Final = re.compile(
    r"(?i)(?:unknown type name|undeclared identifier|no (?:type|member) named) "
    rf"'({'|'.join(LIBRARIES)})"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compilation:
    """The compiler's answer on one file's GPU code for one target."""

    file: str
    target: str
    status: Status
    why: str = ""  # the first error, or what is missing
    kernels: int = 0
    why_not_executed: str = ""


def is_clean(scanned: ScannedFile) -> bool:
    """Return whether the patch leaves no error in a file's own text."""
    return all(
        one.fixable or one.severity != "error" or one.rule == "api-name" for one in scanned.findings
    )


def compile_clean(
    scanned: Sequence[ScannedFile], targets: Sequence[str] = TARGETS
) -> list[Compilation]:
    """Compile each file that has kernels and is clean once it is patched, for each target.

    A header that does not compile alone is compiled where a file of the tree includes it.
    """
    chosen = [one for one in scanned if one.has_kernels and is_clean(one)]
    if not chosen:
        return []
    if not (why := why_not()):
        try:
            return _compiled(scanned, chosen, targets)
        except (ChildFailure, JudgeError, KernelError) as error:
            why = f"the compiler's process: {error}"
    return [_not(one.found.name, target, why) for one in chosen for target in targets]


def _compiled(
    scanned: Sequence[ScannedFile], chosen: Sequence[ScannedFile], targets: Sequence[str]
) -> list[Compilation]:
    sources, of = _texts(scanned, chosen, targets)
    first = {(one.unit, one.target): one for one in _checked(sources)}
    first |= _with_torch(sources, first)
    parts = _parts(sources.whole)
    left = [unit for (unit, _), one in first.items() if not one.kernels and unit in parts]
    users = _users(scanned, left, sources.whole)
    by_end = by_last_name(sources.whole)
    named = dict.fromkeys(itertools.chain(*users.values()))
    asked = [_unit(one, sources, by_end) for one in named]
    new = tuple(one for one in asked if one not in sources.units)
    again = _checked(msgspec.structs.replace(sources, units=new)) if new else []
    built = first | {(one.unit, one.target): one for one in again}
    found = []
    for (unit, target), one in first.items():
        names = KERNEL_NAME.findall(sources.whole[unit])
        for user in users.get(unit, ()) if not one.kernels else ():
            with_user = built.get((user, target))
            kernels = with_user.kernels if with_user is not None else ()
            own = tuple(kernel for kernel in kernels if any(name in kernel for name in names))
            if own:
                one = DeviceBuild(unit=unit, target=target, kernels=own, said="")
                break
        found.append(_compilation(of[unit], one, unit in parts))
    unclean = {one.found.name for one in scanned if one.found.kind == "cuda" and not is_clean(one)}
    return [_blamed(one, unclean) for one in found]


def _with_torch(
    sources: DeviceTexts, first: Mapping[tuple[str, str], DeviceBuild]
) -> dict[tuple[str, str], DeviceBuild]:
    """Compile again what did not compile for want of torch's headers, if torch is here."""
    left = {unit for (unit, _), one in first.items() if _needs_torch(one)}
    if not left or find_spec("torch") is None:
        return {}
    made = {
        target: precompiled(target, with_torch=True, sides=("device",))
        for target in sources.targets
    }
    again = msgspec.structs.replace(
        sources,
        units=tuple(one for one in sources.units if one.name in left),
        headers={target: str(one) for target, one in made.items() if one is not None},
        with_torch=True,
    )
    return {(one.unit, one.target): one for one in _checked(again) if one.kernels}


def _needs_torch(one: DeviceBuild) -> bool:
    if one.kernels:
        return False
    return one.missing.startswith(OF_TORCH_HEADERS) or OF_TORCH.search(one.said) is not None


ERROR_AT: Final = re.compile(r"^(?:.*: )?([^\s:]+):\d+:\d+: (?:fatal )?error:")


def _blamed(one: Compilation, unclean: set[str]) -> Compilation:
    """Return an answer; if a file that is left for a person keeps another from compiling, so."""
    at = ERROR_AT.match(one.why) if one.status == "failed" else None
    if at is None or at[1] == one.file or at[1] not in unclean:
        return one
    why = f"{at[1]}, which it includes, has errors that the patch leaves"
    return replace(one, status="not compiled", why=why)


KERNEL_NAME: Final = re.compile(
    r"__global__\b(?:\s*__launch_bounds__\s*\([^;{]*?\))?[^;{(]*?\b(\w+)\s*\((?!\s*\()"
)
MOST_USERS: Final = 4  # most files that are compiled for one header


def _parts(texts: Mapping[str, str]) -> set[str]:
    """Return the headers, and the sources that others include as if they were headers."""
    included = {path.rpartition("/")[2] for one in texts.values() for path in INCLUDED.findall(one)}
    return {one for one in texts if _is_header(one) or one.rpartition("/")[2] in included}


def _is_header(name: str) -> bool:
    return name.endswith(HEADER_SUFFIXES)


def _users(
    scanned: Sequence[ScannedFile], headers: Iterable[str], texts: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the files that include each header, also by another; those that launch come first."""
    clean = {one.found.name for one in scanned if one.found.kind == "cuda" and is_clean(one)}
    asks: dict[str, set[str]] = {}
    for name, text in texts.items():
        for path in INCLUDED.findall(text):
            asks.setdefault(path.rpartition("/")[2], set()).add(name)
    found = {}
    for header in dict.fromkeys(headers):
        seen, new = {header}, [header]
        while new:
            more = asks.get(new.pop().rpartition("/")[2], set()) - seen
            seen |= more
            new += more
        users = [one for one in sorted(seen) if one in clean and not _is_header(one)]
        found[header] = sorted(users, key=lambda one: "<<<" not in texts[one])[:MOST_USERS]
    return found


def _checked(texts: DeviceTexts) -> list[DeviceBuild]:
    """Compile texts in a sandbox: those of a stranger's may name any file of the user's."""
    clock = Clock.of(TIME_LIMIT_S * max(1, len(texts.units) * len(texts.targets)))
    headers = next((Path(one).parent for one in texts.headers.values()), None)
    with contextlib.closing(ProfileProcess(clock, headers)) as process:
        reply = process.ask({"do": "check", "texts": msgspec.to_builtins(texts)})
    try:
        return msgspec.convert(reply.get("builds"), list[DeviceBuild])
    except msgspec.ValidationError as error:
        raise KernelError("it answered nonsense") from error


def why_not() -> str:
    """Return why nothing can be compiled here; "" if it can."""
    if find_tool("clang") is None and find_tool("hipcc") is None:
        return NO_COMPILER
    return "" if hip_headers() is not None else NO_HEADERS


def hip_texts(
    scanned: Iterable[ScannedFile], *, lined: bool = False
) -> Iterator[tuple[str, bytes]]:
    """Yield each CUDA text as HIP, patched and hipified: what a build on ROCm compiles.

    With `lined`, a compiler counts the lines of a file as the tree's.
    """
    for one in scanned:
        if one.found.kind == "cuda":
            text = edited(one, lined=lined)
            text = text if one.found.is_hip else _as_hip(text, one.found.name)
            if lined and text.startswith(ADDED):
                text = ADDED + b"#line 1\n" + text[len(ADDED) :]
            yield one.found.name, text
        elif one.found.kind == "python" and one.has_kernels:
            source = CodeText(file=one.found.name, kind="python", text=edited(one))
            for index, inner in enumerate(PythonTree(source).embedded()):
                name = f"{one.found.name}.{index}.cu"
                yield name, _as_hip(inner.text, name)


def _as_hip(text: bytes, name: str) -> bytes:
    with contextlib.suppress(RatchetError):
        return hipified(text, name)
    return text


def _texts(
    scanned: Sequence[ScannedFile], chosen: Sequence[ScannedFile], targets: Sequence[str]
) -> tuple[DeviceTexts, dict[str, str]]:
    """Return all texts as HIP, and by the texts with kernels the file that each is of."""
    names, units = {one.found.name for one in chosen}, {}
    plain, made = plain_texts(scanned, HEADER_SUFFIXES), {}
    for name, text in hip_texts(scanned, lined=True):
        made[name] = text
        of = name if name in names else name.rsplit(".", 2)[0]
        if of in names and b"__global__" in text:
            units[name] = of
    whole = plain | {name: text.decode(errors="replace") for name, text in made.items()}
    headers = {target: precompiled(target, with_torch=False) for target in targets}
    texts = DeviceTexts(
        whole=whole,
        device=plain | device_codes(made),
        outer=forwards(),
        macros=build_lines(scanned),
        units=(),
        targets=tuple(targets),
        headers={target: str(one) for target, one in headers.items() if one is not None},
    )
    by_end = by_last_name(whole)
    checked = tuple(_unit(one, texts, by_end) for one in units)
    return msgspec.structs.replace(texts, units=checked), units


def _unit(name: str, texts: DeviceTexts, by_end: Mapping[str, Sequence[str]]) -> CheckedUnit:
    return CheckedUnit(
        name=name,
        folders=header_folders(name, texts.whole, by_end),
        macros=build_macros(texts.macros, name),
    )


ADDED: Final = b'#include "hip/hip_runtime.h"\n'  # a line of hipify's own


def plain_texts(scanned: Iterable[ScannedFile], suffixes: Sequence[str]) -> dict[str, str]:
    """Return the texts that no rule reads, since they say nothing of CUDA."""
    return {
        one.name: one.path.read_text(errors="replace")
        for one in (one.found for one in scanned)
        if one.kind is None and not one.skipped and one.path.name.endswith(tuple(suffixes))
    }


INCLUDED: Final = re.compile(r'(?m)^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]')
MOST_FOLDERS: Final = 64


def by_last_name(texts: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in texts:
        found.setdefault(name.rpartition("/")[2], []).append(name)
    return found


def header_folders(
    unit: str, texts: Mapping[str, str], by_end: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the folders below which a text and its headers find theirs, the nearest first."""
    seen, new, found = {unit}, [unit], set[str]()
    while new:
        for path in INCLUDED.findall(texts[new.pop()]):
            ends = path.removeprefix("./")
            while ends.startswith("../"):
                ends = ends[3:]
            for name in by_end.get(ends.rpartition("/")[2], ()):
                if name != ends and not name.endswith(f"/{ends}"):
                    continue
                found.add(name[: -len(ends)].rstrip("/"))
                if name not in seen:
                    seen.add(name)
                    new.append(name)
    return _nearest(found - {""}, unit)


def _nearest(folders: Iterable[str], unit: str) -> tuple[str, ...]:
    def shared(folder: str) -> int:
        pairs = zip(folder.split("/"), unit.split("/"), strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    return tuple(sorted(folders, key=lambda one: (-shared(one), one))[:MOST_FOLDERS])


BUILD_MACRO: Final = re.compile(r"(?<![\w-])-D[ \t]*([A-Za-z]\w*(?:=[\w.+-]+)?)(?=[\s\"'),;]|$)")
OF_CMAKE: Final = ("CMAKE_", "BUILD_", "CUDA_")  # beginnings of what `cmake -D` is given
MOST_SETS: Final = 3


def build_lines(scanned: Iterable[ScannedFile]) -> dict[str, list[str]]:
    """Return the lines of builds that define macros, by the builds' folders."""
    found: dict[str, list[str]] = {}
    for one in (one.found for one in scanned):
        if one.kind in ("cmake", "shell") or one.path.name == "setup.py":
            text = one.text.decode(errors="replace").replace("\\\n", " ")
            lines = [line for line in text.splitlines() if BUILD_MACRO.search(line)]
            if lines:
                found.setdefault(one.name.rpartition("/")[0], []).extend(lines)
    return found


def build_macros(defined: Mapping[str, Sequence[str]], unit: str) -> tuple[tuple[str, ...], ...]:
    """Return sets of macros that the nearest build at or above a unit's folder defines.

    Those of a line that names the unit come first, then those of a line for nvcc.
    """
    folder, lines = unit, list[str]()
    while folder and not lines:
        folder = folder.rpartition("/")[0]
        lines = list(defined.get(folder, ()))
    name = unit.rpartition("/")[2]
    lines.sort(key=lambda line: (name not in line, "nvcc" not in line.lower()))
    sets = []
    for line in lines:
        given = (one for one in BUILD_MACRO.findall(line) if not one.startswith(OF_CMAKE))
        sets.append(tuple(f"-D{one}" for one in dict.fromkeys(given)))
    return tuple(dict.fromkeys(one for one in sets if one))[:MOST_SETS]


def _not(file: str, target: str, why: str) -> Compilation:
    return Compilation(file=file, target=target, status="not compiled", why=why)


def _compilation(name: str, built: DeviceBuild, is_part: bool) -> Compilation:
    target, said = built.target, built.said
    if not said and not built.kernels:
        return _not(name, target, NO_KERNEL)
    if not said:
        return Compilation(
            file=name,
            target=target,
            status="compiled",
            kernels=len(built.kernels),
            why_not_executed=NOT_EXECUTED,
        )
    if NOT_STARTED in said:
        return _not(name, target, said)
    if "invalid target ID" in said:
        clang = Path(find_tool("clang") or "clang").name
        return _not(name, target, f"{clang} does not know {target}: install a newer one")
    if OF_TORCH.search(said):
        return _not(name, target, "its GPU code uses more of torch's headers than are here")
    if missing := MISSING.search(said):
        return _not(name, target, f"the header {missing[1]} is not on this machine")
    if (used := OF_LIBRARY.search(said)) and "error:" in said[: used.start()]:
        library = next(LIBRARIES[key] for key in LIBRARIES if used[1].lower().startswith(key))
        return _not(name, target, f"{library} is not on this machine")
    why = (re.findall(".*error:.*", said) or said.splitlines())[0][:300]
    if built.missing and not built.missing.startswith(OF_TORCH_HEADERS):
        return _not(name, target, f"the header {built.missing} is not on this machine")
    if is_part:  # it may need what stands before it where it is included
        return _not(name, target, f"a header, and alone it does not compile: {why}")
    return Compilation(file=name, target=target, status="failed", why=why)


def by_file(compiled: Iterable[Compilation]) -> Mapping[str, list[Compilation]]:
    found: dict[str, list[Compilation]] = {}
    for one in compiled:
        found.setdefault(one.file, []).append(one)
    return found
