"""A trace file as a stream of whole events: plain or gzip, of any size, in bounded memory."""

from __future__ import annotations

import codecs
import queue
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ratchet.errors import TraceError
from ratchet.trace.events import Event

BLOCK = 8 << 20
"""Bytes decoded at once: large enough to hide the call, small enough to stay in memory."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NOT_A_NUMBER = re.compile(rb"(:\s*)-?(?:NaN|nan|Infinity|inf)\b")
_CUTS_TRIED = 8
_LONGEST_EVENT = 64
"""Cuts that a damaged stretch may span before its first part is given up."""
NOT_UTF8 = "text that is not UTF-8 was read with question marks"
_DECODER = msgspec.json.Decoder(list[Event])
_ONE = msgspec.json.Decoder(Event)
_PARTS = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(kw_only=True, slots=True)
class Stream:
    """Events of one file. `header` and `footer` are what stands around them; both JSON objects."""

    path: Path
    note: Callable[[str], None]
    header: bytes = b""
    footer: bytes = b""
    _ended: bool = field(default=False)

    def __iter__(self) -> Iterator[list[Event]]:
        """Lists of events in the file's order; TraceError when the file holds no event array."""
        blocks = ahead(unpack(self.path, self.note))
        rest = self._open(blocks)
        for block in blocks:
            if self._ended:
                self.footer += block
                continue
            rest += block
            events, rest = self._take(rest)
            yield events
            if self._done():
                self.footer, rest = rest, b""
        if not self._ended:
            yield self._finish(rest)

    def _done(self) -> bool:
        return self._ended

    def _take(self, text: bytes) -> tuple[list[Event], bytes]:
        """The whole events of a text, and what is left of it."""
        cut = first_cut = _last_cut(text, len(text))
        for _ in range(_CUTS_TRIED):
            if cut is None:
                break
            try:
                return self._all(b"[" + text[: cut[0]] + b"]"), text[cut[1] :]
            except msgspec.DecodeError as error:
                if "truncated" not in str(error):
                    events, left = self._decode(text[: cut[0]])
                    return events, (left + text[cut[0] :] if self._ended else text[cut[1] :])
            # The cut fell inside an event that holds a list of objects, or inside a string.
            cut = _last_cut(text, cut[1])
        if first_cut is None or cut is None:
            return [], text
        return self._salvage(text[: first_cut[0]]), text[first_cut[1] :]

    def _all(self, text: bytes) -> list[Event]:
        """Every event of an array; msgspec.DecodeError where it is damaged."""
        try:
            return _DECODER.decode(text)
        except UnicodeDecodeError:
            self.note(NOT_UTF8)
            return _DECODER.decode(_legible(text))

    def _open(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event."""
        head = b""
        for block in blocks:
            head += block
            if head.lstrip().startswith(b"["):
                return head.lstrip()[1:]
            found = _ARRAY.search(head)
            if found:
                self.header = head[: found.start()]
                return head[found.end() :]
        if not head.strip():
            raise TraceError(f"{self.path.name} is empty: record it again")
        raise TraceError(
            f"{self.path.name} has no traceEvents: give a Chrome or Kineto trace (JSON or gzip), a "
            "rocprofv3 JSON file or a rocpd database"
        )

    def _decode(self, piece: bytes) -> tuple[list[Event], bytes]:
        """The events of a piece, and what follows in it when the array ended there."""
        text = b"[" + piece + b"]"
        try:
            return self._all(text), b""
        except msgspec.DecodeError as error:
            end = _value_end(error)
        if end:
            try:
                events = self._all(text[:end])
            except msgspec.DecodeError:
                events = self._salvage(text[1:end].rstrip()[:-1])
            self._ended = True
            return events, text[end:-1]
        parts = _array(_legible(text))
        if parts is None:
            return self._salvage(piece), b""
        known = [(part, _event(part)) for part in parts]
        bad = sum(event is None for _, event in known)
        if bad:
            self._note_many("an entry that is not an event was left out", bad)
        return [event for _, event in known if event is not None], b""

    def _finish(self, rest: bytes) -> list[Event]:
        """The last piece: to the array's end, or to where a file that was cut off stops."""
        text = rest.strip().rstrip(b",")
        if not text or text.startswith(b"]"):
            self.footer = text[1:]
            return []
        events, left = self._decode_end(text)
        self.footer = left
        return events

    def _decode_end(self, text: bytes) -> tuple[list[Event], bytes]:
        try:
            # A JSON array of events may stop without its bracket: the format allows it.
            events = self._all(b"[" + text + b"]")
            if self.header:
                self.note("the file ends before its event array does: what is there was read")
            return events, b""
        except msgspec.DecodeError as error:
            end = _value_end(error)
        if end:
            array = b"[" + text[: end - 1]
            self._ended = True
            try:
                return self._all(array), text[end - 1 :]
            except msgspec.DecodeError:
                return self._salvage(array[1:].rstrip()[:-1]), text[end - 1 :]
        events, rest = self._take(text)
        last = _leading_event(rest)
        if last is not None:
            return [*events, last], b""
        self.note("the file ends in the middle of an event: what stands before it was read")
        return events or self._salvage(rest), b""

    def _salvage(self, piece: bytes) -> list[Event]:
        """Every event of a damaged piece that can be decoded, one by one."""
        piece = _legible(piece)
        piece = _NOT_A_NUMBER.sub(rb"\1null", piece)
        bounds = [0, *(found.end() for found in _CUT.finditer(piece)), len(piece)]
        events: list[Event] = []
        lost = 0
        first = 0
        while first < len(bounds) - 1:
            for last in range(first + 1, min(first + _LONGEST_EVENT, len(bounds))):
                part = piece[bounds[first] : bounds[last]].strip().rstrip(b",")
                event = _event(part)
                if event is not None:
                    events.append(event)
                    first = last
                    break
            else:
                lost += 1
                first += 1
        if lost:
            self._note_many("a damaged stretch was left out", lost)
        return events

    def _note_many(self, what: str, count: int) -> None:
        for _ in range(count):
            self.note(what)


def unpack(path: Path, note: Callable[[str], None]) -> Iterator[bytes]:
    """The file's bytes in blocks, unpacked where it is gzip; a damaged tail is noted."""
    try:
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                file.seek(0)
                yield from _gunzip(iter(lambda: file.read(BLOCK // 8), b""), note)
            else:
                file.seek(0)
                yield from iter(lambda: file.read(BLOCK), b"")
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read ({error.strerror}): give a trace file or a folder of them"
        ) from None


def _gunzip(blocks: Iterator[bytes], note: Callable[[str], None]) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    whole = False
    for block in blocks:
        while block:
            try:
                out = member.decompress(block, BLOCK)
            except zlib.error:
                note("the gzip file is damaged: what stands before the damage was read")
                return
            if out:
                yield out
            block, whole = member.unconsumed_tail, member.eof
            if whole:
                block = member.unused_data.lstrip(b"\0")
                member = zlib.decompressobj(wbits=31)
    if not whole:
        yield member.flush()
        note("the gzip file is cut off: what stands before the cut was read")


def ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, read and unpacked in a thread while the caller decodes."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=2)
    stop = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not stop.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def fill() -> None:
        try:
            for block in blocks:
                put(block)
                if stop.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    threading.Thread(target=fill, daemon=True, name="trace-reader").start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()


def _last_cut(text: bytes, before: int) -> tuple[int, int] | None:
    """The last place before `before` where an object ends and the next begins; None without one."""
    position = before
    while (position := text.rfind(b"{", 0, position)) > 0:
        start = max(0, position - 256)
        head = text[start:position].rstrip()
        if head.endswith(b","):
            head = head[:-1].rstrip()
            if head.endswith(b"}"):
                return start + len(head), position
    return None


def _legible(text: bytes) -> bytes:
    """The same number of bytes, each that is not UTF-8 as a question mark."""
    return text.decode("utf-8", "ratchet-question").encode()


def _question(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error("ratchet-question", _question)


def _leading_event(text: bytes) -> Event | None:
    """The event that a text begins with; None when it is cut."""
    text = _legible(text)
    try:
        return _ONE.decode(text)
    except msgspec.DecodeError as error:
        end = _value_end(error)
    return _event(text[:end]) if end else None


def _value_end(error: msgspec.DecodeError) -> int:
    """Where the value ended that an error says was followed by something; 0 for other errors."""
    trailing = _TRAILING.search(str(error))
    # The decoder counts the first character that follows.
    return int(trailing[1]) - 1 if trailing else 0


def _array(text: bytes) -> list[msgspec.Raw] | None:
    try:
        return _PARTS.decode(text)
    except msgspec.DecodeError:
        return None


def _event(part: bytes | msgspec.Raw) -> Event | None:
    try:
        return _ONE.decode(part)
    except msgspec.DecodeError:
        return None
