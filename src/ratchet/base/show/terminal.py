"""The renderer of a report for a terminal, and progress on stderr.

No figure is cut, and no line to be copied is broken. Progress is a moving line on a terminal, and
plain lines when piped.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from ratchet.base.show.model import (
    FIGURES,
    Facts,
    Lines,
    ReportBlock,
    ReportSection,
    ResultReport,
    ResultTable,
    Tiles,
    Words,
    grid,
    is_on,
    text_of,
)
from ratchet.base.show.words import show_time

LEAST_TEXT, BETWEEN = 10, 3  # Minimum width of folded text; columns between two table columns


def make_console() -> Console:
    """Make a console on stdout that prints text verbatim, without markup or emoji."""
    return Console(markup=False, emoji=False, highlight=False)


def print_report(report: ResultReport, console: Console | None = None) -> None:
    out = console or make_console()
    if report.headline:
        out.print(Text(text_of(report.headline)))
    print_blocks(report.header, out)
    print_blocks(report.sections, out)


def print_blocks(blocks: Iterable[ReportBlock], out: Console) -> None:
    """Print those of the blocks that a terminal shows."""
    for block in blocks:
        if is_on(block, "terminal"):
            _print(block, out)


def _print(block: ReportBlock, out: Console) -> None:
    match block:
        case Words(text=text, look=look):
            out.print(Text({"warning": "warning: "}.get(look, "") + text_of(text)))
        case Facts(rows=rows):
            out.print(FittedTable.of(grid(("", ""), rows, left=2)))
        case Lines(lines=lines, indent=indent):
            verbatim(out, (" " * indent + line for line in lines))
        case Tiles(tiles=tiles):
            cells = tuple((one.title, text_of(one.large), one.note) for one in tiles)
            out.print(FittedTable(columns=("", "", ""), rows=cells, texts=(True, False, True)))
        case ResultTable():
            out.print(FittedTable.of(block))
        case ReportSection(title=title, blocks=inner):
            if any(is_on(one, "terminal") for one in inner):
                out.print()
                out.print(Text(title, style="bold"))
                print_blocks(inner, out)
        case _:
            raise AssertionError(f"a terminal does not show a {block.kind}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedTable:
    """A table that never cuts a figure; it uses the first form that fits the terminal.

    The forms are: headings on one line, headings of figures on several lines, and one block for
    each row. Text cells fold.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[bool, ...]  # True for each column of text, False for figures

    @classmethod
    def of(cls, table: ResultTable) -> FittedTable:
        """Return what a terminal shows of a table."""
        columns = table.shown("terminal")
        return cls(
            columns=tuple(column.title for column in columns),
            rows=tuple(
                tuple(text_of(column.cell(row)) for column in columns) for row in table.rows
            ),
            texts=tuple(column.look not in FIGURES for column in columns),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        broken = tuple("\n".join(name.split()) for name in self.columns)
        for columns in (self.columns, broken):
            if self._least_width(columns) <= options.max_width:
                yield self._table(columns)
                return
        for row in self.rows:
            yield from self._block(row, options.max_width)

    def _least_width(self, columns: Sequence[str]) -> int:
        """Return the width below which a figure would be cut or text fold to single letters."""
        widths = [
            max(cell_len(line) for cell in cells for line in cell.split("\n"))
            for cells in zip(columns, *self.rows, strict=True)
        ]
        needed = (
            min(width, LEAST_TEXT) if is_text else width
            for width, is_text in zip(widths, self.texts, strict=True)
        )
        return sum(needed) + BETWEEN * (len(widths) - 1)

    def _table(self, columns: Sequence[str]) -> RichTable:
        made = RichTable(
            box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(columns)
        )
        for name, is_text in zip(columns, self.texts, strict=True):
            if is_text:
                made.add_column(name.replace("\n", " "), overflow="fold")
            else:
                made.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            made.add_row(*(Text(cell) for cell in row))
        return made

    def _block(self, row: Sequence[str], most: int) -> Iterator[Text]:
        """Yield the row's title, then a line for each other cell that is not empty."""
        title, *cells = row
        named = [(n, cell) for n, cell in zip(self.columns[1:], cells, strict=True) if cell]
        width = max((cell_len(name) for name, _ in named), default=0)
        if any(width + cell_len(cell) + 4 > most for _, cell in named):
            width = 0
        yield Text(title, overflow="fold")
        for name, cell in named:
            yield Text(f"  {name:<{width}}  {cell}" if name else f"  {cell}", overflow="fold")


def verbatim(console: Console, lines: Iterable[str]) -> None:
    """Print lines to be copied: never wrapped, cut or coloured."""
    for line in lines:
        console.print(Text(line), soft_wrap=True)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal's stderr what is running; stay silent when piped."""
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with console.status(Text(what)) if console.is_terminal else contextlib.nullcontext():
        yield


class MovingLine:
    """A context with a line that moves: `_bar` on a terminal, None in a pipe or a file."""

    def __init__(
        self, words: str, total: float, *columns: ProgressColumn, console: Console | None = None
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
        """`runs` are the pairs or runs of each benchmark, as far as one knows before."""
        total = sum(runs.values())
        super().__init__("starting", total, BarColumn(bar_width=24), console=console)
        self._runs, self._done = runs, dict.fromkeys(runs, 0)

    def ran(self, name: str, runs: int) -> None:
        """Show how far a benchmark is, or what is built."""
        if name not in self._runs:
            self.move(name)
            return
        self._done[name] = runs
        planned = self._runs[name]
        of = f" of {planned}" if runs <= planned else ", undecided so far,"
        self.move(f"{name}: {runs}{of} done", sum(self._done.values()))
