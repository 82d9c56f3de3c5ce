"""Compile HIP with clang: the GPU's assembly, and a library of the host code for the emulator.

HIP's headers are ROCm's or those of Triton's wheel, and the GPU's mathematics is ROCm's bitcode.
Where one of them is missing, our own small header serves sources that need no torch.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from ratchet.amd.architectures import ARCHITECTURES, Architecture
from ratchet.amd.compile.tools import HEADERS, run_tool, why_not_started
from ratchet.base.errors import KernelError
from ratchet.judge.sandbox.rocm import bitcode_folder, find_tool, include_folders, why_no_clang

OWN_HEADERS: Final = Path(__file__).parent / "rocm"
BITCODE_FILES: Final = ("ocml", "ockl", "oclc_finite_only_off", "oclc_unsafe_math_off",
                        "oclc_correctly_rounded_sqrt_on")  # fmt: skip
OLDER_VERSIONS: Final = {"942": "940", "950": "940", "1100": "1030", "1201": "1030"}
"""The version that stands in for a GPU that device libraries of ROCm 5 do not know yet."""
NEEDS: Final = (
    "code with a host's side is emulated where {missing} installed: pip install triton, "
    "apt install rocm-device-libs"
)
UNNAMED: Final = "-fuse-cuid=none"
"""Keeps the names that our runtime defines: clang 20 adds a hash of each unit to them."""
INLINED: Final = ("-mllvm", "-amdgpu-function-calls=0")
PLACE: Final = re.compile(r"(?m)^(?:\S*/)?([\w.+-]+):(\d+):(\d+): (?:fatal )?error: (.*)$")
IN_ASM: Final = r"in asm\b|inline asm"
PTX: Final = re.compile(r"^\s*;+#ASMSTART\n\s*([a-z]\w*\.[\w.]+)", re.MULTILINE)
HINTS: Final = {
    IN_ASM: " (inline PTX is NVIDIA's: write it in HIP)",
    r"'(hip|HIP)(blas|BLAS|sparse|SPARSE|solver|SOLVER|fft|FFT|rand|RAND)\w*'": (
        " (libraries of CUDA and ROCm are not here)"
    ),
    r"file not found": " (give it beside the kernel; libraries of CUDA and ROCm are not here)",
}
"""Signs in a compiler's error, and what to do."""
WHOLE_TORCH: Final = re.compile(
    r"torch::(nn|optim|jit|data|serialize|fft|special)\b|torch/(nn|script)"
)
TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HipTools:
    clang: str
    headers: Path | None
    bitcode: Path | None

    @property
    def whole(self) -> bool:
        """True if HIP is whole: its headers and its mathematics."""
        return self.headers is not None and self.bitcode is not None


def find_hip() -> HipTools:
    """Return what this machine has; raises KernelError without a compiler."""
    clang = find_tool("clang")
    if clang is None:
        raise KernelError(why_no_clang())
    return HipTools(clang=clang, headers=hip_headers(), bitcode=bitcode_folder())


def hip_headers() -> Path | None:
    """Return the folder of HIP's own headers: ROCm's, or those of Triton's wheel."""
    folders = include_folders()
    spec = find_spec("triton")
    for place in spec.submodule_search_locations or () if spec else ():
        folders.append(Path(place) / "backends" / "amd" / "include")
    return next((one for one in folders if (one / "hip" / "hip_runtime.h").exists()), None)


def hip_options(tools: HipTools, own: Path = OWN_HEADERS) -> list[str]:
    """Return the options of a source that sees HIP's own headers; `own` is a copy of ours."""
    wrappers = Path(_resources(tools.clang)) / "include" / "cuda_wrappers"
    libraries = [one for one in include_folders() if one != tools.headers]
    return [
        *("-x", "hip", "-std=c++17", "-nogpulib", "-nogpuinc", "-w", "-ferror-limit=5"),
        *("-D__HIP_PLATFORM_AMD__=1", "-isystem", str(wrappers)),
        *("-include", "__clang_hip_runtime_wrapper.h"),
        *("-isystem", str(own), "-isystem", str(tools.headers)),
        *(word for one in libraries for word in ("-idirafter", str(one))),
    ]


@functools.cache
def _resources(clang: str) -> str:
    return run_tool([clang, "-print-resource-dir"]).stdout.strip()


def _torch_folder() -> Path:
    spec = find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def torch_options() -> list[str]:
    """Return the folders of torch's and Python's headers."""
    include = _torch_folder() / "include"
    inside = include / "torch" / "csrc" / "api" / "include"
    python = sysconfig.get_paths()["include"]
    return [part for one in (include, inside, python) for part in ("-isystem", str(one))]


def bitcode_options(tools: HipTools, architecture: Architecture) -> list[str]:
    """Return the options that link ROCm's functions into the GPU's code."""
    if tools.bitcode is None:
        return []
    digits = architecture.name.removeprefix("gfx")
    lanes = "on" if architecture.wavefront_size == 64 else "off"
    names = [*BITCODE_FILES, f"oclc_wavefrontsize64_{lanes}", "oclc_daz_opt_off"]
    names += ["oclc_abi_version_500", f"oclc_isa_version_{digits}"]
    if not (tools.bitcode / f"{names[-1]}.bc").exists():
        names[-1] = f"oclc_isa_version_{OLDER_VERSIONS.get(digits, '900')}"
    paths = [tools.bitcode / f"{name}.bc" for name in names]
    linked = [("-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(one)) for one in paths]
    return [part for one, path in zip(linked, paths, strict=True) if path.exists() for part in one]


@dataclass(frozen=True, kw_only=True, slots=True)
class HipBinary:
    """A compiled HIP source."""

    assemblies: tuple[str, ...]  # the assembly of each source's kernels, for one target
    host: bytes  # the shared library of the host code

    @property
    def assembly(self) -> str:
        return self.assemblies[0]


def compile_whole(
    sources: Sequence[Path],
    architecture: Architecture,
    options: Sequence[str],
    *,
    with_torch: bool = False,
    precompiled: Path | None = None,
) -> HipBinary:
    """Compile sources into one library with HIP's own headers; `options` are macros and folders.

    `precompiled` is a folder that `precompile` filled. The library lies beside the first source.
    Raises KernelError: the first error with its file and line, or what is missing here.
    """
    tools = whole_hip()
    shared = shared_options(tools, architecture, with_torch=with_torch, precompiled=precompiled)
    bitcode = bitcode_options(tools, architecture)
    objects = [one.with_suffix(".o") for one in sources]
    commands: list[list[str]] = []
    for source, made in zip(sources, objects, strict=True):
        common = [*shared, *options, str(source)]
        device = [*bitcode, *INLINED, "-gline-tables-only", "-o", str(source.with_suffix(".s"))]
        commands += (
            [*SIDES["device"], *used(precompiled, "device"), "-S", *device, *common],
            [*SIDES["host"], *used(precompiled, "host"), "-c", "-o", str(made), *common],
        )
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(lambda one: checked([tools.clang, *one], architecture), commands))
    if len(sources) > 1:  # each object defines clang's name of a unit, which a PCH leaves empty
        for made in objects:
            checked(["objcopy", "--localize-symbol=__hip_cuid_", str(made)], architecture)
    library = sources[0].with_suffix(".so")
    runtime = runtime_objects(tools, precompiled or sources[0].parent)
    link = [tools.clang, "-shared", "-o", str(library), "-lstdc++", *map(str, objects + runtime)]
    link += ["-Wl,--wrap=exit", "-lm"]
    if with_torch:
        link.append(f"-L{_torch_folder() / 'lib'}")
        link += ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    checked(link, architecture)
    texts = tuple(one.with_suffix(".s").read_text(errors="replace") for one in sources)
    if found := PTX.search("\n".join(texts)):
        raise KernelError(f"the source does not compile: {found[1]}{HINTS[IN_ASM]}")
    return HipBinary(assemblies=texts, host=library.read_bytes())


SIDES: Final = {
    "device": ("--offload-device-only", "-O3"),
    "host": ("--offload-host-only", UNNAMED, "-O1", "-fPIC"),
}


def whole_hip() -> HipTools:
    """Return the tools of a whole HIP; raises KernelError with what is missing."""
    tools = find_hip()
    if not tools.whole:
        missing = "HIP's headers are" if tools.headers is None else "ROCm's device libraries are"
        raise KernelError(NEEDS.format(missing=missing))
    return tools


def shared_options(
    tools: HipTools,
    architecture: Architecture,
    *,
    with_torch: bool,
    precompiled: Path | None = None,
) -> list[str]:
    """Return the options that a precompiled header and its sources have in common."""
    own = OWN_HEADERS if precompiled is None else precompiled / OWN_HEADERS.name
    found = [*hip_options(tools, own), "-include", "ratchet_hip.h"]
    found += torch_options() if with_torch else []
    lanes = f"-DRATCHET_LANES={architecture.wavefront_size}"
    return [*found, lanes, f"--offload-arch={architecture.name}"]


def used(precompiled: Path | None, side: str) -> list[str]:
    """Return the options that read a side's precompiled header."""
    if precompiled is None or not (precompiled / f"{side}.pch").exists():
        return []
    words = ("-include-pch", str(precompiled / f"{side}.pch"), "-fno-validate-pch")
    return [part for word in words for part in ("-Xclang", word)]


PRECOMPILED: Final = ("-emit-pch", "-fpch-instantiate-templates")
"""Without the second, each source instantiates what torch's headers leave open: 3 s a side."""


def precompile(
    folder: Path, architecture: Architecture, *, with_torch: bool, sides: Sequence[str]
) -> None:
    """Precompile HIP's headers for sides into a folder, or torch's too, with a copy of ours.

    A sandbox has ours elsewhere, and a precompiled header names its files. Raises KernelError.
    """
    tools = whole_hip()
    shutil.copytree(OWN_HEADERS, folder / OWN_HEADERS.name, dirs_exist_ok=True)
    header = folder / "headers.hip"
    header.write_text("#include <torch/extension.h>\n" if with_torch else "")
    shared = shared_options(tools, architecture, with_torch=with_torch, precompiled=folder)

    def build(side: str) -> None:
        made = folder / f"{side}.{os.getpid()}"
        asked = [part for word in (*PRECOMPILED, "-o", str(made)) for part in ("-Xclang", word)]
        command = [tools.clang, *SIDES[side], *shared, "-fsyntax-only", *asked, str(header)]
        checked(command, architecture)
        made.rename(folder / f"{side}.pch")

    runtime_objects(tools, folder)

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(build, sides))


SMALL: Final = ("-x", "hip", "-nogpulib", "-nogpuinc", f"-I{HEADERS}", "-std=c++17")
"""Options of a source that sees our own small header alone."""


def compile_device(source: Path, architecture: Architecture, macros: Sequence[str]) -> str:
    """Return the assembly of a HIP source; raises KernelError with the first error."""
    made = source.with_suffix(".s")
    common = [f"--offload-arch={architecture.name}", "--offload-device-only", "-S", "-O3"]
    common += [*macros, "-o", str(made), str(source)]
    if hipcc := find_tool("hipcc"):
        checked([hipcc, *common], architecture)
    elif clang := find_tool("clang"):
        checked([clang, *SMALL, *common], architecture)
    else:
        raise KernelError("no HIP compiler is installed: install hipcc, or clang with AMDGPU")
    return made.read_text(errors="replace")


def build_small(
    tools: HipTools, source: Path, architecture: Architecture, macros: Sequence[str]
) -> HipBinary:
    """Compile a source with an entry of the C++ interface, with our own small header."""
    clang, folder = tools.clang, source.parent
    assembly, made = source.with_suffix(".s"), [folder / "host.o", folder / "hip_host.o"]
    library = folder / "host.so"
    common = [*SMALL, f"--offload-arch={architecture.name}", *macros, str(source)]
    lines = "-gline-tables-only"  # so a fault names its line
    commands = [
        [clang, "--offload-device-only", "-S", "-O3", lines, "-o", str(assembly), *common],
        [clang, *SIDES["host"][:2], "-c", "-O2", "-fPIC", "-o", str(made[0]), *common],
        [clang, "-c", "-O2", "-fPIC", "-o", str(made[1]), str(HEADERS / "hip_host.cpp")],
        [clang, "-shared", "-nostdlib", "-o", str(library), *map(str, made), "-lc"],
    ]
    for command in commands:
        checked(command, architecture)
    text = assembly.read_text(errors="replace")
    return HipBinary(assemblies=(text,), host=library.read_bytes())


RUNTIME_SOURCES: Final = tuple(
    HEADERS / f"hip_{one}.cpp" for one in ("host", "api", "blas", "collectives")
)


def runtime_objects(tools: HipTools, folder: Path) -> list[Path]:
    """Return our runtime, compiled into a folder unless it is there."""
    found = []
    for source in RUNTIME_SOURCES:
        made = folder / f"{source.stem}.o"
        if not made.exists():
            fresh = folder / f"{source.stem}.{os.getpid()}.o"
            command = [tools.clang, "-c", "-O1", "-fPIC", "-D__HIP_PLATFORM_AMD__=1", "-w"]
            command += ["-isystem", str(OWN_HEADERS), "-isystem", str(tools.headers)]
            command += ["-o", str(fresh), str(source)]
            checked(command, None)
            fresh.rename(made)
        found.append(made)
    return found


TOO_OLD: Final = "does not know"


def checked(command: Sequence[str], architecture: Architecture | None) -> None:
    """Run a compiler; raises KernelError with its first error."""
    done = run_tool(command, limit_s=TIMEOUT_S)
    if architecture is not None and "invalid target ID" in done.stderr:
        raise KernelError(
            f"{Path(command[0]).name} {TOO_OLD} {architecture.name}: install a newer one"
        )
    if why := why_not_started(command, done):
        raise KernelError(why)
    if done.returncode != 0:
        raise KernelError(f"the source does not compile: {first_error(done.stderr)}")


def first_error(text: str) -> str:
    """Return the first error of a compiler as `file:line:column: message`."""
    if found := PLACE.search(text):
        hint = next((one for sign, one in HINTS.items() if re.search(sign, found[4])), "")
        return f"{found[1]}:{found[2]}:{found[3]}: {found[4]}"[:300] + hint
    said = [line for line in text.splitlines() if "linker command failed" not in line]
    lines = [line for line in said if re.search("error:|undefined|multiple def", line)]
    lines = lines or [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


class HipSources(msgspec.Struct, frozen=True, kw_only=True):
    """A program's own texts and options. The rest of what decides its code is the machine's."""

    target: str
    files: dict[str, str]  # texts by their names below one folder
    units: tuple[str, ...]  # the files that are compiled, together one library
    options: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("",)  # folders that are searched for headers
    outer_folders: tuple[str, ...] = ()  # folders that are searched as those of a system
    with_torch: bool = False
    precompiled: str | None = None  # a folder that `precompile` filled


def compile_sources(sources: HipSources, folder: Path) -> HipBinary:
    """Compile a program in an empty folder of this process's own.

    Raises KernelError: the first error with file and line, what is missing here, or a name that
    leaves the folder.
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
