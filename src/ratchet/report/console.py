"""The console and the tables of every terminal report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

LEAST_TEXT, BETWEEN = 10, 3
"""Minimum width of folded text; columns between two table columns."""


def make_console() -> Console:
    """Make a console on stdout that prints text verbatim, without markup or emoji."""
    return Console(markup=False, emoji=False, highlight=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedTable:
    """A table that never cuts a figure; it uses the first form that fits the terminal.

    The forms are: headings on one line, headings of figures on several lines, and one block for
    each row. Text cells fold.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int
    """Number of leading text columns; a last column named `why` is also text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        broken = tuple("\n".join(name.split()) for name in self.columns)
        for columns in (self.columns, broken):
            if self._least_width(columns) <= options.max_width:
                yield self._table(columns)
                return
        for row in self.rows:
            yield from self._block(row, options.max_width)

    def _is_text(self, index: int) -> bool:
        return index < self.left or self.columns[index] == "why"

    def _least_width(self, columns: Sequence[str]) -> int:
        """Return the width below which a figure would be cut or text fold to single letters."""
        widths = [
            max(cell_len(line) for cell in cells for line in cell.split("\n"))
            for cells in zip(columns, *self.rows, strict=True)
        ]
        needed = (
            min(width, LEAST_TEXT) if self._is_text(index) else width
            for index, width in enumerate(widths)
        )
        return sum(needed) + BETWEEN * (len(widths) - 1)

    def _table(self, columns: Sequence[str]) -> Table:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(columns))
        for index, name in enumerate(columns):
            if self._is_text(index):
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


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> FittedTable:
    """Make a table: the first `left` columns and a last one named `why` are text."""
    return FittedTable(columns=tuple(columns), rows=tuple(tuple(row) for row in rows), left=left)


def heading(console: Console, title: str) -> None:
    """Print a section's title after an empty line."""
    console.print()
    console.print(Text(title, style="bold"))


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
