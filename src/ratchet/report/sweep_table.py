"""The tables of a sweep: how many types train, the exceptions, and every type in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ratchet.report.console import heading, make_console, table, verbatim

LONGEST_WHY = 110
PREFIX, SUFFIX = "AutoModelFor", "works"
COLUMNS = ("type", "objective", "result", "graph breaks", "kernels", "why")


def print_sweep(document: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of `ratchet sweep`; the console defaults to stdout."""
    out = console or make_console()
    out.print(sweep_headline(document))
    out.print(f"{document['versions']} · {document['device']}{how_quick(document)}")
    out.print()
    out.print(table(("result", "types"), [(k, str(n)) for k, n in document["counts"].items()]))
    exceptions = [row for row in document["rows"] if row["status"] != "works"]
    if exceptions:
        heading(out, "Exceptions")
        shown = [(row["type"], row["status"], shortened(row["why"])) for row in exceptions]
        out.print(table(("type", "result", "why"), shown, left=2))
    if document["left_out"]:
        out.print()
        out.print(
            f"{len(document['left_out'])} types are left: the budget was over. Run the same "
            "command again to continue."
        )
    heading(out, "Written")
    verbatim(out, (f"    {path}" for path in document["written"]))


def sweep_headline(document: Mapping[str, Any]) -> str:
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


def how_quick(document: Mapping[str, Any]) -> str:
    """Return what a quick sweep leaves out."""
    return " · quick: Inductor's own code did not run" if document["quick"] else ""


def sweep_markdown(document: Mapping[str, Any]) -> str:
    """Return every row as a Markdown table, with the counts above it."""
    counts = [f"| {status} | {count} |" for status, count in document["counts"].items()]
    lines = [
        f"{sweep_headline(document)} {document['versions']}, "
        f"{document['device']}{how_quick(document)}.",
        "",
        "| result | types |",
        "|---|---|",
        *counts,
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(_cells(row))} |" for row in document["rows"]),
    ]
    return "\n".join(lines) + "\n"


def shortened(why: str) -> str:
    """Return the beginning of a long reason."""
    return why if len(why) <= LONGEST_WHY else f"{why[: LONGEST_WHY - 3]}..."


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    kernels = ", ".join(f"{name} {count}" for name, count in sorted(row["installed"].items()))
    return (
        f"`{row['type']}`",
        row["head"].removeprefix(PREFIX),
        row["status"],
        str(row["breaks"]) if row["runs"].get("kernels") else "",
        kernels,
        shortened(row["why"]).replace("|", "\\|").replace("<", "&lt;"),
    )
