"""Compile a package's C++ kernels for this machine's CPU. Imports no torch."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path


def compile_kernels(folder: Path, features: list[str]) -> None:
    """Compile the C++ kernels that `kernels.json` lists, and note what the code needs of a CPU.

    The compiler is CXX, g++, clang++ or c++. A kernel that does not compile ends the build.
    """
    manifest = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
    rows = {row["library"]: row for row in manifest["kernels"] if row["library"]}
    for row in rows.values():
        target = folder / row["library"]
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [_compiler(), *row["flags"], "-o", str(target), str(folder / row["source"])]
        print(" ".join(command), file=sys.stderr)
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"{row['source']} does not compile on this machine")
    manifest["features"] = features
    (folder / "kernels.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _compiler() -> str:
    names = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit("no C++ compiler found: install g++, or set CXX")
    return found


# The features of this machine's CPU that compiled code may need. Imports no torch.

FEATURES = re.compile(
    r"(sse|ssse|avx|amx|fma|f16c|bmi|abm|movbe|adx|gfni|vaes|vpclmul|pclmul|sha_|lzcnt|popcnt|asimd|sve|sme|i8mm|bf16)\w*"
)
"""Instruction sets among the flags of /proc/cpuinfo."""


def features() -> list[str]:
    """Return the architecture and the instruction sets of this machine, sorted."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    lines = [line for line in text.splitlines() if line.partition("\t")[0] in ("flags", "Features")]
    words = lines[0].partition(":")[2].split() if lines else []
    return sorted({platform.machine(), *(word for word in words if FEATURES.fullmatch(word))})
