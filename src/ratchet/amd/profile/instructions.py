"""The kinds of AMD instructions, and what one moves, by its name."""

from __future__ import annotations

import re
from typing import Final

from ratchet.amd.compile.assembly import MATRIX

CLASSES: Final = (
    *("matrix", "vector", "transcendental", "scalar", "scalar_load"),
    *("global_load", "global_store", "global_atomic", "lds", "scratch"),
    *("wait", "barrier", "branch", "other"),
)
TRANSCENDENTAL: Final = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos|s_exp|s_log|s_rcp|s_sqrt)_")
GLOBAL: Final = ("global_", "buffer_", "flat_", "tbuffer_")
BRANCH: Final = ("s_branch", "s_cbranch", "s_endpgm", "s_setpc", "s_swappc", "s_call")
WAIT: Final = ("s_wait", "s_nop", "s_delay_alu", "s_sleep")
WIDTHS: Final = {
    "ubyte": 8, "sbyte": 8, "byte": 8, "ushort": 16, "sshort": 16, "short": 16,
    "dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128,
    "u8": 8, "i8": 8, "b8": 8, "u16": 16, "i16": 16, "b16": 16,
    "b32": 32, "b64": 64, "b96": 96, "b128": 128,
}  # fmt: skip
"""Bits that one lane moves, by the word that names it; GFX9 says dwordx4 where RDNA says b128."""


def class_of(name: str) -> str:
    if name.startswith(MATRIX):
        return "matrix"
    if name.startswith("v_"):
        return "transcendental" if TRANSCENDENTAL.match(name) else "vector"
    if name.startswith("ds_"):
        return "lds"
    if name.startswith("scratch_"):
        return "scratch"
    if name.startswith(GLOBAL):
        return _global_class(name)
    if name.startswith("s_barrier"):
        return "barrier"
    if name.startswith(BRANCH):
        return "branch"
    if name.startswith(WAIT):
        return "wait"
    if name.startswith(("s_load", "s_buffer_load")):
        return "scalar_load"
    return "scalar" if name.startswith("s_") else "other"


def _global_class(name: str) -> str:
    if "_atomic_" in name:
        return "global_atomic"
    if "_store_" in name:
        return "global_store"
    return "global_load" if "_load_" in name else "other"


def access_bits(name: str) -> int | None:
    """Return the bits that one lane loads or stores with this instruction, or None."""
    words = name.split("_")
    if not {"load", "store"} & set(words):
        return None
    widths = [WIDTHS[word] for word in words if word in WIDTHS]
    return widths[0] if widths else None


def drains(name: str, operands: str) -> bool:
    """Return True if a wait lasts until every outstanding load has returned."""
    if name == "s_waitcnt":
        return "vmcnt(0)" in operands
    return name in ("s_wait_loadcnt", "s_wait_loadcnt_dscnt") and _is_zero(operands)


def _is_zero(operands: str) -> bool:
    try:
        return int(operands.strip() or "1", 0) == 0
    except ValueError:
        return False
