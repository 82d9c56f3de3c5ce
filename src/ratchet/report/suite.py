"""A suite's run: every problem, fast_p against both rivals, and the mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from ratchet.base.json_value import Json
from ratchet.report import model as m
from ratchet.report.environment import where_measured
from ratchet.report.page import render_page
from ratchet.report.terminal import print_report
from ratchet.report.verdict import RIVALS, show_confidence, show_speedup, show_status, tone
from ratchet.report.words import device_words, show_moment, show_ratio, show_time

PARTS = {"all": "All problems", "answered": "Problems with a kernel"}
RIGHT = ("proven", "correct")


def print_suite(document: Mapping[str, Json], console: Console | None = None) -> None:
    """Print the result of `ratchet judge --suite`; `console` defaults to stdout."""
    print_report(suite_report(document), console)


def render_suite_page(document: Mapping[str, Json], links: Mapping[str, str]) -> str:
    """Return the whole table as HTML.

    `links` maps a problem's name to the page of its verdict, relative to this page.
    """
    return render_page(suite_report(document, links))


def suite_report(
    document: Mapping[str, Json], links: Mapping[str, str] | None = None
) -> m.ResultReport:
    """Describe a suite's run: a `SuiteResult` as plain data, with `paths` if files were written."""
    rows = document["rows"]
    sections = m.blocks(
        m.section("Every problem", m.ResultTable(_columns(document, links or {}), rows)),
        m.section("Not right", _reasons(rows), on="terminal"),
        m.section("Scores", *_scores(document), *definitions(document)),
        where_measured(document["device"], document["versions"], document["command"]),
        m.written(document.get("paths") or {}),
    )
    return m.ResultReport(
        title=f"{document['suite']}, {document['candidate']}",
        heading=document["suite"],
        headline=_headline(document),
        header=(m.Words(_run_words(document), "soft"), *_interrupted(document)),
        sections=sections,
    )


def _columns(document: Mapping[str, Json], links: Mapping[str, str]) -> list[m.Column]:
    compiled = any(row["speedup"]["vs_compile"] for row in document["rows"])
    return [
        m.name("problem", "name", lambda own: m.Span(own, href=links.get(own, ""))),
        m.Column("verdict", _status),
        m.number("against eager", _ratio("vs_reference"), show_speedup),
        # torch.compile has no column if it is the candidate.
        *([m.number("against torch.compile", _ratio("vs_compile"), show_speedup)] * compiled),
        m.why("why", "reason", on="page"),
    ]


def _ratio(key: str) -> Callable[[Mapping[str, Json]], Json]:
    return lambda row: row["speedup"][key]


def _status(row: Mapping[str, Json]) -> m.Span:
    """Return a row's status, with a mark if its verdict was not given in this run."""
    known = " (from the ledger)" if row["recalled"] else ""
    return m.Span(f"{show_status(row['status'])}{known}", tone(row["status"]))


def _headline(document: Mapping[str, Json]) -> str:
    statuses = document["summary"]["all"]["statuses"]
    counted = ", ".join(f"{count} {show_status(status)}" for status, count in statuses.items())
    return f"{document['candidate']} on {document['suite']}: {counted}."


def _run_words(document: Mapping[str, Json]) -> str:
    recalled = sum(bool(row["recalled"]) for row in document["rows"])
    known = f", {recalled} verdicts from the ledger" if recalled else ""
    return (
        f"{device_words(document['device'])} · {show_moment(document['started_at'])} · the run "
        f"took {show_time(document['duration_s'])}{known}"
    )


def _interrupted(document: Mapping[str, Json]) -> list[m.Words]:
    if not document["interrupted"]:
        return []
    left = sum(row["status"] == "not_reached" for row in document["rows"])
    said = (
        f"The run was interrupted: {left} problems were not reached. Run the same command again "
        "to continue from the ledger."
    )
    return [m.Words(said, "warning")]


def _scores(document: Mapping[str, Json]) -> list[m.ReportSection]:
    """Return fast_p and the means, and separately for the answered problems if some are not."""
    summary = document["summary"]
    keys = ["all"] if summary["all"] == summary["answered"] else list(PARTS)
    return [_score(PARTS[key], summary[key]) for key in keys if summary[key]["problems"]]


def _score(title: str, summary: Mapping[str, Json]) -> m.ReportSection:
    scores = [(rival, summary[key]) for key, rival in RIVALS.items() if summary[key] is not None]
    steps = list(scores[0][1]["fast_p"])
    rows = [
        (
            rival,
            *(f"{score['fast_p'][p]:.0%}" for p in steps),
            show_ratio(score["geometric_mean"]),
            show_ratio(score["geometric_mean_of_measured"]),
            str(score["measured"]),
        )
        for rival, score in scores
    ]
    titles = ("against", *(f"> {p}" for p in steps), "mean", "mean of timed", "timed")
    counted = f"{title}: {summary['problems']}, right: {summary['right']}"
    return m.section(counted, m.grid(titles, rows))


def definitions(document: Mapping[str, Json]) -> list[m.Words]:
    """Explain the columns of the scores."""
    failed = document["summary"]["all"]["failed_ratio"]
    ratios = [ratio for row in document["rows"] for ratio in row["speedup"].values() if ratio]
    confidence = " or ".join(dict.fromkeys(map(show_confidence, ratios))) or "interval"
    share = (
        f"> p is the share of problems whose kernel is proven and whose whole {confidence} lies "
        "above p (fast_p). The JSON's fast_p_by_estimate counts any right kernel by its ratio "
        "alone, as KernelBench does."
    )
    mean = (
        "mean is the geometric mean of the ratios; a problem without a right, timed kernel counts "
        f"as {failed:g}x. The mean of the timed ones leaves failures out: read it together with "
        "their number."
    )
    return [m.Words(share, "note"), m.Words(mean, "note")]


def _reasons(rows: Sequence[Mapping[str, Json]]) -> m.ResultTable:
    """List why problems have no right kernel, grouped by reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] not in RIGHT:
            reasons.setdefault((row["status"], row["reason"]), []).append(row["name"])
    shown = [
        (show_status(status), ", ".join(names), reason)
        for (status, reason), names in reasons.items()
    ]
    return m.grid(("verdict", "problems", "why"), shown, left=2)


def row_words(row: Mapping[str, Json]) -> str:
    """Return one problem as a line of progress."""
    against = row["speedup"]["vs_reference"]
    speed = f", {show_speedup(against)}" if against else ""
    return f"{row['name']}: {show_status(row['status'])}{speed}"
