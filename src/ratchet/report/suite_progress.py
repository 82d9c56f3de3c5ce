"""Show a suite's progress: a bar on a terminal, one plain line per problem when piped."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ratchet.report.suite_table import row_words


class SuiteProgress:
    """A progress line on stderr below each problem's verdict; a pipe gets only the verdicts."""

    def __init__(self, problems: int, *, console: Console | None = None) -> None:
        self._console = console or Console(
            file=sys.stderr, markup=False, emoji=False, highlight=False
        )
        self._problems = problems
        self._done = 0
        self._bar: Progress | None = None

    def __enter__(self) -> SuiteProgress:
        if self._console.is_terminal:
            self._bar = Progress(
                TimeElapsedColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.description}", markup=False),
                console=self._console,
                transient=True,
                refresh_per_second=1,  # the kernels being timed need the cores more
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.add_task(self._words(), total=self._problems)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def show(self, row: Mapping[str, Any]) -> None:
        """Show that one problem is done; `row` is its row as plain data."""
        self._done += 1
        if self._bar is None:
            words = f"{self._words()}: {row_words(row)}"
            print(words, file=self._console.file, flush=True)
            return
        self._bar.update(self._bar.tasks[0].id, completed=self._done, description=self._words())
        self._bar.console.print(row_words(row))

    def _words(self) -> str:
        return f"{self._done} of {self._problems} problems"
