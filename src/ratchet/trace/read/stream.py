"""A trace file as a stream of whole events: plain or gzip, of any size, in bounded memory."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from ratchet.base import Json
from ratchet.base.errors import TraceError

# The decoder compares each key with the struct's fields, so a small struct for each phase is much
# cheaper than one for all. `Known` has the phases that fill a trace; `Event` reads any.

NOTHING = Raw(b"")


class WorkArguments(Struct, frozen=True, gc=False):
    """`args` of an event with a duration, in the order in which Kineto writes them.

    Most are untyped, because a writer may give a number, a string or null.
    """

    external: Json = field(default=-1, name="External id")
    sequence: Json = field(default=-1, name="Sequence number")
    concrete: Raw = field(default=NOTHING, name="Concrete Inputs")
    types: Raw = field(default=NOTHING, name="Input type")
    dims: Raw = field(default=NOTHING, name="Input Dims")
    device: Json = -1
    stream: Json = -1
    correlation: Json = -1
    bytes: Json = -1
    collective: Json = field(default="", name="Collective name")
    elements_in: Json = field(default=-1, name="In msg nelems")
    elements_out: Json = field(default=-1, name="Out msg nelems")
    group_size: Json = field(default=-1, name="Group size")
    dtype: Json = ""
    group: Json = field(default="", name="Process Group Name")
    kernel: Json = ""
    grid: Raw = NOTHING


class MemoryArguments(Struct, frozen=True, gc=False):
    device_type: Json = field(default=-1, name="Device Type")
    device_id: Json = field(default=-1, name="Device Id")
    address: Json = field(default=-1, name="Addr")
    size: Json = field(default=-1, name="Bytes")
    allocated: Json = field(default=-1, name="Total Allocated")
    reserved: Json = field(default=-1, name="Total Reserved")


class Arguments(WorkArguments, frozen=True, gc=False):
    device_type: Json = field(default=-1, name="Device Type")
    device_id: Json = field(default=-1, name="Device Id")
    address: Json = field(default=-1, name="Addr")
    size: Json = field(default=-1, name="Bytes")
    allocated: Json = field(default=-1, name="Total Allocated")
    reserved: Json = field(default=-1, name="Total Reserved")


NO_ARGUMENTS = Arguments()


class _Timed(Struct, frozen=True, gc=False):
    """The fields of an event with a duration; times are kept as the bytes of their digits."""

    cat: Json = ""
    name: Json = ""
    pid: Json = ""
    tid: Json = ""
    ts: Raw = NOTHING
    dur: Raw = NOTHING


class Event(_Timed, frozen=True, gc=False):
    ph: Json = ""
    args: Arguments | None = None


class WorkEvent(_Timed, frozen=True, gc=False, tag_field="ph", tag="X"):
    ph: ClassVar[str] = "X"
    args: WorkArguments | None = None


class Instant(Struct, frozen=True, gc=False, tag_field="ph", tag="i"):
    """A moment: an allocation or a free."""

    ph: ClassVar[str] = "i"
    name: Json = ""
    ts: Raw = NOTHING
    args: MemoryArguments | None = None


class Unused(Struct, frozen=True, gc=False):
    """An event that no answer needs."""


class ArrowStart(Unused, frozen=True, gc=False, tag_field="ph", tag="s"):
    """The start of an arrow between two events."""


class ArrowEnd(Unused, frozen=True, gc=False, tag_field="ph", tag="f"):
    """Its end."""


class Metadata(Unused, frozen=True, gc=False, tag_field="ph", tag="M"):
    """The name of a process or a thread."""


Known: TypeAlias = WorkEvent | Instant | ArrowStart | ArrowEnd | Metadata
AnyEvent: TypeAlias = Event | Known


Kept = TypeVar("Kept")
BLOCK = 1 << 20
"""Bytes decoded at once: large enough to hide the calls, small enough for the CPU's cache."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")
_ARRAY_BYTES = 1024  # Longer than any match of `_ARRAY`, with any indentation
_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_FIRST_COMMA = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_NOT_A_NUMBER = re.compile(rb'("\s*:\s*)-?(?:NaN|nan|Infinity|inf)(?=\s*[,}])')
_LONGEST_STRING = 8
"""In blocks. Text that cannot be parsed so far before its end is damaged, not cut off."""
NOT_UTF8 = "text that is not UTF-8 was read with replacement characters"
_DAMAGED = "the file is cut off or damaged in the middle of an event: everything before was read"
_KNOWN = msgspec.json.Decoder(list[Known])
_ANY = msgspec.json.Decoder(list[Event])
_PARTS = msgspec.json.Decoder(list[msgspec.Raw])
_JSON = json.JSONDecoder()


@dataclass(kw_only=True, slots=True)
class Stream:
    """The events of one file, and the texts around them: `header` and `footer`.

    `begin` and `end` choose a stretch of a plain file, from one event's first byte to another's.
    """

    path: Path
    note: Callable[[str], None]
    decode: Callable[[bytes], Sequence[Any]] | None = None
    """Decodes an array of events; `_decoded` by default."""
    begin: int = 0
    end: int | None = None
    header: bytes = b""
    footer: bytes = b""
    ended: bool = False  # True once the event array's end is reached
    _awaits_comma: bool = False
    """True if the text so far ended between an event and the comma after it."""

    def __iter__(self) -> Iterator[Sequence[Any]]:
        """Yield lists of events in file order; TraceError if the file holds no event array."""
        blocks = ahead(unpack(self.path, self.note, self.begin, self.end))
        held = [b"" if self.begin else self._open(blocks)]
        enough = 0
        for block in blocks:
            held.append(block)
            size = sum(map(len, held))
            if size < enough or self.ended:
                continue
            events, rest = self._whole(held)
            # Without a whole event, try again at twice the length: the cost stays linear.
            enough = 2 * size if len(rest) == size else 0
            held = [rest]
            yield events
            if not self.ended and _is_damaged(rest):
                break
        rest = b"".join(held)
        if not self.ended:
            events, rest = self._last(rest)
            yield events
        self.footer = rest

    def _open(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event."""
        head = bytearray()
        for block in blocks:
            begin = max(len(head) - _ARRAY_BYTES, 0)
            head += block
            bare = _BARE.match(head)
            if bare:
                return bytes(head[bare.end() :])
            if len(head) == len(block) and block.lstrip(_BEFORE)[:1] not in (b"{", b"[", b""):
                break  # no JSON, however long it is
            found = _ARRAY.search(head, begin)
            if found:
                self.header = bytes(head[: found.start()])
                return bytes(head[found.end() :])
        if not head.strip():
            raise TraceError(f"{self.path.name} is empty: record it again")
        raise TraceError(f"{self.path.name} has no traceEvents: give a Chrome or Kineto trace")

    def _whole(self, held: list[bytes]) -> tuple[Sequence[object], bytes]:
        """Decode the whole events of texts that belong together; return what is left of them."""
        if self._awaits_comma:
            held = [self._after_comma(b"".join(held))]
        cut = _last_cut(held[-1])
        if cut is not None:
            last = memoryview(held[-1])[: cut[0]]
            with contextlib.suppress(msgspec.DecodeError):
                return self._all(b"".join((b"[", *held[:-1], last, b"]"))), held[-1][cut[1] :]
        return self._taken(b"".join(held))

    def _taken(self, text: bytes) -> tuple[Sequence[object], bytes]:
        """Decode the events up to the array's end, or to the first that is not whole."""
        text = _NOT_A_NUMBER.sub(rb"\1null", text)
        bounds = _bounds(text)
        self.ended, self._awaits_comma = bounds.ended, bounds.awaits_comma
        rest = text[bounds.rest :]
        try:
            return self._all(b"[" + text[: bounds.end] + b"]"), rest
        except msgspec.DecodeError:
            self.note("a damaged stretch was left out")
            return [], rest

    def _last(self, text: bytes) -> tuple[Sequence[object], bytes]:
        """Decode to the array's end, or to where a file that was cut off stops."""
        if self.end is not None:
            return self._all(b"[" + text.strip().rstrip(b",") + b"]"), b""
        events, rest = self._taken(self._after_comma(text) if self._awaits_comma else text)
        if self.ended:
            return events, rest
        if rest:
            self.note(_DAMAGED)
        elif self.header or self.begin:
            # The format allows a bare array to stop without its bracket.
            self.note("the file ends before its event array ends: all events in it were read")
        return events, b""

    def _after_comma(self, text: bytes) -> bytes:
        """Return a text without the comma that separates it from the event before it."""
        comma = _FIRST_COMMA.match(text)
        self._awaits_comma = comma is None
        return text[comma.end() :] if comma else text

    def _all(self, text: bytes) -> Sequence[object]:
        """Decode every event of an array; msgspec.DecodeError if it is damaged."""
        decode = self.decode or _decoded
        try:
            return decode(text)
        except UnicodeDecodeError:
            self.note(NOT_UTF8)
            text = text.decode("utf-8", "replace").encode()
        except msgspec.ValidationError:
            pass
        events: list[object] = []
        for part in _PARTS.decode(text):
            try:
                events += decode(b"[" + part + b"]")
            except msgspec.ValidationError:
                self.note("an entry that is not an event was left out")
        return events


def raw_events(
    path: Path, kind: type[Kept], note: Callable[[str], None]
) -> Iterator[Sequence[Kept]]:
    """Yield pieces of a trace's events, each decoded to `kind`: for what the columns leave out."""
    decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    yield from Stream(path=path, note=note, decode=decoder.decode)


class _Bounds(NamedTuple):
    end: int  # End of the last whole event
    rest: int  # Start of the text after it
    ended: bool  # True if the array ends between the two
    awaits_comma: bool = False
    """True if the text ends with a whole event: its comma comes with the next text."""


def _bounds(text: bytes) -> _Bounds:
    """Find the whole events at the start of a text, one by one."""
    written = text.decode("latin-1")  # One letter per byte: JSON's syntax is ASCII.
    at, end = _space(written, 0), 0
    comma: re.Match[str] | None = None
    while at < len(written) and written[at] != "]":
        try:
            _, end = _JSON.raw_decode(written, at)
        except (ValueError, RecursionError):
            return _Bounds(end, at, False)
        comma = _COMMA.match(written, end)
        at = comma.end() if comma else _space(written, end)
        if not comma and written[at : at + 1] not in ("]", ""):
            break
    ended = written[at : at + 1] == "]"
    return _Bounds(
        end, at + ended, ended, awaits_comma=at == len(written) and end > 0 and not comma
    )


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _is_damaged(rest: bytes) -> bool:
    """Return whether more text cannot complete the event that a text begins with."""
    if len(rest) < _LONGEST_STRING * BLOCK:
        return False
    try:
        _JSON.raw_decode(rest.decode("latin-1"))
    except json.JSONDecodeError as error:
        return len(rest) - error.pos >= _LONGEST_STRING * BLOCK
    except RecursionError:
        pass
    return True


_BEFORE = b"\xef\xbb\xbf \t\r\n"  # What may stand before JSON


def unpack(
    path: Path, note: Callable[[str], None], begin: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """Yield a file's bytes in blocks, unpacked if it is gzip; note a damaged tail.

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


def beginning(path: Path, size: int = 4096) -> bytes:
    """Return a file's first bytes, unpacked if it is gzip; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return b""
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, size)
        except zlib.error:
            return b""
    return head[:size]


def _gunzip(blocks: Iterator[bytes], note: Callable[[str], None]) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    whole = False
    for block in blocks:
        while block:
            try:
                out = member.decompress(block, BLOCK)
            except zlib.error:
                note("the gzip file is damaged: everything before the damage was read")
                return
            if out:
                yield out
            block, whole = member.unconsumed_tail, member.eof
            if whole:
                block = member.unused_data.lstrip(b"\0")
                member = zlib.decompressobj(wbits=31)
    if not whole:
        yield member.flush()
        note("the gzip file is cut off: everything before the cut was read")


def ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same blocks, read and unpacked by a thread while the caller decodes."""
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
    """Decode an array of events; one event of an unknown phase makes all of them plain events."""
    try:
        return _KNOWN.decode(text)
    except msgspec.ValidationError:
        return _ANY.decode(text)


def _last_cut(text: bytes) -> tuple[int, int] | None:
    """Find the last place where an object ends and the next begins; None if there is none."""
    position = len(text)
    while (position := text.rfind(b"{", 0, position)) > 0:
        start = max(0, position - 256)
        head = text[start:position].rstrip()
        if head.endswith(b","):
            head = head[:-1].rstrip()
            if head.endswith(b"}"):
                return start + len(head), position
    return None
