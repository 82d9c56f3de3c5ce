"""The events of a Chrome trace as they stand in the file, for what the columns leave out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from ratchet.errors import TraceError
from ratchet.trace.read.stream import unpack

Kept = TypeVar("Kept")
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
_LONGEST_HEAD = 1 << 24
"""Bytes before the event array: no profiler writes more around it."""
_PIECE = 4 << 20
_NEAR_END = 1 << 16
_TRIED, _LAST_TRIED = 4, 64
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError)
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


def raw_events(
    path: Path, kind: type[Kept], note: Callable[[str], None]
) -> Iterator[tuple[list[Kept], int]]:
    """Pieces of a trace's events, each decoded to `kind`, with the bytes that they stood in.

    Where an event does not decode, or the file is cut off, the rest is left out and noted.
    TraceError where the file holds no event array.
    """
    decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    blocks = unpack(path, note)
    held = bytearray(_after_head(path, blocks))
    tried = 0
    for block in blocks:
        held += block
        if len(held) < max(_PIECE, 2 * tried):
            continue
        done, over = _decode(decoder, held)
        if done is None:
            tried = len(held)
            continue
        tried = 0
        events, used = done
        del held[:used]
        yield events, used
        if over:
            return
    events = _last(decoder, bytes(held), note)
    if events:
        yield events, len(held)


def _after_head(path: Path, blocks: Iterator[bytes]) -> bytes:
    head = bytearray()
    for block in blocks:
        head += block
        if head.lstrip()[:1] == b"[":
            return bytes(head.lstrip()[1:])
        found = _ARRAY.search(head)
        if found:
            return bytes(head[found.end() :])
        if len(head) > _LONGEST_HEAD:
            break
    raise TraceError(f"{path.name} has no traceEvents: give a Chrome or Kineto trace")


def _decode(
    decoder: msgspec.json.Decoder[list[Kept]], held: bytearray
) -> tuple[tuple[list[Kept], int] | None, bool]:
    """((events, bytes used), whether the array ended there); None where more text is needed."""
    cuts = list(_CUT.finditer(held, max(len(held) - _NEAR_END, 0))) or list(_CUT.finditer(held))
    for cut in reversed(cuts[-_TRIED:]):
        text = b"[" + bytes(held[: cut.start() + 1]) + b"]"
        try:
            return (decoder.decode(text), cut.end()), False
        except _DAMAGED as error:
            end = _TRAILING.search(str(error))
            if end:
                with contextlib.suppress(*_DAMAGED):
                    return (decoder.decode(text[: int(end[1]) - 1]), len(held)), True
    return None, False


def _last(
    decoder: msgspec.json.Decoder[list[Kept]], text: bytes, note: Callable[[str], None]
) -> list[Kept]:
    text = b"[" + text.strip().rstrip(b",")
    try:
        return decoder.decode(text + b"]")
    except _DAMAGED as error:
        end = _TRAILING.search(str(error))
    if end:
        with contextlib.suppress(*_DAMAGED):
            return decoder.decode(text[: int(end[1]) - 1])
    for cut in reversed([found.start() + 1 for found in _CUT.finditer(text)][-_LAST_TRIED:]):
        with contextlib.suppress(*_DAMAGED):
            events: list[Kept] = decoder.decode(text[:cut] + b"]")
            note("the file is cut off or damaged: what stands before was taken")
            return events
    if text.strip(b"[ \n"):
        note("the file is damaged: its last part was left out")
    return []
