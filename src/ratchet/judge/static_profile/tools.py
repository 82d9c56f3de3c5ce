"""Programs that read a candidate's code beside Triton: llvm-mca, clang or hipcc, ptxas.

They run in the sandbox of the candidate, since its source may be made to fool or break them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet import watchdog
from ratchet.errors import KernelError
from ratchet.judge.static_profile.architectures import Architecture
from ratchet.judge.static_profile.assembly import Instruction

LLVM_VERSIONS = range(24, 16, -1)
ROCM_FOLDERS = ("/opt/rocm/bin", "/opt/rocm/llvm/bin")
HEADERS = Path(__file__).parent / "headers"
TOOL_TIMEOUT_S = 60.0
MCA_ITERATIONS = 20
MAX_MCA_INSTRUCTIONS = 4000
MAX_OUTPUT_BYTES = 1 << 20
BUFFER_ACCESS = re.compile(r"buffer_((?:load|store)_\w+) (v[\d\[:\]]+), (v\d+), s\[")
REJECTED = re.compile(r"^[^:\n]*:(\d+):\d+: error:", re.MULTILINE)


def find_tool(name: str) -> str | None:
    """The newest `name` or `name-NN` of LLVM on this machine, ROCm's own first."""
    for folder in ROCM_FOLDERS:
        if found := shutil.which(name, path=folder):
            return found
    versioned = (f"{name}-{version}" for version in LLVM_VERSIONS)
    return next((found for one in (*versioned, name) if (found := shutil.which(one))), None)


def run_mca(
    architecture: Architecture, body: Sequence[Instruction], folder: Path
) -> dict[str, Any]:
    """What llvm-mca says of a straight run through `body`: its JSON, or why there is none."""
    program = find_tool("llvm-mca")
    if program is None:
        return {"error": "llvm-mca is not installed"}
    if len(body) > MAX_MCA_INSTRUCTIONS:
        return {"error": f"the part is longer than {MAX_MCA_INSTRUCTIONS} instructions"}
    readable = [line for one in body if (line := _readable(one)) is not None]
    lines = [line for line, _ in readable]
    done = _mca(program, architecture, lines, folder)
    rejected = {int(number) - 1 for number in REJECTED.findall(done.stderr)}
    if rejected:  # an older LLVM than Triton's does not know every instruction
        kept = [line for index, line in enumerate(lines) if index not in rejected]
        done = _mca(program, architecture, kept, folder)
    if "not a recognized processor" in done.stderr:
        return {"error": f"{Path(program).name} does not know {architecture.name}"}
    if done.returncode != 0:
        return {"error": f"{Path(program).name} failed: {_last_line(done.stderr)}"}
    return {
        "json": done.stdout[:MAX_OUTPUT_BYTES],
        "left_out": len(body) - len(lines) + len(rejected),
        "stood_in": sum(stands_in for _, stands_in in readable),
    }


def _readable(one: Instruction) -> tuple[str, bool] | None:
    """The line for llvm-mca, and whether another stands in for it; None for one that ends it.

    llvm-mca 19 overruns its memory on every buffer access. A global access of the same width and
    registers takes the same unit for as long.
    """
    line = f"{one.name} {one.operands}".strip()
    if not one.name.startswith(("buffer_load", "buffer_store", "buffer_atomic")):
        return line, False
    found = BUFFER_ACCESS.match(line)
    return (f"global_{found[1]} {found[2]}, {found[3]}, s[2:3]", True) if found else None


def _mca(
    program: str, architecture: Architecture, lines: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    source = folder / "part.s"
    source.write_text("\n".join(lines) + "\n")
    command = [program, "-mtriple=amdgcn-amd-amdhsa", f"-mcpu={architecture.name}", "--json"]
    command += [f"--iterations={MCA_ITERATIONS}", "--instruction-info=false", str(source)]
    return _run(command)


def compile_hip(source: Path, architecture: Architecture, macros: Sequence[str]) -> str:
    """The assembly of a HIP source; KernelError with the compiler's first error."""
    common = [f"--offload-arch={architecture.name}", "--offload-device-only", "-S", "-O3"]
    common += [*macros, "-o", str(source.with_suffix(".s"))]
    if hipcc := find_tool("hipcc"):
        command = [hipcc, *common, str(source)]
    elif clang := find_tool("clang"):
        own = ["-x", "hip", "-nogpulib", "-nogpuinc", f"-I{HEADERS}", "-std=c++17"]
        command = [clang, *own, *common, str(source)]
    else:
        raise KernelError("no HIP compiler is installed: install hipcc, or clang with AMDGPU")
    done = _run(command)
    if done.returncode != 0:
        raise KernelError(f"the source does not compile: {_first_error(done.stderr)}")
    return source.with_suffix(".s").read_text(errors="replace")


def run_ptxas(ptx: str, folder: Path) -> str:
    """What `ptxas -v` says of registers, shared memory and spills; "" where it fails."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    target = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    if not program.exists() or target is None:
        return ""
    output = str(folder / "kernel.cubin")
    return _run([str(program), "-v", f"--gpu-name={target[1]}", str(source), "-o", output]).stderr


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TOOL_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=watchdog.environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(list(command), 1, "", f"error: {error}")


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error:" in line]
    shown = lines[0] if lines else _last_line(text)
    return shown.partition("error:")[2].strip() or shown


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
