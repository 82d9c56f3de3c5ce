"""Rows of a benchmark that are kept in a file, so a run that was stopped goes on where it was."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@contextlib.contextmanager
def kept_rows(path: Path | None) -> Iterator[tuple[list[Row], Callable[[Row], None]]]:
    """Yield the rows that a file holds and what adds one to both; without a file, none is kept.

    A last line that was cut off is dropped.
    """
    rows: list[Row] = []
    whole = b""
    if path is not None and path.exists():
        whole = path.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]
        rows = [json.loads(line) for line in whole.splitlines()]
    with contextlib.ExitStack() as stack:
        file = None
        if path is not None:
            file = stack.enter_context(path.open("r+b" if path.exists() else "w+b"))
            file.truncate(len(whole))
            file.seek(len(whole))

        def keep(row: Row) -> None:
            rows.append(row)
            if file is not None:
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()

        yield rows, keep


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """End the body at Ctrl-C or SIGTERM, and go on behind it: what was measured is printed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
