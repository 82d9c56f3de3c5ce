"""The state of a process that a kernel's calls must leave as it was: their caller goes on in it.

In training that process is the user's. A thread that flushes tiny values to zero or rounds upward,
one that may run on one core alone, or torch's generator set to one seed change what comes after.
Imports no torch. What it tells is a claim, since it lives in the candidate's process.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from typing import Final

State = Mapping[str, str]
"""Names of what is left alone, with its values in words."""
ENVIRONMENT_BYTES: Final = 256
"""More than any machine's fenv_t takes."""
X86, ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
MXCSR_AT: Final = 28
FLAGS: Final = 0x3F
"""The bits of MXCSR that arithmetic sets (Intel's manual, volume 1, 10.2.3)."""
MOST_NAMED: Final = 4


def process_state() -> State:
    """Return how this thread computes, and on which cores it may run."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {"the floating-point mode": _mode(), "the cores it may run on": cores}


def changes(before: State, now: State) -> list[str]:
    """Return what changed, in words, of what is known now."""
    found = [f"{one} ({before[one]} to {new})" for one, new in now.items() if new != before[one]]
    return found[:MOST_NAMED]


def _mode() -> str:
    """Return the control words of fegetenv(3), without flags; "" where they are not known."""
    held = ctypes.create_string_buffer(ENVIRONMENT_BYTES)
    read = getattr(ctypes.CDLL(None), "fegetenv", None)  # libm's, which an interpreter may lack
    if platform.machine() not in (*X86, *ARM) or read is None or read(held):
        return ""

    def word(at: int) -> int:
        return int.from_bytes(held.raw[at : at + 4], "little")

    if platform.machine() in ARM:
        return f"{word(0):#x}"
    return f"{word(MXCSR_AT) & ~FLAGS:#x}, x87 {word(0) & 0xFFFF:#x}"
