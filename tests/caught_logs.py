"""What is logged while a test runs, for the tests that ask.

pytest's own plugin does it for all of them: it attaches a handler to each of torch's loggers before
and after every part of a test, which takes a millisecond and a half a test.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

TRACES = "torch.__trace"
"""Torch's log for tools, which writes documents about each graph once somebody listens."""


class CaughtLogs(logging.Handler):
    """Keeps records, and answers as pytest's LogCaptureFixture does."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.levels: dict[logging.Logger, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [one.getMessage() for one in self.records]

    @property
    def text(self) -> str:
        form = logging.Formatter("%(levelname)s %(name)s: %(message)s")
        return "".join(f"{form.format(one)}\n" for one in self.records)

    def set_level(self, level: int, logger: str | None = None) -> None:
        """Let a logger tell what has this level, until the test ends."""
        told = logging.getLogger(logger)
        self.levels.setdefault(told, told.level)
        told.setLevel(level)

    @contextlib.contextmanager
    def at_level(self, level: int, logger: str | None = None) -> Iterator[None]:
        told = logging.getLogger(logger)
        before = told.level
        told.setLevel(level)
        try:
            yield
        finally:
            told.setLevel(before)

    @contextlib.contextmanager
    def attached(self) -> Iterator[CaughtLogs]:
        """Be a handler of the root, and of each logger that passes nothing on to it."""
        every = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
        heard = [one for one in every if isinstance(one, logging.Logger)]
        heard = [one for one in heard if one is logging.getLogger() or not one.propagate]
        heard = [one for one in heard if one.name != TRACES]
        for one in heard:
            one.addHandler(self)
        try:
            yield self
        finally:
            for one in heard:
                one.removeHandler(self)
            for one, level in self.levels.items():
                one.setLevel(level)
