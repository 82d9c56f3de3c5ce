"""A command's process: its standard streams, and the signals that end it.

A character that the terminal's encoding lacks is written in ASCII. If stdout fails, the command
stops with `LostOutput`. If stderr fails, the command continues in silence. A signal unwinds the
command as an interrupt does, so that nothing is left behind.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO

PLAIN = "ratchet-plain"
_IN_ASCII = {"·": "-", "×": "x", "µ": "u", "…": "...", "–": "-", "—": "-", "→": "->"}
_IN_ASCII |= {"─": "-", "━": "-", "│": "|", "┃": "|", "█": "#", "≤": "<=", "≥": ">=", "²": "^2"}


class LostOutput(Exception):
    """A failed write to stdout; `number` is the system's errno."""

    def __init__(self, error: OSError) -> None:
        self.number = error.errno
        super().__init__(error.strerror or str(error))


class StandardStream:
    """A wrapper around stdout or stderr; only writing and flushing differ."""

    def __init__(self, stream: TextIO, *, needed: bool) -> None:
        self._stream = stream
        self._needed = needed
        self.has_written = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, and replace characters that the encoding lacks with ASCII."""
        self.has_written = self.has_written or bool(text)
        with self._told_apart():
            try:
                return self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, PLAIN).decode(error.encoding))
        return len(text)

    def flush(self) -> None:
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
    """Replace stdout and stderr with a `StandardStream` each."""
    streams = sys.stdout, sys.stderr
    # Any, since a StandardStream is not a TextIO to the type checker.
    made: list[Any] = [StandardStream(one, needed=one is streams[0]) for one in streams]
    sys.stdout, sys.stderr = made
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


_kept: list[TextIO] = []  # Stdout, while what is printed goes to stderr


@contextlib.contextmanager
def kept_for_the_document() -> Iterator[None]:
    """Keep stdout for the one document of `--json`: what a user's code prints goes to stderr."""
    _kept.append(sys.stdout)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = _kept.pop()


def document_stream() -> TextIO:
    """Return the stdout that the command was started with."""
    return _kept[-1] if _kept else sys.stdout


def has_written() -> bool:
    """Return whether the command has printed something on its stdout."""
    return bool(getattr(document_stream(), "has_written", False))


def fill_closed() -> bool:
    """Open /dev/null for each closed standard stream; return whether stdout was open.

    Otherwise the next opened file, such as the ledger, would get the stream's number, and a worker
    would write to it.
    """
    open_one = sys.stdout is not None
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    return open_one


def forget_stdout() -> None:
    """Send buffered output to /dev/null, so that Python does not fail on it at exit."""
    with contextlib.suppress(OSError):  # a stream without a descriptor flushes nothing at exit
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


ENDING = (signal.SIGTERM, signal.SIGHUP)  # Signals of `timeout`, a CI runner and a closed terminal
SAME_S = 2.0
"""A second signal this soon is the first one again: `timeout` sends its own to the process and to
its group. It must not cut the tidying short."""


class EndedBySignal(KeyboardInterrupt):
    """A signal asks this process to end. What keeps its results at an interrupt keeps them now."""


class Ending:
    """The first signal that asked this command to end, if one did."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None
        self._at_s = 0.0
        self._owner = os.getpid()

    def take(self, number: int, _: FrameType | None) -> None:
        """Raise in the main thread; a fork that inherited this handler just dies."""
        if os.getpid() != self._owner:
            os._exit(128 + number)
        if self.by is not None and time.monotonic() - self._at_s < SAME_S:
            return
        self.by, self._at_s = signal.Signals(number), time.monotonic()
        raise EndedBySignal

    def code(self, otherwise: int) -> int:
        """Return the exit code: 128 + the signal's number if there was one, as a shell does."""
        return otherwise if self.by is None else 128 + self.by


@contextlib.contextmanager
def ending_by_signal() -> Iterator[Ending]:
    """Let the signals that end a process unwind it, those that are not ignored (`nohup`)."""
    ending = Ending()
    before = {}
    if threading.current_thread() is threading.main_thread():
        ours = [one for one in ENDING if signal.getsignal(one) is signal.SIG_DFL]
        before = {one: signal.signal(one, ending.take) for one in ours}
    try:
        yield ending
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
