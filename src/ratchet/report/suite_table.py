"""The table of a suite: every problem, fast_p against both rivals, and the mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from ratchet.report.console import heading, make_console, table, verbatim
from ratchet.report.verdict_words import RIVALS, show_confidence, show_speedup, show_status
from ratchet.report.words import device_words, show_ratio, show_time

PARTS = {"all": "All problems", "answered": "Problems with a kernel"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreTable:
    """The scores of one set of problems."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def print_suite(document: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of `ratchet judge --suite` and `--kernelbench`.

    `document` is a `SuiteResult` as plain data, with `paths` if files were written. The console
    defaults to stdout.
    """
    out = console or make_console()
    out.print(suite_headline(document))
    out.print(f"{device_words(document['device'])} · the run took {_duration(document)}")
    if document["interrupted"]:
        out.print("Interrupted. Run the same command again to continue from the ledger.")
    out.print()
    compiled = against_compile(document)
    columns = ("problem", "verdict", "vs eager", *(["vs torch.compile"] if compiled else []))
    rows = [_row(row)[: len(columns)] for row in document["rows"]]
    out.print(table(columns, rows, left=2))
    _print_reasons(out, document["rows"])
    for scores in score_tables(document):
        heading(out, scores.title)
        out.print(table(scores.columns, scores.rows))
    out.print()
    for words in definitions(document):
        out.print(words)
    if document.get("paths"):
        heading(out, "Written")
        verbatim(out, (f"    {path}" for path in document["paths"].values()))


def suite_headline(document: Mapping[str, Any]) -> str:
    """Return the run in one sentence."""
    statuses = document["summary"]["all"]["statuses"]
    counted = ", ".join(f"{count} {show_status(status)}" for status, count in statuses.items())
    return f"{document['candidate']} on {document['suite']}: {counted}."


def against_compile(document: Mapping[str, Any]) -> bool:
    """Return True if torch.compile was timed as a rival, which excludes it as the candidate."""
    return any(row["speedup"]["vs_compile"] for row in document["rows"])


def score_tables(document: Mapping[str, Any]) -> list[ScoreTable]:
    """Return fast_p and the means, and separately for the answered problems if some are not."""
    summary = document["summary"]
    keys = ["all"] if summary["all"] == summary["answered"] else list(PARTS)
    return [_score_table(PARTS[key], summary[key]) for key in keys if summary[key]["problems"]]


def _score_table(title: str, summary: Mapping[str, Any]) -> ScoreTable:
    scores = [(name, summary[key]) for key, name in RIVALS.items() if summary[key] is not None]
    steps = list(scores[0][1]["fast_p"])
    mean = "mean"
    columns = ("against", *(f"> {p}" for p in steps), mean, "mean of timed", "timed")
    rows = [
        (
            name,
            *(f"{score['fast_p'][p]:.0%}" for p in steps),
            show_ratio(score["geometric_mean"]),
            show_ratio(score["geometric_mean_of_measured"]),
            str(score["measured"]),
        )
        for name, score in scores
    ]
    return ScoreTable(
        title=f"{title}: {summary['problems']}, right: {summary['right']}",
        columns=columns,
        rows=tuple(rows),
    )


def definitions(document: Mapping[str, Any]) -> list[str]:
    """Explain the columns."""
    failed = document["summary"]["all"]["failed_ratio"]
    return [
        "> p is the share of problems whose kernel is proven and whose whole "
        f"{_confidences(document)} lies above p (fast_p). The JSON's fast_p_by_estimate counts any "
        "right kernel by its ratio alone, as KernelBench does.",
        "mean is the geometric mean of the ratios; a problem without a right, timed kernel counts "
        f"as {failed:g}x. The mean of the timed ones leaves failures out: read it together with "
        "their number.",
    ]


def _confidences(document: Mapping[str, Any]) -> str:
    """Return the ratios' confidence: `98.3 % interval`."""
    ratios = [ratio for row in document["rows"] for ratio in row["speedup"].values() if ratio]
    found = dict.fromkeys(map(show_confidence, ratios))
    return " or ".join(found) or "interval"


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    speedup = row["speedup"]
    return (
        row["name"],
        status_words(row),
        show_speedup(speedup["vs_reference"]),
        show_speedup(speedup["vs_compile"]),
    )


def status_words(row: Mapping[str, Any]) -> str:
    """Return a row's status, with a mark if its verdict was not given in this run."""
    return f"{show_status(row['status'])}{' (from the ledger)' if row['recalled'] else ''}"


def _print_reasons(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the reasons why problems have no right kernel, grouped by reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] not in ("proven", "correct"):
            reasons.setdefault((row["status"], row["reason"]), []).append(row["name"])
    if not reasons:
        return
    heading(out, "Not right")
    out.print(table(("verdict", "problems", "why"), list(_reason_rows(reasons)), left=2))


def _reason_rows(
    reasons: Mapping[tuple[str, str], Sequence[str]],
) -> Iterable[tuple[str, str, str]]:
    for (status, reason), names in reasons.items():
        yield show_status(status), ", ".join(names), reason


def _duration(document: Mapping[str, Any]) -> str:
    recalled = sum(bool(row["recalled"]) for row in document["rows"])
    known = f", {recalled} verdicts from the ledger" if recalled else ""
    return f"{show_time(document['duration_s'])}{known}"


def row_words(row: Mapping[str, Any]) -> str:
    """Return one problem as a line of progress."""
    against = row["speedup"]["vs_reference"]
    speed = f", {show_speedup(against)}" if against else ""
    return f"{row['name']}: {show_status(row['status'])}{speed}"
