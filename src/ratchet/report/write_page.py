"""Render the page of a writing run: one file with no script, which reloads itself meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CppLexer, PythonLexer

from ratchet.authors.author import Answer
from ratchet.authors.result import WritingResult
from ratchet.report import figures
from ratchet.report.environment import page_environment, plain
from ratchet.report.page import device_rows
from ratchet.report.scale import Scale, around
from ratchet.report.static_table import static_tables
from ratchet.report.verdict_words import (
    measured_speedups,
    recalled_words,
    short_hash,
    show_confidence,
    tone,
)
from ratchet.report.words import show_ratio
from ratchet.report.write_words import author_words, headline, show_row_status, stop_words

RELOAD_S: Final = 3
MOST_ROWS: Final = 60
"""Kernels in the table, the best and every judged one first."""
COMPILED: Final = ("cpp", "hip")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ancestor:
    """One kernel of the best one's lineage."""

    short: str
    author: str
    note: str
    estimate: str
    """Its screened ratio; a dash if it has none."""
    parents: str
    source: Markup | None


def render_write_page(result: WritingResult) -> str:
    """Return a run's page as HTML.

    All text is escaped, and the page's own policy forbids scripts and loads.
    """
    page = page_environment().get_template("write.html")
    best = result.best
    return page.render(
        result=result,
        headline=headline(result),
        stopped=stop_words(result),
        reload_s=RELOAD_S if result.running else None,
        tone=tone,
        speedups=[] if best is None else measured_speedups(best.verdict),
        evidence=[] if best is None else best.verdict.get("evidence", []),
        over_time=progress_plot(result, by_time=True),
        over_candidates=progress_plot(result, by_time=False),
        lineage=lineage(result),
        rows=_table_rows(result.rows),
        left_out=max(0, len(_newest(result.rows)) - MOST_ROWS),
        authors=author_words(result),
        source=None if best is None else coloured(best.source, best.language),
        static=static_tables(result.static),
        device=device_rows(result.device),
        environment=[] if best is None else _facts(best.verdict.get("environment", {})),
        short_hash=short_hash,
        show_confidence=show_confidence,
        recalled_words=recalled_words,
        show_row_status=show_row_status,
    )


def coloured(source: str, language: str) -> Markup:
    """Return a source with its words marked by kind; all of it is escaped."""
    lexer = CppLexer() if language in COMPILED else PythonLexer()
    return Markup(highlight(source, lexer, HtmlFormatter(nowrap=True)))


def progress_plot(result: WritingResult, *, by_time: bool) -> figures.Plot | None:
    """Plot the screened ratios, their best so far, and the verdicts with their intervals.

    The x axis has seconds of the run, or kernels judged; None if nothing was timed.
    """
    timed = [row for row in result.rows if row.ratio is not None and row.ratio > 0]
    if not timed:
        return None
    places = _places(result.rows, by_time=by_time)
    ends = [value for row in timed for value in _ends(row)]
    height = around([1.0, *ends], log=True)
    last = max(places.values(), default=1.0) if by_time else float(max(1, len(result.rows)))
    width = Scale(low=0.0, high=max(last, 1e-3) * 1.02)

    def at(row: Answer, ratio: float) -> tuple[float, float]:
        return width.percent(places[id(row)]), 100 - height.percent(ratio)

    screened = [row for row in timed if row.stage == "screened"]
    judged = [row for row in timed if row.stage == "judged"]
    series = [
        figures.Series(
            key="as_written points",
            title="screened: an estimate",
            path=_dots(at(row, row.ratio or 1.0) for row in screened),
            note=f"{len(screened)} times",
        ),
        figures.Series(
            key="best_compile steps",
            title="best so far by screening, which is too high",
            path=_steps(screened, at),
        ),
        figures.Series(
            key="twin lines",
            title="from parent to child",
            path=_edges(screened, at),
        ),
        figures.Series(
            key="ratchet verdicts",
            title="verdict, with its interval",
            path=_intervals(judged, at),
            note=", ".join(f"{show_ratio(row.ratio)} {row.status}" for row in judged),
        ),
    ]
    return figures.Plot(
        series=tuple(one for one in series if one.path),
        x_ticks=width.ticks(lambda value: f"{value:.4g}", count=6),
        y_ticks=height.ticks(lambda ratio: f"{ratio:.3g}x", count=5),
        x_title="seconds of the run" if by_time else "kernels judged",
        y_title="speed-up against the reference",
    )


def lineage(result: WritingResult) -> list[Ancestor]:
    """Return the best kernel's ancestors from the first to itself.

    Without a verdict yet, those of the kernel that was screened best.
    """
    rows = _newest(result.rows)
    start = result.best.kernel_hash if result.best else _leader(result.rows)
    found: dict[str, None] = {}
    waiting = [start] if start else []
    while waiting:
        one = waiting.pop(0)
        if one in found or one not in rows:
            continue
        found[one] = None
        waiting += rows[one].parents
    return [_ancestor(result, rows[one]) for one in reversed(found)]


def _ancestor(result: WritingResult, row: Answer) -> Ancestor:
    screened = [one for one in result.rows if one.kernel_hash == row.kernel_hash]
    ratios = [one.ratio for one in screened if one.stage == "screened" and one.ratio is not None]
    source = result.sources.get(row.kernel_hash)
    return Ancestor(
        short=short_hash(row.kernel_hash),
        author=row.author,
        note=row.note,
        estimate=show_ratio(ratios[-1] if ratios else None),
        parents=", ".join(map(short_hash, row.parents)),
        source=None if source is None else coloured(source, row.language),
    )


def _newest(rows: Sequence[Answer]) -> dict[str, Answer]:
    """Return each kernel's newest row."""
    return {row.kernel_hash: row for row in rows}


def _leader(rows: Sequence[Answer]) -> str | None:
    timed = [row for row in rows if row.status == "screened" and row.ratio is not None]
    best = max(timed, key=lambda row: row.ratio or 0.0, default=None)
    return None if best is None else best.kernel_hash


def _table_rows(rows: Sequence[Answer]) -> list[Answer]:
    """Return each kernel's newest row: judged kernels first, then by ratio."""
    kept = sorted(_newest(rows).values(), key=lambda row: (row.stage == "judged", row.ratio or 0.0))
    return kept[::-1][:MOST_ROWS]


def _places(rows: Sequence[Answer], *, by_time: bool) -> dict[int, float]:
    """Return where each row lies on the x axis."""
    if by_time:
        return {id(row): row.after_s for row in rows}
    return {id(row): float(number) for number, row in enumerate(rows, start=1)}


def _ends(row: Answer) -> tuple[float, ...]:
    ratio = row.ratio or 1.0
    if row.stage == "screened":  # their intervals are not drawn
        return (ratio,)
    return (row.low or ratio, ratio, row.high or ratio)


At = Callable[[Answer, float], tuple[float, float]]


def _dots(points: Iterable[tuple[float, float]]) -> str:
    # A zero-length line with round ends is a dot that keeps its shape when the box is stretched.
    return "".join(f"M{x:.2f} {y:.2f}h.01" for x, y in points)


def _steps(rows: Sequence[Answer], at: At) -> str:
    """Return a step curve of the best ratio so far."""
    path, best = "", -math.inf
    for row in rows:
        if row.status != "screened":
            continue
        best = max(best, row.ratio or 0.0)
        x, y = at(row, best)
        path += f"H{x:.2f}V{y:.2f}" if path else f"M{x:.2f} {y:.2f}"
    return path and f"{path}H100"


def _edges(rows: Sequence[Answer], at: At) -> str:
    """Return a line from each parent to its child."""
    first: dict[str, Answer] = {}
    for row in rows:
        first.setdefault(row.kernel_hash, row)
    path = ""
    for row in first.values():
        for parent in row.parents:
            if parent in first:
                (x0, y0), (x1, y1) = (at(one, one.ratio or 1.0) for one in (first[parent], row))
                path += f"M{x0:.2f} {y0:.2f}L{x1:.2f} {y1:.2f}"
    return path


def _intervals(rows: Sequence[Answer], at: At) -> str:
    """Return a vertical line for each interval, with a bar at the ratio."""
    path = ""
    for row in rows:
        low, ratio, high = _ends(row)
        x, middle = at(row, ratio)
        path += f"M{x:.2f} {at(row, low)[1]:.2f}V{at(row, high)[1]:.2f}"
        path += f"M{x - 0.8:.2f} {middle:.2f}h1.6"
    return path


def _facts(environment: dict[str, object]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), plain(value)) for name, value in environment.items()]
