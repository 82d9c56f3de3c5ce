"""Progress on stderr: a moving line on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ratchet.base.show.words import show_time


class MovingLine:
    """A context with a line that moves: `_bar` on a terminal, None in a pipe or a file."""

    def __init__(
        self, words: str, total: float, *columns: ProgressColumn, console: Console | None
    ) -> None:
        self._console = console or Console(
            file=sys.stderr, markup=False, emoji=False, highlight=False
        )
        self._first, self._total, self._columns = words, total, columns
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = Progress(
                TimeElapsedColumn(),
                *self._columns,
                TextColumn("{task.description}", markup=False),
                console=self._console,
                transient=True,
                # The arms being timed need the cores more than this line does.
                refresh_per_second=1,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.add_task(self._first, total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def keep(self, words: str, *, piped: str | None = None) -> None:
        """Print a line that stays; `piped` is that of a pipe or a file, if it differs."""
        if self._bar is not None:
            self._bar.console.print(words)
        else:
            print(words if piped is None else piped, file=self._console.file, flush=True)

    def move(self, words: str, completed: float | None = None) -> None:
        """Show what is being done, and how far it is; a pipe gets nothing."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=words, completed=completed)


class BudgetLine(MovingLine):
    """A line that also shows how much of a budget is spent."""

    def __init__(self, budget_s: float, *, console: Console | None = None) -> None:
        budget = TextColumn(f"of {show_time(budget_s)}", markup=False)
        super().__init__("starting", budget_s, budget, BarColumn(bar_width=16), console=console)
        self._budget_s, self._began_s = budget_s, time.monotonic()

    def spend(self, words: str) -> None:
        """Show what is being done; a pipe gets nothing."""
        self.move(words, min(time.monotonic() - self._began_s, self._budget_s))


class RunProgress(MovingLine):
    """A progress line for a suite of commands; silent when piped."""

    def __init__(self, runs: Mapping[str, int], *, console: Console | None = None) -> None:
        """`runs` are the pairs or runs of each benchmark."""
        total = sum(runs.values())
        super().__init__("starting", total, BarColumn(bar_width=24), console=console)
        self._runs, self._done = runs, dict.fromkeys(runs, 0)

    def ran(self, name: str, runs: int) -> None:
        """Show how far a benchmark is, or what is built."""
        if name not in self._runs:
            self.move(name)
            return
        self._done[name] = runs
        self.move(f"{name}: {runs} of {self._runs[name]} done", sum(self._done.values()))


class CompareProgress(MovingLine):
    """A progress line of unknown length; silent when piped."""

    def __init__(self) -> None:
        super().__init__("starting", 1, SpinnerColumn(), console=None)
