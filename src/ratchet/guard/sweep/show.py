"""A sweep: how many types train, the exceptions, and every type in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn

from ratchet.base.show import model as m
from ratchet.base.show.terminal import MovingLine

if TYPE_CHECKING:
    from ratchet.guard.sweep.model_types import SweepResult
    from ratchet.guard.sweep.row import TypeRow

LONGEST_WHY = 110
PREFIX, SUFFIX = "AutoModelFor", "works"
COLUMNS = (
    m.name("type"),
    m.Column("objective", lambda row: row.head.removeprefix(PREFIX), on="page"),
    m.Column("result", "status"),
    m.Column(
        "graph breaks",
        lambda row: str(row.breaks) if row.runs.get("kernels") else "",
        on="page",
    ),
    m.Column("kernels", "installed", lambda counts: _counts(counts), on="page"),
    m.why("why", "why", lambda why: shortened(why)),
)
"""The columns of a type; the terminal lists the exceptions, with those that say why."""


def sweep_report(result: SweepResult, written: Sequence[str]) -> m.ResultReport:
    """Describe the result of `ratchet sweep`, and the files that it wrote."""
    counts = [(status, str(count)) for status, count in result.counts.items()]
    exceptions = [row for row in result.rows if row.status != SUFFIX]
    left = (
        f"{len(result.left_out)} types are left: the budget was over. Run the same command again "
        "to continue."
    )
    return m.ResultReport(
        headline=sweep_headline(result),
        header=(m.Words(_where(result)),),
        sections=m.blocks(
            m.section("Results", m.grid(("result", "types"), counts)),
            m.section("Exceptions", m.ResultTable(COLUMNS, exceptions)),
            left if result.left_out else None,
            m.written(written),
        ),
    )


def _where(result: SweepResult) -> str:
    quick = " · quick: Inductor's own code did not run" if result.quick else ""
    return f"{result.versions} · {result.device}{quick}"


def sweep_headline(result: SweepResult) -> str:
    counts = result.counts
    trained = counts["works"] + counts["falls back"]
    written = sum(counts.values()) - counts["does not train as written"]
    if result.share is None:
        return "No type was tried that trains as written."
    return (
        f"{trained} of the {written} types that train as written train with Ratchet "
        f"({result.share:.1%}), with equal losses."
    )


def sweep_markdown(result: SweepResult) -> str:
    """Return every row as a Markdown table, with the counts above it."""
    lines = [
        f"{sweep_headline(result)} {_where(result)}.",
        "",
        "| result | types |",
        "|---|---|",
        *(f"| {status} | {count} |" for status, count in result.counts.items()),
        "",
        f"| {' | '.join(column.title for column in COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(_cells(row))} |" for row in result.rows),
    ]
    return "\n".join(lines) + "\n"


def shortened(why: str) -> str:
    """Return the beginning of a long reason."""
    return why if len(why) <= LONGEST_WHY else f"{why[: LONGEST_WHY - 3]}..."


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kernel} {count}" for kernel, count in sorted(counts.items()))


def _cells(row: TypeRow) -> list[str]:
    first, *rest = (m.text_of(column.cell(row)) for column in COLUMNS)
    return [f"`{first}`", *(cell.replace("|", "\\|").replace("<", "&lt;") for cell in rest)]


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
