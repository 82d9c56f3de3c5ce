"""The console and the tables of every terminal report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

_READABLE = 12
"""Letters of a text's column below which it is a column of syllables."""


class FigureTable(Table):
    """A table whose figures are never cut: where they do not fit, each row becomes a few lines."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least(console, options) <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from (self._lines(row) for row in range(self.row_count))

    def _least(self, console: Console, options: ConsoleOptions) -> int:
        """The width that leaves every figure whole, and the texts folded but readable."""
        if not any(column.no_wrap for column in self.columns):
            return 0
        widest = [_widest(column, header=self.show_header) for column in self.columns]
        unbound = options.update(max_width=sum(widest) + 10 * len(widest))
        around = Measurement.get(console, unbound, self).maximum - sum(widest)
        needed = (
            width if column.no_wrap else min(width, _READABLE)
            for column, width in zip(self.columns, widest, strict=True)
        )
        return around + sum(needed)

    def _lines(self, row: int) -> Group:
        """The row's first text, then a line for each of its other cells that is not empty."""
        first, *others = ((str(column.header), list(column.cells)[row]) for column in self.columns)
        width = max(cell_len(name) for name, _ in others)
        lines = [Text(f"{name:<{width}}  {cell}") for name, cell in others if str(cell)]
        inside = (Padding(line, (0, 0, 0, 2), expand=False) for line in lines)
        return Group(Text(str(first[1]), overflow="fold"), *inside)


def _widest(column: Column, *, header: bool) -> int:
    texts = [str(cell) for cell in column.cells] + [str(column.header)] * header
    return max(map(cell_len, texts), default=0)


def make_console() -> Console:
    """A console on stdout that prints what it is given: a name holds no markup, and no emoji."""
    return Console(markup=False, emoji=False, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table whose first `left` columns (and a last one named `why`) are text, the rest numbers.

    Numbers never wrap and are never cut; texts fold. Where that leaves the texts no room, a row
    becomes a few lines.
    """
    made = FigureTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(columns)
    )
    for index, name in enumerate(columns):
        if index < left or name == "why":
            made.add_column(name, overflow="fold")
        else:
            made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def heading(console: Console, title: str) -> None:
    """A section's title, after an empty line."""
    console.print()
    console.print(Text(title, style="bold"))


def verbatim(console: Console, lines: Iterable[str]) -> None:
    """Lines to be copied: never wrapped, cut or coloured."""
    for line in lines:
        console.print(Text(line), soft_wrap=True)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Says on a terminal's stderr what takes its time; silent when piped."""
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with console.status(Text(what)) if console.is_terminal else contextlib.nullcontext():
        yield
