"""Length-prefixed JSON, with file descriptors, over a socket that only the judge opened.

A message is four bytes of length (big endian), then UTF-8 JSON of one object. Descriptors travel
beside the length. Nothing here trusts the other end: lengths, shapes and times are bounded.
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ratchet.base import Json
from ratchet.base.errors import JudgeError
from ratchet.base.process import families

LENGTH = struct.Struct(">I")
CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid and gid
SO_PASSCRED = 16
SCM_CREDENTIALS = 2
MAX_MESSAGE_BYTES = 64 << 20
MAX_DESCRIPTORS = 8
TEND_S = 0.1  # Interval at which a wait checks its time limit and the machine's memory
Message: TypeAlias = dict[str, Json]
"""An object of JSON between the judge and a worker; an order says what to `do`."""
Left = Callable[[], float]  # Tells the seconds that are left of a limit


class ChannelClosed(JudgeError):
    """The other end closed the channel or died."""


class ChannelTimeout(JudgeError):
    """The other end said nothing in time."""


class ChannelNonsense(JudgeError):
    """The other end sent what is not a message."""


class Shortage(NamedTuple):
    """A resource that the machine runs short of."""

    words: str
    of_others: bool = False  # True if other processes than the one that is waited for have taken it


class ChannelShortage(JudgeError):
    """The machine runs short of something while the other end works."""

    def __init__(self, found: Shortage) -> None:
        super().__init__(found.words)
        self.of_others = found.of_others


class Channel:
    """One end of a private socket. `watch` is a descriptor that turns readable when the peer dies.

    The watched descriptor (a pidfd) matters where a grandchild holds the peer's end open: the
    socket alone would never report the end. `shortage` is asked while waiting, and a
    text ends the wait.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        watch: int | None = None,
        max_bytes: int = MAX_MESSAGE_BYTES,
        shortage: Callable[[], Shortage | None] | None = None,
    ) -> None:
        self._socket = connection
        self._watch = watch
        self._shortage = shortage
        self._max_bytes = max_bytes
        self.sender = 0
        """The process that sent the last message, as the kernel says (SCM_CREDENTIALS, unix(7));
        at the judge's end."""

    def send(
        self,
        message: Mapping[str, object],
        descriptors: Sequence[int] = (),
        *,
        limit_s: float | None = None,
    ) -> None:
        """Send one object; raises ChannelClosed or ChannelTimeout."""
        body = json.dumps(message).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise JudgeError(f"a message of {len(body)} bytes; at most {MAX_MESSAGE_BYTES} fit")
        try:
            self._socket.settimeout(limit_s)
            rights = array.array("i", descriptors)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
            whole = LENGTH.pack(len(body)) + body  # at once: the other end wakes only once
            sent = self._socket.sendmsg([whole], ancillary)
            if sent < len(whole):
                self._socket.sendall(memoryview(whole)[sent:])
        except TimeoutError as error:
            raise ChannelTimeout("the other end took nothing in time") from error
        except OSError as error:
            raise ChannelClosed("the other end is gone") from error

    def receive(
        self, *, limit_s: float | None = None, left_s: Left | None = None
    ) -> tuple[Message, list[int]]:
        """Wait for one object and its descriptors, which then belong to the caller.

        The wait ends after `limit_s` on the wall clock, or when `left_s` gives nothing more.
        """
        if left_s is None and limit_s is not None:
            left_s = until(time.monotonic() + limit_s)
        head, descriptors = self._receive_head(left_s)
        try:
            (length,) = LENGTH.unpack(head)
            if length > self._max_bytes:
                raise ChannelNonsense(f"the other end announced {length} bytes")
            return _parse(self._receive_exactly(length, left_s)), descriptors
        except JudgeError:
            close_descriptors(descriptors)
            raise

    @property
    def has_answer(self) -> bool:
        """True if `receive` would not wait: the other end has sent something, or is gone."""
        return families.is_readable(self._socket.fileno())

    def _receive_head(self, left_s: Left | None) -> tuple[bytes, list[int]]:
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        space += socket.CMSG_SPACE(CREDENTIALS.size)
        self._wait(left_s)
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(LENGTH.size, space)
        except OSError as error:
            raise ChannelClosed("the other end is gone") from error
        descriptors = _descriptors(ancillary)
        self.sender = _sender(ancillary)
        if not data or flags & socket.MSG_CTRUNC:
            close_descriptors(descriptors)
            raise (
                ChannelClosed("the other end is gone")
                if not data
                else ChannelNonsense("the other end sent too many descriptors")
            )
        try:
            return data + self._receive_exactly(LENGTH.size - len(data), left_s), descriptors
        except JudgeError:
            close_descriptors(descriptors)
            raise

    def _receive_exactly(self, count: int, left_s: Left | None) -> bytes:
        parts: list[bytes] = []
        while count:
            self._wait(left_s)
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except OSError as error:
                raise ChannelClosed("the other end is gone") from error
            if not part:
                raise ChannelClosed("the other end is gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait(self, left_s: Left | None) -> None:
        self._socket.settimeout(None)
        poller = select.poll()
        poller.register(self._socket.fileno(), select.POLLIN)
        if self._watch is not None:
            poller.register(self._watch, select.POLLIN)
        ready = {fd for fd, _ in self._poll(poller, left_s)}
        if self._socket.fileno() in ready:
            return
        if ready:
            raise ChannelClosed("the other end died")
        raise ChannelTimeout("the other end said nothing in time")

    def _poll(self, poller: select.poll, left_s: Left | None) -> list[tuple[int, int]]:
        if self._shortage is None and left_s is None:
            return poller.poll()
        while True:
            left = math.inf if left_s is None else left_s()
            ready = poller.poll(1e3 * max(0.0, min(left, TEND_S)))
            if ready or left <= 0:
                return ready
            found = self._shortage() if self._shortage is not None else None
            if found is not None:
                raise ChannelShortage(found)

    def close(self) -> None:
        self._socket.close()


def open_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair: the judge's end, and the end that a child inherits by number."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
    return ours, theirs


def inherited(descriptor: int) -> Channel:
    """The channel in a child that was started with `descriptor` in `pass_fds`."""
    os.set_inheritable(descriptor, False)  # what the child starts must not hold the channel
    return Channel(socket.socket(fileno=descriptor))


def close_descriptors(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def until(end: float) -> Left:
    """Return what gives the seconds left until a moment of the wall clock."""
    return lambda: end - time.monotonic()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    numbers = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return list(numbers)


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SCM_CREDENTIALS):
            return int(CREDENTIALS.unpack(data[: CREDENTIALS.size])[0])
    return 0


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ChannelNonsense("the other end sent no JSON") from error
    if not isinstance(message, dict):
        raise ChannelNonsense("the other end sent JSON that is no object")
    return message
