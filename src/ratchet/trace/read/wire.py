"""Protobuf's wire format, as far as a trace needs it: fields by number, damage told.

Format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

Note: TypeAlias = Callable[[str], None]
Field: TypeAlias = tuple[int, int | bytes]
"""A field's number, and its value: a whole number, or the bytes of a text or a message."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
CUT_OFF = "the file is cut off or damaged in the middle of a message: everything before was read"
DAMAGED = "a damaged part of a message was left out"
_MOST_BYTES = 10  # Of a varint of 64 bits
_LAST = 0x7F


def varint(text: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and the place after it; ValueError if there is none."""
    value = shift = 0
    for place in range(at, min(at + _MOST_BYTES, len(text))):
        byte = text[place]
        value |= (byte & _LAST) << shift
        if byte <= _LAST:
            return value & (2**64 - 1), place + 1
        shift += 7
    raise ValueError("no number")


def fields(text: bytes, note: Note, whole: bool = True) -> Iterator[Field]:
    """Yield a message's fields up to its end or to damage, which is noted.

    The bytes of a field that the text cuts off are yielded as far as they go. `whole` is False for
    a file, whose end tells that it was cut off.
    """
    at, end = 0, len(text)
    while at < end:
        try:
            key, at = varint(text, at)
            kind, number = key & 7, key >> 3
            if kind == VARINT:
                value, at = varint(text, at)
                yield number, value
                continue
            if kind == BYTES:
                size, at = varint(text, at)
            else:
                size = {FIXED64: 8, FIXED32: 4}[kind]
        except (ValueError, KeyError):
            note(DAMAGED if whole else CUT_OFF)
            return
        held = text[at : at + size]
        at += size
        if at > end:
            note(DAMAGED if whole else CUT_OFF)
        if kind == BYTES:
            yield number, held
        elif at <= end:
            yield number, int.from_bytes(held, "little")


def first_messages(text: bytes, most: int = 8) -> Iterator[bytes]:
    """Yield the first messages of a file that holds nothing but messages of field 1."""
    at = 0
    for _ in range(most):
        try:
            key, body = varint(text, at)
            size, body = varint(text, body)
        except ValueError:
            return
        if key != 1 << 3 | BYTES:
            return
        yield text[body : body + size]
        at = body + size


def signed(value: int) -> int:
    """Return a number that was written as an int64."""
    return value - 2**64 if value >= 2**63 else value


def double(value: int) -> float:
    """Return a number that was written as a double."""
    found: float = struct.unpack("<d", value.to_bytes(8, "little"))[0]
    return found


def string(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def number(value: int | bytes) -> int:
    """Return a whole number; 0 where a damaged file has a text."""
    return value if isinstance(value, int) else 0


def message(value: int | bytes, note: Note) -> Iterator[Field]:
    """Yield the fields of a message inside another; a number in its place is noted."""
    if isinstance(value, bytes):
        yield from fields(value, note)
    else:
        note(DAMAGED)
