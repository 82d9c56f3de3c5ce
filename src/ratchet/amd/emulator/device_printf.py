"""Text that kernels print: notes in a buffer of the GPU's memory, formatted after each launch."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

VARIABLE: Final = "_ZL12ratchet_said"
"""The buffer in ratchet_printf.h."""
SPECIFICATION: Final = re.compile(
    r"%([-+ #0]*)(\*|\d+)?(\.(?:\*|\d+))?(hh|h|ll|l|L|q|j|z|t)?([diouxXeEfFgGaAcsp%])"
)
WIDE: Final = ("l", "ll", "q", "j", "z", "t")
"""Lengths of 64 bits."""
SIGNED, UNSIGNED, FLOAT, POINTER, TEXT = range(5)


def notes(words: Sequence[int]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the format's address, and the kind and 64 bits of each value, of each note."""
    at, end = 1, min(words[0] + 1, len(words))
    while at + 3 <= end:
        count, format_at = words[at], words[at + 1] | words[at + 2] << 32
        at += 3
        if at + 3 * count > end:
            return
        found = words[at : at + 3 * count]
        yield (
            format_at,
            [(found[i], found[i + 1] | found[i + 2] << 32) for i in range(0, len(found), 3)],
        )
        at += 3 * count


def formatted(text: str, values: Sequence[tuple[int, int]], text_at: Callable[[int], str]) -> str:
    """Return a note as C's printf writes it; `text_at` reads a text of the GPU's memory."""
    left = iter(values)

    def value(conversion: str) -> object:
        kind, bits = next(left, (SIGNED, 0))
        if conversion == "s":
            return text_at(bits) if kind == TEXT else ""
        if conversion in "eEfFgGaA":
            whole = bits - (bits >> 63 << 64) if kind == SIGNED else bits
            return (
                struct.unpack("<d", struct.pack("<Q", bits))[0] if kind == FLOAT else float(whole)
            )
        if kind == FLOAT:
            return int(struct.unpack("<d", struct.pack("<Q", bits))[0])
        return bits - (bits >> 63 << 64) if kind == SIGNED and conversion in "dic" else bits

    def written(found: re.Match[str]) -> str:
        flags, width, precision, length, conversion = found.groups()
        if conversion == "%":
            return "%"
        size = str(value("d")) if width == "*" else width or ""
        exact = f".{value('d')}" if precision == ".*" else precision or ""
        given = value(conversion)
        if conversion in "aA":
            return float.hex(float(str(given)))
        if conversion == "p":
            return f"{given:#x}"
        if conversion == "c":
            return chr(int(str(given)) & 255)
        if conversion in "uoxX" and isinstance(given, int):
            given &= (1 << (64 if length in WIDE else 32)) - 1
        return f"%{flags}{size}{exact}{conversion}" % given

    return SPECIFICATION.sub(written, text)
