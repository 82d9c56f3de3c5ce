"""Programs other than Triton that read a candidate's code: llvm-mca and ptxas.

They run in the candidate's sandbox, since its source may be made to fool or break them.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ratchet.amd.architectures import Architecture
from ratchet.amd.compile.assembly import Instruction
from ratchet.base.process import watchdog
from ratchet.judge.sandbox.rocm import installed

HEADERS = Path(__file__).parent / "headers"
TOOL_TIMEOUT_S = 60.0
LOADER_FAILED: Final = 127  # the exit code of a program whose libraries are not found
TRIPLE = "amdgcn-amd-amdhsa"
REFUSALS = ("not a recognized processor", "unable to get target")
"""Messages of an LLVM that is too old for a GPU, or was built without AMD's backend."""
MCA_ITERATIONS = 20
MAX_MCA_INSTRUCTIONS = 4000
MAX_OUTPUT_BYTES = 1 << 20
BUFFER_ACCESS = re.compile(r"buffer_((?:load|store)_\w+) (v[\d\[:\]]+), (v\d+), s\[")
REJECTED = re.compile(r"^[^:\n]*:(\d+):\d+: error:", re.MULTILINE)


def find_mca(architecture: Architecture) -> str | None:
    """Return the newest llvm-mca on this machine that knows the architecture, or None."""
    return next((one for one in installed("llvm-mca") if _knows(one, architecture.name)), None)


@functools.cache
def _knows(program: str, target: str) -> bool:
    said = run_tool([program, f"-mtriple={TRIPLE}", f"-mcpu={target}", "-"]).stderr
    return not any(refusal in said for refusal in REFUSALS)


def run_mca(
    architecture: Architecture, body: Sequence[Instruction], folder: Path
) -> dict[str, str | int]:
    """Run llvm-mca on `body` in straight order; return its JSON, or why there is none."""
    program = find_mca(architecture)
    if program is None:
        names = ", ".join(Path(one).name for one in installed("llvm-mca"))
        unknown = f"{names}: not one knows {architecture.name}"
        return {"error": unknown if names else "llvm-mca is not installed"}
    if len(body) > MAX_MCA_INSTRUCTIONS:
        return {"error": f"the part is longer than {MAX_MCA_INSTRUCTIONS} instructions"}
    readable = [line for one in body if (line := _readable(one)) is not None]
    kept = [line for line, _ in readable]
    source = folder / "part.s"
    command = [program, f"-mtriple={TRIPLE}", f"-mcpu={architecture.name}", "--json"]
    command += [f"--iterations={MCA_ITERATIONS}", "--instruction-info=false", str(source)]
    source.write_text("\n".join(kept) + "\n")
    done = run_tool(command)
    rejected = {int(number) - 1 for number in REJECTED.findall(done.stderr)}
    if rejected:  # an older LLVM than Triton's does not know every instruction
        kept = [line for index, line in enumerate(kept) if index not in rejected]
        source.write_text("\n".join(kept) + "\n")
        done = run_tool(command)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no message"]
        return {"error": f"{Path(program).name} failed: {said[-1].strip()[:300]}"}
    return {
        "json": done.stdout[:MAX_OUTPUT_BYTES],
        "left_out": len(body) - len(kept),
        "stood_in": sum(stands_in for _, stands_in in readable),
    }


def _readable(one: Instruction) -> tuple[str, bool] | None:
    """Return the line for llvm-mca, and whether it is a stand-in; None for an unreadable access.

    llvm-mca 19 overruns its memory on every buffer access. A global access of the same width and
    registers takes the same unit for as long.
    """
    line = f"{one.name} {one.operands}".strip()
    if not one.name.startswith(("buffer_load", "buffer_store", "buffer_atomic")):
        return line, False
    found = BUFFER_ACCESS.match(line)
    return (f"global_{found[1]} {found[2]}, {found[3]}, s[2:3]", True) if found else None


def run_ptxas(ptx: str, folder: Path) -> str:
    """Return the report of `ptxas -v` on registers, shared memory and spills; "" if it fails."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    target = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    if not program.exists() or target is None:
        return ""
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    command = [str(program), "-v", f"--gpu-name={target[1]}", str(source)]
    return run_tool([*command, "-o", str(folder / "kernel.cubin")]).stderr


NOT_STARTED: Final = "cannot start in the sandbox"


def why_not_started(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> str:
    """Return why a program did not even start, which says nothing of what it should read."""
    if done.returncode != LOADER_FAILED or "shared libraries" not in done.stderr:
        return ""
    said = done.stderr.strip().splitlines()[0].removeprefix(f"{command[0]}: ")
    return f"{Path(command[0]).name} {NOT_STARTED} ({said[:200]}): keep its libraries in its lib/"


def run_tool(
    command: Sequence[str], *, limit_s: float = TOOL_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a program, which may not read its input; a failure to start is an exit code of 1."""
    try:
        return subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            env=watchdog.environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(list(command), 1, "", f"error: {error}")
