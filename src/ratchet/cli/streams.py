"""The standard streams of a command: what cannot be shown degrades, what cannot be written is told.

A character that the terminal's encoding lacks is written in plain ASCII. Where stdout fails, the
command stops with `LostOutput`; where stderr fails, it works on in silence.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

PLAIN = "ratchet-plain"
_IN_ASCII = {"·": "-", "×": "x", "µ": "u", "…": "...", "–": "-", "—": "-", "→": "->"}
_IN_ASCII |= {"─": "-", "━": "-", "│": "|", "┃": "|", "█": "#", "≤": "<=", "≥": ">=", "²": "^2"}


class LostOutput(Exception):
    """stdout cannot be written; `number` is the system's errno."""

    def __init__(self, error: OSError) -> None:
        self.number = error.errno
        super().__init__(error.strerror or str(error))


class Output:
    """A stream that stands in for stdout or stderr, and is it in everything that is not written."""

    def __init__(self, stream: TextIO, *, needed: bool) -> None:
        self._stream = stream
        self._needed = needed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, in ASCII where the encoding lacks a character of it."""
        with self._told_apart():
            try:
                return self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, PLAIN).decode(error.encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._told_apart():
            self._stream.flush()

    @contextlib.contextmanager
    def _told_apart(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._needed:
                raise LostOutput(error) from error


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Put an `Output` in the place of stdout and of stderr."""
    streams = sys.stdout, sys.stderr
    # Everything that prints takes these two for what they are not in type.
    outputs: tuple[Any, Any] = Output(streams[0], needed=True), Output(streams[1], needed=False)
    sys.stdout, sys.stderr = outputs
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def fill_closed() -> bool:
    """Open /dev/null where a standard stream is closed; return whether stdout is open.

    Else the next file to be opened, such as the ledger, would be taken for the stream by a worker.
    """
    open_one = sys.stdout is not None
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    return open_one


def forget_stdout() -> None:
    """Send what is still buffered to /dev/null, so that Python does not fail on it at its end."""
    with contextlib.suppress(OSError):  # a stream without a descriptor has nothing to flush late
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    shown = (
        _IN_ASCII.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking
    )
    return "".join(shown), error.end


codecs.register_error(PLAIN, _in_ascii)
