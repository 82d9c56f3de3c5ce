"""printf in kernels: notes in the GPU's memory, written as C writes them."""

from __future__ import annotations

import struct

import pytest

from ratchet.amd.emulator.hip_runtime import (
    FLOAT,
    POINTER,
    SIGNED,
    TEXT,
    UNSIGNED,
    formatted,
    notes,
)

MINUS_3 = (SIGNED, (1 << 64) - 3)


def real(value: float) -> tuple[int, int]:
    return FLOAT, int.from_bytes(struct.pack("<d", value), "little")


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("%d and %5d%%", [MINUS_3, (SIGNED, 7)], "-3 and     7%"),
        ("%u %x %lx", [MINUS_3, (UNSIGNED, 255), (UNSIGNED, 1 << 40)], "4294967293 ff 10000000000"),
        ("%lld %zu %hhd", [MINUS_3, (UNSIGNED, 8), (SIGNED, 1)], "-3 8 1"),
        ("%.3f|%8.2e|%g", [real(1.0 / 3), real(12345.0), real(0.5)], "0.333|1.23e+04|0.5"),
        ("%-6s|%c|%p", [(TEXT, 40), (SIGNED, 65), (POINTER, 4096)], "row 40|A|0x1000"),
        ("%*d %.*f", [(SIGNED, 4), (SIGNED, 7), (SIGNED, 1), real(2.25)], "   7 2.2"),
        ("%d %f", [real(2.75), (SIGNED, 3)], "2 3.000000"),
        ("%d %d", [(SIGNED, 1)], "1 0"),
    ],
)
def test_notes_are_written_as_c_writes_them(
    text: str, values: list[tuple[int, int]], said: str
) -> None:
    assert formatted(text, values, lambda at: f"row {at}") == said


def test_notes_are_read_back_up_to_the_end_of_the_buffer() -> None:
    whole = [2, 0x1000, 1, SIGNED, 7, 0, FLOAT, 8, 9]
    words = [len(whole) + 3, *whole, 1, 0x2000, 0]
    assert list(notes(words)) == [(0x1_0000_1000, [(SIGNED, 7), (FLOAT, 8 | 9 << 32)])]
