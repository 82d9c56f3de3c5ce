"""A trace file as a stream of whole events: plain or gzip, of any size, in bounded memory."""

from __future__ import annotations

import codecs
import contextlib
import queue
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ratchet.errors import TraceError
from ratchet.trace.read.events import AnyEvent, Event, Known

BLOCK = 1 << 20
"""Bytes decoded at once: large enough to hide the calls, small enough for the processor's cache."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")
_ARRAY_BYTES = 1024
"""More than `_ARRAY` spans, with any indentation."""
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NOT_A_NUMBER = re.compile(rb"(:\s*)-?(?:NaN|nan|Infinity|inf)\b")
_CUTS_TRIED = 8
_LONGEST_TEXT = 128
"""Blocks of valid text in which no event ends before they are taken for damaged."""
_LONGEST_EVENT = 64
"""Cuts that a damaged stretch may span before its first part is given up."""
NOT_UTF8 = "text that is not UTF-8 was read with question marks"
_KNOWN = msgspec.json.Decoder(list[Known])
_ANY = msgspec.json.Decoder(list[Event])
_ONE = msgspec.json.Decoder(Event)
_PARTS = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(kw_only=True, slots=True)
class Stream:
    """Events of one file. `header` and `footer` are what stands around them; both JSON objects.

    `begin` and `end` choose a stretch of a plain file: from one event's first byte to another's.
    """

    path: Path
    note: Callable[[str], None]
    begin: int = 0
    end: int | None = None
    header: bytes = b""
    footer: bytes = b""
    ended: bool = False

    def __iter__(self) -> Iterator[Sequence[AnyEvent]]:
        """Lists of events in the file's order; TraceError when the file holds no event array."""
        blocks = ahead(unpack(self.path, self.note, self.begin, self.end))
        held = [b"" if self.begin else self._open(blocks)]
        enough = 0
        after: list[bytes] = []
        for block in blocks:
            if self.ended:
                after.append(block)
                continue
            held.append(block)
            size = sum(map(len, held))
            if size < enough:
                continue
            events, rest = self._whole(held)
            # A text without a whole event is tried again at twice its length: the cost is linear.
            enough = 2 * size if len(rest) == size else 0
            held = [rest]
            yield events
            if self._done():
                after.append(rest)
        if self.ended:
            self.footer = b"".join(after)
        else:
            yield self._finish(b"".join(held))

    def _done(self) -> bool:
        """Whether the event array ended in what was taken so far."""
        return self.ended

    def _whole(self, held: list[bytes]) -> tuple[Sequence[AnyEvent], bytes]:
        """The whole events of texts that belong together, and what is left of them."""
        cut = _last_cut(held[-1], len(held[-1]))
        if cut is not None:
            last = memoryview(held[-1])[: cut[0]]
            with contextlib.suppress(msgspec.DecodeError):
                return self._all(b"".join((b"[", *held[:-1], last, b"]"))), held[-1][cut[1] :]
        return self._take(b"".join(held))

    def _take(self, text: bytes, last: bool = False) -> tuple[Sequence[AnyEvent], bytes]:
        """The whole events of a text, and what is left of it; `last` when nothing follows."""
        cut = first_cut = _last_cut(text, len(text))
        for _ in range(_CUTS_TRIED):
            if cut is None:
                break
            try:
                return self._all(b"[" + text[: cut[0]] + b"]"), text[cut[1] :]
            except msgspec.DecodeError as error:
                if "truncated" not in str(error):
                    events, left = self._decode(text[: cut[0]])
                    return events, (left + text[cut[0] :] if self.ended else text[cut[1] :])
            # The cut fell inside an event that holds a list of objects, or inside a string.
            cut = _last_cut(text, cut[1])
        if first_cut is None or cut is None or (len(text) < _LONGEST_TEXT * BLOCK and not last):
            return [], text
        return self._salvage(text[: first_cut[0]]), text[first_cut[1] :]

    def _all(self, text: bytes) -> Sequence[AnyEvent]:
        """Every event of an array; msgspec.DecodeError where it is damaged."""
        try:
            return _decoded(text)
        except UnicodeDecodeError:
            self.note(NOT_UTF8)
            return _decoded(_legible(text))

    def _open(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event."""
        head = bytearray()
        for block in blocks:
            begin = max(len(head) - _ARRAY_BYTES, 0)
            head += block
            bare = _BARE.match(head)
            if bare:
                return bytes(head[bare.end() :])
            found = _ARRAY.search(head, begin)
            if found:
                self.header = bytes(head[: found.start()])
                return bytes(head[found.end() :])
        if not head.strip():
            raise TraceError(f"{self.path.name} is empty: record it again")
        raise TraceError(
            f"{self.path.name} has no traceEvents: give a Chrome or Kineto trace (JSON or gzip), a "
            "rocprofv3 JSON file or a rocpd database"
        )

    def _decode(self, piece: bytes) -> tuple[Sequence[AnyEvent], bytes]:
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
            self.ended = True
            return events, text[end:-1]
        parts = _array(_legible(text))
        if parts is None:
            return self._salvage(piece), b""
        known = [(part, _event(part)) for part in parts]
        bad = sum(event is None for _, event in known)
        if bad:
            self._note_many("an entry that is not an event was left out", bad)
        return [event for _, event in known if event is not None], b""

    def _finish(self, rest: bytes) -> Sequence[AnyEvent]:
        """The last piece: to the array's end, or to where a file that was cut off stops."""
        text = rest.strip().rstrip(b",")
        if self.end is not None:
            return self._all(b"[" + text + b"]")
        if not text or text.startswith(b"]"):
            self.footer = text[1:]
            return []
        events, left = self._decode_end(text)
        self.footer = left
        return events

    def _decode_end(self, text: bytes) -> tuple[Sequence[AnyEvent], bytes]:
        try:
            # A JSON array of events may stop without its bracket: the format allows it.
            events = self._all(b"[" + text + b"]")
            if self.header or self.begin:
                self.note("the file ends before its event array does: what is there was read")
            return events, b""
        except msgspec.DecodeError as error:
            end = _value_end(error)
        if end:
            array = b"[" + text[: end - 1]
            self.ended = True
            try:
                return self._all(array), text[end - 1 :]
            except msgspec.DecodeError:
                return self._salvage(array[1:].rstrip()[:-1]), text[end - 1 :]
        events, rest = self._take(text, last=True)
        last = _leading_event(rest)
        if last is not None:
            return [*events, last], b""
        self.note("the file ends in the middle of an event: what stands before it was read")
        return events or self._salvage(rest), b""

    def _salvage(self, piece: bytes) -> Sequence[AnyEvent]:
        """Every event of a damaged piece that can be decoded, one by one."""
        piece = _legible(piece)
        piece = _NOT_A_NUMBER.sub(rb"\1null", piece)
        bounds = [0, *(found.end() for found in _CUT.finditer(piece)), len(piece)]
        events: list[AnyEvent] = []
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


def unpack(
    path: Path, note: Callable[[str], None], begin: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """The file's bytes in blocks, unpacked where it is gzip; a damaged tail is noted.

    `begin` and `end` choose bytes of a plain file.
    """
    try:
        with path.open("rb") as file:
            if begin or end is not None:
                file.seek(begin)
                left = sys.maxsize if end is None else end - begin
                while block := file.read(min(BLOCK, left)):
                    left -= len(block)
                    yield block
            elif file.read(2) == b"\x1f\x8b":
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


def _decoded(text: bytes) -> Sequence[AnyEvent]:
    """An array's events; those of a phase that is not `Known` make all of them plain events."""
    try:
        return _KNOWN.decode(text)
    except msgspec.ValidationError:
        return _ANY.decode(text)


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
