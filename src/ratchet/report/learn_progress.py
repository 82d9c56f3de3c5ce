"""Show a learning run on stderr: a moving line on a terminal, few plain lines when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, TextColumn

from ratchet.report.progress import MovingLine
from ratchet.report.words import show_time

EVERY_S = 2.0


class LearnProgress(MovingLine):
    """The loop's line: what it does, and how much of its budget is spent."""

    def __init__(self, budget_s: float, *, console: Console | None = None) -> None:
        budget = TextColumn(f"of {show_time(budget_s)}", markup=False)
        super().__init__("starting", budget_s, budget, BarColumn(bar_width=16), console=console)
        self._budget_s, self._began_s = budget_s, time.monotonic()

    def show(self, words: str) -> None:
        """Show what is being done; a pipe gets nothing."""
        if self._bar is not None:
            task = self._bar.tasks[0]
            spent_s = min(time.monotonic() - self._began_s, self._budget_s)
            self._bar.update(task.id, description=words, completed=spent_s)


def told(stage: str, steps: int) -> Callable[[Mapping[str, float | str]], bool]:
    """Return what tells of a step on a terminal; it returns whether it was time to."""
    last = 0.0

    def tell(row: Mapping[str, float | str]) -> bool:
        nonlocal last
        if time.monotonic() - last < EVERY_S:
            return False
        last = time.monotonic()
        if sys.stderr.isatty():
            shown = ", ".join(
                f"{name} {float(row[name]):.3f}"
                for name in ("loss", "reward", "held_out_loss", "forgetting")
                if name in row
            )
            print(
                f"{stage}, step {int(float(row['step'])) + 1} of {steps}: {shown}", file=sys.stderr
            )
        return True

    return tell
