"""A sweep: how many types train, the exceptions, and every type in Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from ratchet.base.json_value import Json
from ratchet.report import model as m
from ratchet.report.terminal import print_report

LONGEST_WHY = 110
PREFIX, SUFFIX = "AutoModelFor", "works"
COLUMNS = (
    m.name("type"),
    m.Column("objective", lambda row: row["head"].removeprefix(PREFIX), on="page"),
    m.Column("result", "status"),
    m.Column(
        "graph breaks",
        lambda row: str(row["breaks"]) if row["runs"].get("kernels") else "",
        on="page",
    ),
    m.Column("kernels", "installed", lambda counts: _counts(counts), on="page"),
    m.why("why", "why", lambda why: shortened(why)),
)
"""The columns of a type; the terminal lists the exceptions, with those that say why."""


def print_sweep(document: Mapping[str, Json], console: Console | None = None) -> None:
    """Print the result of `ratchet sweep`; `console` defaults to stdout."""
    counts = [(status, str(count)) for status, count in document["counts"].items()]
    exceptions = [row for row in document["rows"] if row["status"] != SUFFIX]
    left = (
        f"{len(document['left_out'])} types are left: the budget was over. Run the same command "
        "again to continue."
    )
    report = m.ResultReport(
        headline=sweep_headline(document),
        header=(m.Words(_where(document)),),
        sections=m.blocks(
            m.section("Results", m.grid(("result", "types"), counts)),
            m.section("Exceptions", m.ResultTable(COLUMNS, exceptions)),
            left if document["left_out"] else None,
            m.written(document["written"]),
        ),
    )
    print_report(report, console)


def _where(document: Mapping[str, Json]) -> str:
    quick = " · quick: Inductor's own code did not run" if document["quick"] else ""
    return f"{document['versions']} · {document['device']}{quick}"


def sweep_headline(document: Mapping[str, Json]) -> str:
    """Return the result in one sentence."""
    counts = document["counts"]
    trained = counts["works"] + counts["falls back"]
    written = sum(counts.values()) - counts["does not train as written"]
    if document["share"] is None:
        return "No type was tried that trains as written."
    return (
        f"{trained} of the {written} types that train as written train with Ratchet "
        f"({document['share']:.1%}), with equal losses."
    )


def sweep_markdown(document: Mapping[str, Json]) -> str:
    """Return every row as a Markdown table, with the counts above it."""
    lines = [
        f"{sweep_headline(document)} {_where(document)}.",
        "",
        "| result | types |",
        "|---|---|",
        *(f"| {status} | {count} |" for status, count in document["counts"].items()),
        "",
        f"| {' | '.join(column.title for column in COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(_cells(row))} |" for row in document["rows"]),
    ]
    return "\n".join(lines) + "\n"


def shortened(why: str) -> str:
    """Return the beginning of a long reason."""
    return why if len(why) <= LONGEST_WHY else f"{why[: LONGEST_WHY - 3]}..."


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kernel} {count}" for kernel, count in sorted(counts.items()))


def _cells(row: Mapping[str, Json]) -> list[str]:
    first, *rest = (m.text_of(column.cell(row)) for column in COLUMNS)
    return [f"`{first}`", *(cell.replace("|", "\\|").replace("<", "&lt;") for cell in rest)]
