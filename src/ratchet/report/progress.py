"""Show progress on stderr: a moving line on a terminal, one plain line per stage when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ratchet.base.json_value import Json
from ratchet.report.comparisons import DECIDED
from ratchet.report.suite import row_words
from ratchet.report.sweep import shortened
from ratchet.report.words import show_ratio, show_time

if TYPE_CHECKING:
    from ratchet.authors.problem_run import RunEvent
    from ratchet.court.score import SuiteRow
    from ratchet.guard.sweep.row import TypeRow


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


class SuiteProgress(MovingLine):
    """A progress line below each problem's verdict; a pipe gets only the verdicts."""

    def __init__(self, problems: int, *, console: Console | None = None) -> None:
        self._problems = problems
        self._done = 0
        super().__init__(self._words(), problems, BarColumn(bar_width=24), console=console)

    def show(self, row: SuiteRow) -> None:
        """Show that one problem is done."""
        self._done += 1
        self.move(self._words(), self._done)
        self.keep(row_words(row), piped=f"{self._words()}: {row_words(row)}")

    def _words(self) -> str:
        return f"{self._done} of {self._problems} problems"


class TurnProgress(BudgetLine):
    """Reports what a turn is doing and how much of its budget is spent.

    It is a turn's listener: call it with an event's name and details. On a terminal, the results of
    screenings and verdicts stay above one moving line. In a pipe or a file, every stage is one
    plain line with the seconds since the start. The first line is held until the second, so that an
    immediate failure prints only its own line.
    """

    def __init__(self, budget_s: float, *, console: Console | None = None) -> None:
        super().__init__(budget_s, console=console)
        self._launch = 0
        self._rounds = 0
        self._said = ""
        self._held: str | None = ""

    def __call__(self, event: str, details: dict[str, Json]) -> None:
        """Show one event; an event without words of its own shows its name."""
        if event == "proof":
            self._launch, self._rounds = int(details["launch"]), int(details["rounds"])
        if self._bar is None:
            if event != "trial":
                self._say(_done(event, details) or self._doing(event, details))
            return
        self.spend(self._doing(event, details))
        done = _done(event, details)
        if done:
            self._bar.console.print(done)

    def _say(self, words: str) -> None:
        if words != self._said:
            self._said = words
            line = f"[{time.monotonic() - self._began_s:5.0f} s] {words}\n"
            if self._held == "":
                self._held = line
                return
            print((self._held or "") + line, file=self._console.file, end="", flush=True)
            self._held = None

    def _doing(self, event: str, details: dict[str, Json]) -> str:
        title = str(details.get("title", ""))
        if event == "trial":
            return self._trial(details)
        return {
            "start": f"starting {title}",
            "looking": f"looking for {title}",
            "profile": f"profiling {title}",
            "screened": f"screened {title}",
            "judging": f"judging kernel {details.get('kernel', '')}",
            "judged": f"judged kernel {details.get('kernel', '')}",
            "writing": f"writing a kernel for {details.get('problem', '')}",
            "written": f"wrote a kernel for {details.get('problem', '')}",
            "losses": f"200 steps of {title}, seed {details.get('seed', '')}",
            "proof": f"final run, launch {self._launch + 1}",
        }.get(event, event)

    def _trial(self, details: dict[str, Json]) -> str:
        launch = f"final run, launch {self._launch + 1}"
        if details.get("kind") == "round":
            return f"{launch}, round {int(details.get('round', 0)) + 1} of {self._rounds}"
        return f"{launch}, {details.get('kind', '')} {details.get('arm', '')}"


def _done(event: str, details: dict[str, Json]) -> str:
    """Return the line that stays, for a verdict or a screening; empty for other events."""
    if event == "warning":
        return f"warning: {details['text']}"
    if event == "judged":
        return f"kernel {details['kernel']}: {details['status']}"
    if event == "proven":
        return f"proven: {details['title']}, {show_ratio(float(details['ratio']))}"
    if event == "written":
        return f"region {details['problem']}: {details['status']}"
    if event == "screened" and details.get("ratio"):
        ratio = show_ratio(float(details["ratio"]))
        clear = details.get("answer", "faster") in DECIDED
        return f"{details['title']}: {ratio if clear else f'no clear difference ({ratio})'}"
    return ""


class PairProgress(MovingLine):
    """A progress line for a bisection; silent when piped."""

    def __init__(self, commits: int, *, console: Console | None = None) -> None:
        super().__init__(f"{commits} commits: the endpoints", 1.0, BarColumn(), console=console)

        self._so_far = f"{commits} commits"

    def measured(self, phase: str, pairs: int, best: float) -> None:
        """Show a measured pair, and how sure the search is."""
        self._so_far = f"{phase}: {pairs} pairs, the best commit {best:.0%}"
        self.move(self._so_far, best)

    def working(self, words: str) -> None:
        """Show which commit is built or run."""
        self.move(f"{self._so_far}; {words}")


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


class SweepLine(MovingLine):
    """A progress line below each type's result; a pipe gets only the results."""

    def __init__(self, *, console: Console | None = None) -> None:
        super().__init__("starting", 0, BarColumn(bar_width=24), console=console)
        self._done = 0

    def show(self, row: TypeRow, left: int) -> None:
        """Show one type's row, and how many types are left."""
        self._done += 1
        said = f"{row.type}: {row.status}{f' ({shortened(row.why)})' if row.why else ''}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], total=self._done + left)
        self.move(f"{left} types left", self._done)
        self.keep(said, piped=f"{said}, {left} left")


class CompareProgress(MovingLine):
    """A progress line of unknown length; silent when piped."""

    def __init__(self) -> None:
        super().__init__("starting", 1, SpinnerColumn(), console=None)


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
            said = f"{self._problem}: {line}" if self._problem else line
            self.keep(said, piped=f"[{time.monotonic() - self._began_s:5.0f} s] {said}")
        self.spend(self._doing(event))

    def _doing(self, event: RunEvent) -> str:
        so_far = f"{event.screened} screened"
        if event.best_ratio:
            so_far += f", best estimate {show_ratio(event.best_ratio)}"
        return f"{self._problem}: {event.kind} {event.detail} ({so_far})".removeprefix(": ")


class StageProgress:
    """Tells of the steps of a stage of learning on a terminal, every few seconds."""

    EVERY_S = 2.0
    SHOWN = ("loss", "reward", "held_out_loss", "forgetting")

    def __init__(self, what: str, steps: int) -> None:
        """`what` is trained: a stage, and the size of its model."""
        self._what, self._steps, self._last_s = what, steps, 0.0

    def show(self, row: Mapping[str, float | str]) -> bool:
        """Show a step; return False if the last one was shown a moment ago."""
        if time.monotonic() - self._last_s < self.EVERY_S:
            return False
        self._last_s = time.monotonic()
        if sys.stderr.isatty():
            shown = ", ".join(
                f"{name} {float(row[name]):.3f}" for name in self.SHOWN if name in row
            )
            at = f"step {int(float(row['step'])) + 1} of {self._steps}"
            print(f"{self._what}, {at}: {shown}", file=sys.stderr)
        return True
