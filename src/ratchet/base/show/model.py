"""A result described once: its words, facts, tables and figures, for every renderer.

A command's result is a `ResultReport` of sections. A table is its rows and `Column`s. `terminal`,
`page` and `records` show the same model on a terminal, as HTML and as JSON. `where_measured` is the
section of every page that says where its figures were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from ratchet.base import Json
from ratchet.base.show.words import ABSENT, plain, show_bytes

Medium = Literal["terminal", "page"]
On = Literal["both", "terminal", "page"]
Look = Literal["text", "name", "why", "number", "sum", "source"]
FIGURES = ("number", "sum")
"""Looks that are aligned to the right and never broken. The page sums each `sum` as it filters."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text with a look: `strong`, `code`, `yes`, `no`, `soft`, or a colour."""

    text: str
    look: str = ""
    full: str = ""  # The whole text, if `text` is short for it
    href: str = ""


Inline = str | Span | tuple["str | Span", ...]


def runs(content: Inline) -> tuple[Span, ...]:
    """Return the pieces of a text."""
    parts = content if isinstance(content, tuple) else (content,)
    return tuple(part if isinstance(part, Span) else Span(part) for part in parts)


def text_of(content: Inline) -> str:
    """Return a text without its looks."""
    return content if isinstance(content, str) else "".join(run.text for run in runs(content))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportBlock:
    """A part of a report, for one medium or for both."""

    on: On = "both"

    @property
    def kind(self) -> str:
        """Return the name of the page's macro."""
        return type(self).__name__.lower().removeprefix("report").removeprefix("result")


@dataclass(frozen=True, slots=True)
class Words(ReportBlock):
    """A paragraph; its look is that of the page: `note`, `soft`, `warning`."""

    text: Inline
    look: str = ""


@dataclass(frozen=True, slots=True)
class Facts(ReportBlock):
    rows: Sequence[tuple[str, Inline]]


@dataclass(frozen=True, slots=True)
class Lines(ReportBlock):
    """Lines to be copied: never wrapped, cut or coloured."""

    lines: Sequence[str]
    look: str = ""
    indent: int = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in large print, what it is, and a note; `look` is that of the figure."""

    large: Inline
    title: str
    note: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class Tiles(ReportBlock):
    """Figures at the top of a report."""

    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Figure(ReportBlock):
    """A drawing of the page: `macro` of figures.html draws `data`."""

    macro: str
    data: object
    label: str = ""
    look: str = ""
    on: On = field(default="page", kw_only=True)


@dataclass(frozen=True, slots=True)
class ReportSection(ReportBlock):
    """Blocks under a title; a section in a section has a smaller one."""

    title: str
    blocks: tuple[ReportBlock, ...]
    look: Literal["", "closed"] = ""  # Closed sections of the page open on a click


TableRow: TypeAlias = Any  # A row of a table: an object or a mapping, whose fields its columns name


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, the row's value, and how the value is shown.

    `of` is the row's field, or returns the value; it defaults to the title. Without a value a dash
    is shown.
    """

    title: str
    of: str | Callable[[TableRow], object] = ""
    show: Callable[[Any], Inline] = field(default=lambda value: _as_text(value))
    look: Look = field(default="text", kw_only=True)
    on: On = field(default="both", kw_only=True)
    note: str = field(default="", kw_only=True)
    href: str = field(default="", kw_only=True)  # What the title links to

    @property
    def key(self) -> str:
        """Return the name of the row's field."""
        return self.of if self.of and isinstance(self.of, str) else self.title

    def value(self, row: TableRow) -> object:
        """Return the row's value, as JSON has it."""
        if callable(self.of):
            return self.of(row)
        return row.get(self.key) if isinstance(row, Mapping) else getattr(row, self.key)

    def cell(self, row: TableRow) -> Inline:
        """Return the row's value as people read it."""
        value = self.value(row)
        return ABSENT if value is None else self.show(value)


def _as_text(value: object) -> Inline:
    return value if isinstance(value, str | Span | tuple) else str(value)


@dataclass(frozen=True, slots=True)
class ResultTable(ReportBlock):
    """Rows, and the columns that show them."""

    columns: Sequence[Column]
    rows: Sequence[TableRow]
    label: str = field(default="", kw_only=True)
    """The name for a screen reader; it defaults to the section's title."""
    look: str = field(default="", kw_only=True)
    sorts: bool = field(default=False, kw_only=True)  # The page's reader can sort and filter it
    marked: Callable[[TableRow], str] = field(default=lambda _: "", kw_only=True)
    """Returns the look of a row."""

    def shown(self, medium: Medium) -> list[Column]:
        return [column for column in self.columns if is_on(column, medium)]


def records(table: ResultTable) -> list[dict[str, object]]:
    """Return a table's rows for JSON: each column's raw value by the name of its field."""
    return [{one.key: one.value(row) for one in table.columns} for row in table.rows]


def is_on(one: ReportBlock | Column, medium: Medium) -> bool:
    return one.on in ("both", medium)


name = partial(Column, look="name")
number = partial(Column, look="number")  # Makes a column of figures
why = partial(Column, look="why")  # Makes a column of reasons, which may be long


def grid(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1, **more: Any
) -> ResultTable:
    """Make a table of texts: the first `left` columns and a last one `why` are words."""
    looks: list[Look] = ["text" if index < left else "number" for index in range(len(titles))]
    if titles[-1] == "why":
        looks[-1] = "why"
    columns = [
        Column(title, itemgetter(index), look=look)
        for index, (title, look) in enumerate(zip(titles, looks, strict=True))
    ]
    return ResultTable(columns, rows, **more)


Given = ReportBlock | str | None


def blocks(*given: Given) -> tuple[ReportBlock, ...]:
    """Return what is there; a text is a paragraph. A table without rows is left out."""
    found = (Words(one) if isinstance(one, str) else one for one in given if one)
    return tuple(one for one in found if not isinstance(one, ResultTable) or one.rows)


def section(title: str, *given: Given, on: On = "both", closed: bool = False) -> ReportSection:
    """Make a section of the blocks that are there."""
    return ReportSection(title, blocks(*given), "closed" if closed else "", on=on)


def note(text: Inline, *, on: On = "page") -> Words:
    """Explain something, on the page if nothing else is said."""
    return Words(text, "note", on=on)


def written(paths: Mapping[str, str] | Sequence[str]) -> ReportSection | None:
    """List the files that a command wrote, on the terminal."""
    listed = list(paths.values()) if isinstance(paths, Mapping) else list(paths)
    return section("Written", Lines(listed), on="terminal") if listed else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultReport:
    """A command's result: the answer in a sentence, what belongs to it, and the sections."""

    title: str = ""  # The name of the page's tab
    links: tuple[Span, ...] = ()  # To the other pages, where a page is one of several
    heading: str = ""
    headline: Inline = ""
    header: tuple[ReportBlock, ...] = ()
    sections: tuple[ReportBlock, ...] = ()
    reload_s: int | None = None
    """Seconds after which a page of a run that goes on loads itself again."""
    extras: Mapping[str, object] = field(default_factory=dict)
    """The head, the policy and the script of a page that has its own."""


WHERE = "Where this was measured"
Named = tuple[str, Inline]


def where_measured(
    device: Mapping[str, object],
    versions: Mapping[str, str],
    command: str,
    *,
    before: Iterable[Named] = (),
    after: Iterable[Named] = (),
) -> ReportSection:
    """Return the device and the software behind a result, with `before` and `after` the command."""
    software = [*before, *versions.items(), *after, ("command", Span(command, "code"))]
    return section(
        WHERE,
        section("Device", Facts(device_facts(device))),
        section("Software", Facts(software)),
        on="page",
    )


def device_facts(device: Mapping[str, object]) -> list[Named]:
    """Return every fact about a device, with sizes in their units."""
    return [
        (name.removesuffix("_bytes").replace("_", " "), _sizes(name, value))
        for name, value in device.items()
    ]


def _sizes(name: str, value: Json) -> str:
    if not name.endswith("_bytes"):
        return plain(value)
    sizes = value if isinstance(value, Mapping) else {"": value}
    return ", ".join(f"{part} {show_bytes(size)}" for part, size in sizes.items()).strip()


def facts_of(environment: Mapping[str, object]) -> list[Named]:
    return [(name.replace("_", " "), plain(value)) for name, value in environment.items()]
