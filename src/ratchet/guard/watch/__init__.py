"""A gate for pull requests: a suite at the head and at the base, as a comment and JUnit XML."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ratchet.base import git, scratch
from ratchet.base.devices.probe import probe
from ratchet.base.errors import RepositoryError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import Observation, ObservationBook
from ratchet.base.ledger.connect import utc_now
from ratchet.base.show import model as m
from ratchet.base.show.figures import pairs_plot
from ratchet.base.show.junit import JunitCase, JunitOutcome, Kind, junit
from ratchet.base.show.words import axis_of_unit, show_change, show_value
from ratchet.guard.checkouts import Checkouts
from ratchet.guard.history import gather
from ratchet.guard.history.csv_file import ImportDefaults
from ratchet.guard.history.formats import read_results
from ratchet.guard.history.plot import short_revision
from ratchet.guard.watch.suite import (
    LOOKS,
    BenchmarkResult,
    GateLimits,
    OnRun,
    WatchAnswer,
    WatchResult,
    WatchSuite,
    watch_history,
    watch_pairs,
)


def run_gate(
    folder: Path,
    suite: WatchSuite,
    limits: GateLimits,
    on_run: OnRun,
    *,
    base: str = "",
    against: Path | None = None,
    advisory: bool = False,
    record: bool = False,
    ledger: str | None = None,
) -> WatchResult:
    """Run the suite against the revision `base`, or `against` a history, and return its report.

    `record` stores the head's results in the ledger. Raises RepositoryError (no repository, or no
    such base); HistoryError (the history cannot be read); GuardError (a side runs other code than
    its checkout's).
    """
    commit = git.stamp(folder)
    notes: list[str] = []
    if against is not None:
        rows = sorted(read_results(against, ImportDefaults()), key=lambda one: one.committed_at)
        device = probe("cpu").fingerprint
        results = watch_history(suite, folder, gather(rows), device, limits, on_run)
        base, head = against.name, commit.revision or "here"
    else:
        base, head = _ends(folder, base)
        if commit.revision.endswith("+changes"):
            notes.append("uncommitted changes were not measured")
        if base == head:
            notes.append("the head is the base: what differs is noise")
        with scratch.folder("watch") as place:
            checkouts = Checkouts(folder, place, suite.build, suite.build_time_limit_s)
            results = watch_pairs(suite, checkouts, base, head, limits, on_run)
            notes += [f"{one.name}: {note}" for one in results for note in one.notes]
    if record:
        _record(results, commit, ledger)
    return WatchResult(
        base=base,
        head=head,
        margin=suite.margin,
        confidence=suite.confidence(1 if against is not None else LOOKS),
        results=tuple(results),
        notes=tuple(notes),
        advisory=advisory,
    )


def _ends(folder: Path, base: str) -> tuple[str, str]:
    """Return where the head parted from the base, and the head."""
    head, other = git.resolve(folder, "HEAD"), git.resolve(folder, base)
    try:
        return git.git(folder, "merge-base", other, head), head
    except RepositoryError as error:
        raise RepositoryError(
            f"HEAD and {base!r} share no commit here: in CI check out with fetch-depth: 0"
        ) from error


def _record(results: list[BenchmarkResult], commit: git.CommitStamp, url: str | None) -> None:
    with Ledger.open(url) as ledger:
        here = ledger.here(probe("cpu"))
        ObservationBook(ledger).record(
            Observation(
                benchmark=one.name,
                metric="value",
                unit=one.unit,
                better=one.better,
                revision=commit.revision,
                committed_at=commit.committed_at or utc_now(),
                value=one.head,
                device=here["device"],
                software=here["software"],
                source="watch",
            )
            for one in results
            if one.head is not None
        )


MARKER = "<!-- ratchet watch -->"  # Lets a later run find its own comment
BENCHMARKS = (
    m.Column("benchmark", "name"),
    m.Column("answer"),
    m.number("change", lambda one: _change(one)),
    m.number("base", lambda one: show_value(one.base, one.unit)),
    m.number("head", lambda one: show_value(one.head, one.unit)),
    m.number("runs", "runs", lambda runs: str(runs or "")),
    m.why("why"),
)
"""The columns of a benchmark, on the terminal and in the comment."""


def watch_report(report: WatchResult) -> m.ResultReport:
    """Describe a row for each benchmark, then the answer."""
    notes = [f"note: {note}" for note in report.notes]
    table = m.ResultTable(BENCHMARKS, report.results)
    said = m.blocks(table, headline(report), m.Lines(notes, indent=0) if notes else None)
    return m.ResultReport(header=said)


SIDES = {"base": ("as_written", "base"), "head": ("ratchet", "head")}


def watch_page(report: WatchResult) -> m.ResultReport:
    """Describe a row for each benchmark, and every pair behind it."""
    plots = []
    for one in report.results:
        sides = {SIDES[name][0]: (name, values) for name, values in one.values.items() if values}
        if sides:
            title, show = axis_of_unit("" if one.unit != "s" else "time", one.unit)
            drawn = pairs_plot(sides, y_title=title, show=show)
            label = f"Every run of {one.name}; the table has the medians"
            plots.append(m.section(one.name, m.Figure("plot", drawn, label, "dots points")))
    said = m.note(
        f"The change is that of the median; its interval holds with {report.confidence:.4g} "
        f"confidence. Up to {report.margin:.2%} slower is allowed."
    )
    pairs = m.note("Both sides of a pair ran right after each other, in a random order.")
    return m.ResultReport(
        title="Watch",
        heading="watch",
        headline=m.Span(headline(report), "no" if report.red else "yes"),
        header=tuple(m.Words(note, "soft") for note in report.notes),
        sections=m.blocks(
            m.section("Benchmarks", said, m.ResultTable(BENCHMARKS, report.results)),
            m.section("Pairs", pairs, *plots) if plots else None,
        ),
    )


def headline(report: WatchResult) -> str:
    """Return the answer in a line."""
    counts = Counter(one.answer for one in report.results)
    bad: tuple[WatchAnswer, ...] = ("slower", "failed", "no baseline", "undecided")
    said = ", ".join(f"{counts[answer]} {answer}" for answer in bad if counts[answer])
    ends = f"{short_revision(report.head)} against {short_revision(report.base)}"
    allowed = f"{report.margin:.2%}"
    if not said:
        return f"{ends}: nothing is more than {allowed} slower"
    return f"{ends}: {said} (allowed: {allowed} slower){' - advisory' if report.advisory else ''}"


def markdown_comment(report: WatchResult) -> str:
    """Return a comment for a pull request. Names cannot break the table or add markup."""
    lines = [MARKER, f"### ratchet watch: {_plain(headline(report))}", ""]
    titles = " | ".join(column.title for column in BENCHMARKS)
    sides = "|".join("---:" if column.look == "number" else "---" for column in BENCHMARKS)
    lines += [f"| {titles} |", f"|{sides}|"]
    lines += [f"| {' | '.join(_plain(cell) for cell in _row(one))} |" for one in report.results]
    lines += [
        "",
        f"The change is that of the median; its interval holds with {report.confidence:.4g} "
        "confidence. `slower` needs the whole interval beyond what is allowed.",
    ]
    missing = [one for one in report.results if one.answer == "no baseline"]
    if missing:
        names = ", ".join(_plain(one.name) for one in missing)
        lines += ["", f"**Warning:** no baseline for {names}: not compared."]
    lines += [f"\nNote: {_plain(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


def junit_xml(report: WatchResult) -> bytes:
    """Return JUnit's XML: slower is a failure, failed an error, and without an answer is skipped.

    An advisory report has neither failures nor errors: they are skipped, with what was found.
    """
    kinds: dict[WatchAnswer, Kind] = {"slower": "failure", "failed": "error"}
    kinds |= {"no baseline": "skipped", "undecided": "skipped"}
    cases = []
    for one in report.results:
        said = ": ".join(part for part in (one.answer, _change(one), one.why) if part)
        found = []
        if kind := kinds.get(one.answer):
            found = [JunitOutcome(kind="skipped" if report.advisory else kind, message=said)]
        cases.append(
            JunitCase(
                name=one.name,
                classname="ratchet.watch",
                found=found,
                time_s=one.time_s,
                output=" | ".join(_row(one)),
            )
        )
    return junit("ratchet watch", cases)


def _row(one: BenchmarkResult) -> list[str]:
    return [m.text_of(column.cell(one)) for column in BENCHMARKS]


def _change(one: BenchmarkResult) -> str:
    worse, low, high = one.worse
    if worse is None or low is None or high is None:
        return ""
    return f"{show_change(worse)} [{show_change(low)}, {show_change(high)}]"


def _plain(text: str) -> str:
    """Escape what Markdown or HTML would read as markup."""
    text = " ".join(text.split())
    for mark, entity in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("|", "\\|"),
        ("@", "&#64;"),
    ):
        text = text.replace(mark, entity)
    return re.sub(r"([`*_\[\]])", r"\\\1", text)
