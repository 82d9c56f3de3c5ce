"""Signals that end a command: they unwind it as an interrupt does, so that nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals of `timeout`, a CI runner and a closed terminal."""
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
