"""The console and the tables of every terminal report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def make_console() -> Console:
    """A console on stdout that prints what it is given: a name holds no markup, and no emoji."""
    return Console(markup=False, emoji=False, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table whose first `left` columns (and a last one named `why`) are text, the rest numbers.

    Numbers never wrap; texts fold, so that nothing is cut off on a narrow terminal.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(columns))
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
