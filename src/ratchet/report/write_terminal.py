"""Print a writing run on the terminal, and show its progress."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console

from ratchet.authors.files import untimed
from ratchet.authors.result import WritingResult
from ratchet.authors.run import RunEvent
from ratchet.authors.shares import WorkloadWriting
from ratchet.report.console import heading, make_console, table, verbatim
from ratchet.report.progress import BudgetLine
from ratchet.report.static_table import print_static
from ratchet.report.verdict_words import (
    measured_speedups,
    recalled_words,
    show_confidence,
    show_speedup,
    show_status,
)
from ratchet.report.words import show_ratio, show_time
from ratchet.report.write_words import ESTIMATE, UNTIMED, author_words, headline, stop_words


def print_writing(
    result: WritingResult, paths: Mapping[str, str], console: Console | None = None
) -> None:
    """Print the result of `ratchet write PROBLEM`; the console defaults to stdout."""
    out = console or make_console()
    out.print(headline(result))
    out.print(stop_words(result))
    for note in result.notes:
        out.print(note[:1].upper() + note[1:])
    if result.best is not None:
        heading(out, "Verdict")
        for title, ratio in measured_speedups(result.best.verdict):
            out.print(f"against {title}: {show_speedup(ratio)}, {show_confidence(ratio)}")
        out.print(f"{result.best.reason}")
        out.print(f"{result.best.name}, {result.best.language}, by {result.best.author}")
        if result.best.recalled:
            out.print(recalled_words(result.best.judged_at))
        if untimed(result.best):
            out.print(UNTIMED)
            print_static(out, result.static)
    if result.stopped != "recalled":
        heading(out, "Authors")
        out.print(table(("author", "proposals", "right", "why"), author_words(result)))
        out.print()
        out.print(ESTIMATE)
    heading(out, "Written")
    verbatim(out, (f"    {path}" for path in paths.values()))


def print_workload(
    result: WorkloadWriting, paths: Mapping[str, str], console: Console | None = None
) -> None:
    """Print the result of `ratchet write --from WORKLOAD`; the console defaults to stdout."""
    out = console or make_console()
    proven = [row for row in result.rows if row.status == "proven"]
    out.print(
        f"{len(proven)} of {len(result.rows)} regions of {result.workload} have a proven kernel"
    )
    out.print(f"{show_time(result.spent_s)} of {show_time(result.budget_s)}")
    heading(out, "Regions")
    rows = [
        (
            row.problem,
            show_status(row.status),
            show_ratio(row.ratio),
            show_time(row.gain_s),
            str(row.screened),
            f"from the ledger: {row.reason}" if row.recalled else row.reason,
        )
        for row in result.rows
        if row.status != "not_reached"
    ]
    columns = ("region", "verdict", "vs eager", "a step may gain", "screened", "why")
    out.print(table(columns, rows, left=2))
    left = len(result.rows) - len(rows)
    if left:
        out.print(f"The budget ended before {left} more regions: raise --budget, or run it again.")
    heading(out, "Written")
    verbatim(out, (f"    {path}" for path in paths.values()))


class WriteProgress(BudgetLine):
    """A moving line on stderr: what the run does, and how much of its budget is spent.

    In a pipe or a file, each verdict and each change of the best estimate is one plain line.
    """

    _best = 0.0
    _problem = ""

    def begin(self, problem: str) -> None:
        """Show which problem comes now."""
        self._problem, self._best = problem, 0.0

    def show(self, event: RunEvent) -> None:
        """Show one event."""
        best = event.best_ratio or 0.0
        lines: list[str] = []
        if event.kind == "dropped":
            lines.append(f"goes on without {event.detail}")
        elif event.kind == "judged":
            lines.append(f"verdict on {event.detail}")
        elif best > self._best * 1.01:
            self._best = best
            lines.append(f"best estimate {show_ratio(best)} after {event.screened} kernels")
        for line in lines:
            self._line(f"{self._problem}: {line}" if self._problem else line)
        self.spend(self._doing(event))

    def _doing(self, event: RunEvent) -> str:
        so_far = f"{event.screened} screened"
        if event.best_ratio:
            so_far += f", best estimate {show_ratio(event.best_ratio)}"
        return f"{self._problem}: {event.kind} {event.detail} ({so_far})".removeprefix(": ")

    def _line(self, words: str) -> None:
        if self._bar is not None:
            self._bar.console.print(words)
            return
        spent = f"[{time.monotonic() - self._began_s:5.0f} s]"
        print(f"{spent} {words}", file=self._console.file, flush=True)
