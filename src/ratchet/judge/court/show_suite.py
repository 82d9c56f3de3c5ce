"""A suite's run: every problem, fast_p against both rivals, and the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn

from ratchet.base import files
from ratchet.base.serialise import document_of, json_text
from ratchet.base.show import model as m
from ratchet.base.show.model import where_measured
from ratchet.base.show.page import render_page
from ratchet.base.show.terminal import MovingLine
from ratchet.base.show.words import device_words, show_moment, show_ratio, show_time
from ratchet.judge.court.show import (
    NO_FILES,
    RIVALS,
    measured_speedups,
    show_confidence,
    show_speedup,
    show_status,
    tone,
    verdict_report,
)
from ratchet.judge.court.suite import SuiteResult
from ratchet.judge.terms import JudgedKernel

if TYPE_CHECKING:
    from ratchet.judge.court.suite import Score, SuiteRow, SuiteSummary


def suite_report(
    result: SuiteResult,
    links: Mapping[str, str] = NO_FILES,
    *,
    paths: Mapping[str, str] = NO_FILES,
) -> m.ResultReport:
    """Describe a suite's run, and the files that were written.

    `links` maps a problem's name to the page of its verdict, relative to the suite's page.
    """
    sections = m.blocks(
        m.section("Every problem", m.ResultTable(_columns(result, links), result.rows)),
        m.section("Not right", _reasons(result.rows), on="terminal"),
        m.section("Scores", *_scores(result), *definitions(result)),
        where_measured(result.device, result.versions, result.command),
        m.written(paths),
    )
    return m.ResultReport(
        title=f"{result.suite}, {result.candidate}",
        heading=result.suite,
        headline=_headline(result),
        header=(m.Words(_run_words(result), "soft"), *_interrupted(result)),
        sections=sections,
    )


def _columns(result: SuiteResult, links: Mapping[str, str]) -> list[m.Column]:
    compiled = any(row.speedup.vs_compile for row in result.rows)
    return [
        m.name("problem", "name", lambda own: m.Span(own, href=links.get(own, ""))),
        m.Column("verdict", _status),
        m.number("against eager", lambda row: row.speedup.vs_reference, show_speedup),
        # torch.compile has no column if it is the candidate.
        *(
            [m.number("against torch.compile", lambda row: row.speedup.vs_compile, show_speedup)]
            * compiled
        ),
        m.why("why", "reason", on="page"),
    ]


def _status(row: SuiteRow) -> m.Span:
    """Return a row's status, with a mark if its verdict was not given in this run."""
    known = " (from the ledger)" if row.recalled else ""
    return m.Span(f"{show_status(row.status)}{known}", tone(row.status))


def _headline(result: SuiteResult) -> str:
    statuses = result.summary["all"].statuses
    counted = ", ".join(f"{count} {show_status(status)}" for status, count in statuses.items())
    return f"{result.candidate} on {result.suite}: {counted}."


def _run_words(result: SuiteResult) -> str:
    recalled = sum(row.recalled for row in result.rows)
    known = f", {recalled} verdicts from the ledger" if recalled else ""
    return (
        f"{device_words(result.device)} · {show_moment(result.started_at)} · the run took "
        f"{show_time(result.duration_s)}{known}"
    )


def _interrupted(result: SuiteResult) -> list[m.Words]:
    if not result.interrupted:
        return []
    left = sum(row.status == "not_reached" for row in result.rows)
    said = (
        f"The run was interrupted: {left} problems were not reached. Run the same command again "
        "to continue from the ledger."
    )
    return [m.Words(said, "warning")]


def _scores(result: SuiteResult) -> list[m.ReportSection]:
    """Return fast_p and the means, and separately for the answered problems if some are not."""
    whole, answered = result.summary["all"], result.summary["answered"]
    parts = {"All problems": whole} | (
        {"Problems with a kernel": answered} if whole != answered else {}
    )
    return [_score(title, part) for title, part in parts.items() if part.problems]


def _score(title: str, summary: SuiteSummary) -> m.ReportSection:
    found = ((rival, getattr(summary, key)) for key, rival in RIVALS.items())
    scores: list[tuple[str, Score]] = [(rival, one) for rival, one in found if one is not None]
    steps = list(scores[0][1].fast_p)
    rows = [
        (
            rival,
            *(f"{score.fast_p[p]:.0%}" for p in steps),
            show_ratio(score.geometric_mean),
            show_ratio(score.geometric_mean_of_measured),
            str(score.measured),
        )
        for rival, score in scores
    ]
    titles = ("against", *(f"> {p}" for p in steps), "mean", "mean of timed", "timed")
    counted = f"{title}: {summary.problems}, right: {summary.right}"
    return m.section(counted, m.grid(titles, rows))


def definitions(result: SuiteResult) -> list[m.Words]:
    """Explain the columns of the scores."""
    failed = result.summary["all"].failed_ratio
    ratios = [ratio for row in result.rows for _, ratio in measured_speedups(row.speedup)]
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


def _reasons(rows: Sequence[SuiteRow]) -> m.ResultTable:
    """List why problems have no right kernel, grouped by reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if not row.right:
            reasons.setdefault((row.status, row.reason), []).append(row.name)
    shown = [
        (show_status(status), ", ".join(names), reason)
        for (status, reason), names in reasons.items()
    ]
    return m.grid(("verdict", "problems", "why"), shown, left=2)


class SuiteProgress(MovingLine):
    """A progress line below each problem's verdict; a pipe gets only the verdicts."""

    def __init__(self, problems: int, *, console: Console | None = None) -> None:
        self._problems = problems
        self._done = 0
        super().__init__(self._words(), problems, BarColumn(bar_width=24), console=console)

    def show(self, row: SuiteRow) -> None:
        self._done += 1
        self.move(self._words(), self._done)
        against = row.speedup.vs_reference
        speed = f", {show_speedup(against)}" if against else ""
        said = f"{row.name}: {show_status(row.status)}{speed}"
        self.keep(said, piped=f"{self._words()}: {said}")

    def _words(self) -> str:
        return f"{self._done} of {self._problems} problems"


# Write a verdict's and a suite run's files: JSON, and pages that open offline.

VERDICTS = "verdicts"


def check_out(out: Path) -> None:
    """Refuse an unusable output folder before anything is judged."""
    files.check_new_folder(out)
    files.make_folder(out / VERDICTS)


def write_verdict(judged: JudgedKernel, out: Path) -> dict[str, str]:
    """Write a verdict's JSON and its page; return the paths by kind."""
    stem = _stem(judged)
    paths = {"verdict": out / VERDICTS / f"{stem}.json", "page": out / VERDICTS / f"{stem}.html"}
    _write(paths, document_of(judged), render_page(verdict_report(judged)))
    return {kind: str(path) for kind, path in paths.items()}


def write_suite(result: SuiteResult, links: Mapping[str, str], out: Path) -> dict[str, str]:
    """Write a suite's table as JSON and as a page that links to the verdict pages."""
    stem = files.slug(f"{result.suite}-{result.candidate}")
    paths = {"table": out / f"{stem}.json", "page": out / f"{stem}.html"}
    relative = {name: Path(path).relative_to(out).as_posix() for name, path in links.items()}
    _write(paths, document_of(result), render_page(suite_report(result, relative)))
    return {kind: str(path) for kind, path in paths.items()}


def _stem(judged: JudgedKernel) -> str:
    """Return a unique file name: the problem's name, then the first digits of both hashes."""
    hashes = (judged.verdict.problem_hash, judged.verdict.kernel_hash)
    return "-".join([files.slug(judged.problem.name), *(one[:8] for one in hashes)])


def _write(paths: Mapping[str, Path], document: Mapping[str, object], page: str) -> None:
    """Write a document and its page; the page's path comes second."""
    texts = (json_text(document, indent=1), page)
    named = zip(paths.values(), texts, strict=True)
    files.write_all({path: text.encode() for path, text in named})
