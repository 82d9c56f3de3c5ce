"""The features of this machine's CPU that compiled code may need. Imports no torch."""

from __future__ import annotations

import platform
import re
from pathlib import Path

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
