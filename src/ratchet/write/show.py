"""A writing run's folder and page: its verdict, the way there, every kernel; it reloads itself."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CppLexer, PythonLexer

from ratchet.base import files
from ratchet.base.serialise import json_text
from ratchet.base.show import figures
from ratchet.base.show import model as m
from ratchet.base.show.figures import Scale, around
from ratchet.base.show.model import facts_of, where_measured
from ratchet.base.show.page import render_page
from ratchet.base.show.terminal import BudgetLine
from ratchet.base.show.words import (
    counted,
    device_words,
    sentence,
    show_interval,
    show_moment,
    show_ratio,
    show_time,
)
from ratchet.judge.court.show import (
    evidence_section,
    measured_speedups,
    recalled_words,
    short_hash,
    show_status,
    speedup_tiles,
    static_section,
    status_cell,
    tone,
)
from ratchet.write.author import Answer, ancestry
from ratchet.write.problem_run import RunEvent
from ratchet.write.write import WorkloadWriting
from ratchet.write.writing_result import WritingResult, WrittenKernel

ENDINGS: Final = {"cpp": ".cpp", "hip": ".hip"}  # Every other language is Python's
NOT_PROVEN: Final = "kernel-not-proven"
NOT_JUDGED: Final = "kernel-not-judged"
PAGE = "report.html"


def default_out(problem: str) -> Path:
    """Return the folder of a problem's files: `ratchet-write/<problem>`."""
    return Path("ratchet-write") / files.slug(problem)


def write_page(result: WritingResult, out: Path) -> None:
    """Write report.html; a browser that reloads it meanwhile sees the old one or the new one."""
    files.write_whole(out / PAGE, render_write_page(result).encode())


def write_files(result: WritingResult, out: Path) -> dict[str, str]:
    """Write the files of a run that has ended; return the paths by kind.

    A kernel that is proven, or right where nothing can time it, is `kernel.*`; one that is right
    and not proven is `kernel-not-proven.*`, and one that was only screened `kernel-not-judged.*`. A
    proven one of an earlier run stays beside the latter two.
    """
    paths = {"result": out / "result.json", "page": out / PAGE}
    texts = {
        paths["result"]: json_text(result.to_json(), indent=1),
        paths["page"]: render_write_page(result),
    }
    with contextlib.suppress(OSError):  # the writes below say what is wrong with the folder
        for old in (*out.glob(f"{NOT_PROVEN}.*"), *out.glob(f"{NOT_JUDGED}.*")):
            old.unlink()
    if result.best is not None:
        stands = result.status == "proven" or untimed(result.best)
        stem = "kernel" if stands else NOT_PROVEN
        found = [(stem, result.best.language, result.best.source)]
    else:
        left = [one.kernel for one in result.rows if one.kernel_hash == result.unjudged][:1]
        found = [(NOT_JUDGED, one.language, one.source) for one in left]
    for stem, language, source in found:
        kernel = out / f"{stem}{ENDINGS.get(language, '.py')}"
        paths, texts = {stem.replace("-", "_"): kernel, **paths}, {kernel: source, **texts}
    files.write_all({path: text.encode() for path, text in texts.items()})
    return {kind: str(path) for kind, path in paths.items()}


def untimed(kernel: WrittenKernel) -> bool:
    """Return whether a kernel is right and its machine had no device to time it on."""
    on_gpu = "device" in kernel.verdict.environment
    return kernel.status == "correct" and kernel.language == "triton" and not on_gpu


def write_summary(result: WorkloadWriting, out: Path) -> dict[str, str]:
    """Write result.json of a workload's run beside its problems' folders; return its path."""
    path = out / "result.json"
    files.write_whole(path, json_text(result, indent=1).encode())
    return {"result": str(path), "kernels": str(out / "*" / "kernel*.*")}


RELOAD_S: Final = 3
MOST_ROWS: Final = 60  # Kernels in the table, the best and every judged one first
COMPILED: Final = ("cpp", "hip")
STOPPED: Final[Mapping[str, str]] = {
    "budget": "the search used its share of the budget",
    "floor": "the best kernel is as fast as this machine's memory and arithmetic allow",
    "no more proposals": "the authors had nothing more to propose",
    "candidates": "the number of candidates was reached",
    "recalled": "the ledger holds a kernel that an earlier run proved",
    "interrupted": "the run was interrupted; --resume continues it",
}
ESTIMATE: Final = (
    "Screened speed-ups are estimates. The best of many estimates is too high, so the kernel that "
    "was chosen is timed again by a verdict of its own, with new processes and new values. Only "
    "that figure is a result."
)
UNTIMED: Final = (
    "This kernel was not timed: there is no GPU here. Right kernels were ranked by their static "
    "profile for AMD, which is an estimate. Judge it on a GPU before you use it."
)
AUTHORS: Final = (
    m.Column("author", "name"),
    m.number("proposals"),
    m.number("right"),
    m.why("remark", lambda one: one.note or ("" if one.proposals else "no proposals")),
)
KERNELS: Final = (
    m.Column("kernel", "kernel_hash", lambda hash: m.Span(short_hash(hash), "code")),
    m.Column("author"),
    m.Column("answer", "status", status_cell),
    m.number("speed-up", "ratio", show_ratio),
    m.number("interval", lambda row: show_interval(row.low, row.high)),
    m.Column(
        "from",
        "parents",
        lambda hashes: m.Span(", ".join(map(short_hash, hashes)), "code") if hashes else "",
    ),
    m.why(
        "what is new, or what is wrong",
        lambda row: row.note if row.ratio is not None else row.reason,
    ),
)
REGIONS: Final = (
    m.name("region", "problem"),
    m.Column("verdict", "status", show_status),
    m.number("against eager", "ratio", show_ratio),
    m.number("a step may gain", "gain_s", show_time),
    m.number("screened"),
    m.why("why", lambda row: f"from the ledger: {row.reason}" if row.recalled else row.reason),
)


def render_write_page(result: WritingResult) -> str:
    return render_page(write_report(result, {}))


def write_report(result: WritingResult, paths: Mapping[str, str]) -> m.ResultReport:
    best = result.best
    reloads = f"The run is going on. This page reloads itself every {RELOAD_S} seconds."
    judged = f"{result.judged} of {counted(result.planned_verdicts, 'planned verdict')}"
    status = "no right kernel" if result.status == "none" else show_status(result.status)
    static = static_section(result.static)
    run = [("run", m.Span(result.run or "-", "code"))]
    return m.ResultReport(
        title=f"{result.problem}, {'running' if result.running else status}",
        heading=f"kernels for {result.problem}",
        headline=m.Span(headline(result), tone(result.status) if best else ""),
        header=m.blocks(
            m.Words(
                f"{stop_words(result)} · {device_words(result.device)} · started "
                f"{show_moment(result.started_at)}",
                "soft",
            ),
            *(sentence(one) for one in result.notes),
            m.Words(reloads, "warning", on="page") if result.running else None,
            m.Tiles([*_speedups(result), m.Tile(str(result.screened), "kernels screened", judged)]),
        ),
        sections=m.blocks(
            _verdict(best) if best else None,
            replace(evidence_section("Evidence", best.verdict.evidence), on="page")
            if best and best.verdict.evidence
            else None,
            _progress(result),
            _lineage(result),
            _kernel(best) if best else None,
            static and replace(static, on="both" if best and untimed(best) else "page"),
            m.section("Authors", m.ResultTable(AUTHORS, result.authors), m.Words(ESTIMATE, "note"))
            if result.stopped != "recalled"
            else None,
            _kernels(result),
            where_measured(
                result.device,
                result.versions,
                result.command,
                before=run,
                after=facts_of(best.verdict.environment) if best else (),
            ),
            m.written(paths),
        ),
        reload_s=RELOAD_S if result.running else None,
    )


def _speedups(result: WritingResult) -> list[m.Tile]:
    if result.best and measured_speedups(result.best.verdict.speedup):
        proven = result.status == "proven"
        said = "confirmed by a verdict" if proven else "measured by a verdict, not proven"
        tiles = speedup_tiles(result.best.verdict.speedup, f"{said}, ")
        return tiles if proven else [replace(one, look="undecided") for one in tiles]
    yet = " yet" if result.running else ""
    said = "only a verdict of its own gives a kernel's speed-up"
    return [m.Tile(f"no confirmed speed-up{yet}", "", said, "undecided")]


def _verdict(best: WrittenKernel) -> m.ReportSection:
    known = recalled_words(best.judged_at) if best.recalled else ""
    return m.section(
        "Verdict",
        best.reason,
        f"{best.name}, {best.language}, by {best.author}",
        known and f"The verdict is {known}.",
        UNTIMED if untimed(best) else "",
    )


def _progress(result: WritingResult) -> m.ReportSection | None:
    label = "Screened speed-ups and those of verdicts over the {}; the table has the numbers"
    plots = [
        m.section(title, m.Figure("plot", plot, label.format(over), "progress"))
        for title, over, by_time in (
            ("Over time", "seconds of the run", True),
            ("Over kernels judged", "kernels judged", False),
        )
        if (plot := progress_plot(result, by_time=by_time))
    ]
    said = m.note(ESTIMATE)
    return m.section("Speed-up over the run", said, *plots, on="page") if plots else None


def _lineage(result: WritingResult) -> m.ReportSection | None:
    found = lineage(result)
    if not found:
        return None
    last = "the best kernel" if result.best else "the kernel that was screened best"
    said = f"From the first ancestor to {last}: who proposed it, what changed, and its screened "
    estimates = {
        row.kernel_hash: row.ratio
        for row in result.rows
        if row.stage == "screened" and row.ratio is not None
    }
    kernel, author, _, _, _, parents, _ = KERNELS
    screened = m.number("screened", lambda row: estimates.get(row.kernel_hash), show_ratio)
    sources = [
        m.section(
            f"source of {short_hash(one.kernel_hash)}",
            m.Lines([coloured(result.sources[one.kernel_hash], one.language)], "code"),
            closed=True,
        )
        for one in found[:-1]
        if one.kernel_hash in result.sources
    ]
    columns = (kernel, author, screened, parents, m.why("what changed", "note"))
    table = m.ResultTable(columns, found)
    return m.section("Lineage", m.note(f"{said}speed-up."), table, *sources, on="page")


def _kernel(best: WrittenKernel) -> m.ReportSection:
    said: m.Inline = (
        f"{best.name}, {best.language}, entry ",
        m.Span(best.entry, "code"),
        f", by {best.author} ",
        m.Span(short_hash(best.kernel_hash), "code"),
    )
    source = m.Lines([coloured(best.source, best.language)], "code")
    return m.section("The kernel", m.Words(said, "note"), source, on="page")


def _kernels(result: WritingResult) -> m.ReportSection | None:
    if not result.rows:
        return None
    newest = {row.kernel_hash: row for row in result.rows}.values()
    kept = sorted(newest, key=lambda row: (row.stage == "judged", row.ratio or 0.0))[::-1]
    left_out = len(kept) - MOST_ROWS
    more = f" {left_out} more are in result.json." if left_out > 0 else ""
    return m.section(
        "Kernels",
        m.note(f"Judged kernels first, then by their newest speed-up.{more}"),
        m.ResultTable(KERNELS, kept[:MOST_ROWS], label="Every kernel"),
        on="page",
    )


def workload_report(result: WorkloadWriting, paths: Mapping[str, str]) -> m.ResultReport:
    proven = sum(row.status == "proven" for row in result.rows)
    rows = [row for row in result.rows if row.status != "not_reached"]
    left = len(result.rows) - len(rows)
    said = f"The budget ended before {left} more regions: raise --budget, or run it again."
    return m.ResultReport(
        headline=f"{proven} of {len(result.rows)} regions of {result.workload} have a proven "
        "kernel",
        header=(m.Words(f"{show_time(result.spent_s)} of {show_time(result.budget_s)}"),),
        sections=m.blocks(
            m.section("Regions", m.ResultTable(REGIONS, rows), said if left else None),
            m.written(paths),
        ),
    )


def headline(result: WritingResult) -> str:
    best = result.best
    if best is None:
        if result.running:
            return f"Writing kernels for {result.problem}"
        if result.stopped == "interrupted":
            return f"Interrupted before a verdict on a kernel for {result.problem}"
        if result.unjudged:
            return f"Not judged: the run ended before a verdict on a kernel for {result.problem}"
        if judged := [row for row in result.rows if row.stage == "judged"]:
            last = judged[-1]
            return (
                f"No kernel for {result.problem} passed its verdict: "
                f"{show_status(last.status)}: {last.reason}"
            )
        if not (result.screened or result.rows):
            return f"No kernel for {result.problem} was tried"
        return f"No right kernel for {result.problem}"
    ratio = best.verdict.speedup.vs_reference
    if result.status == "proven" and ratio:
        interval = show_interval(ratio.low, ratio.high)
        return (
            f"Proven: a kernel for {result.problem} runs {show_ratio(ratio.ratio)} as fast as "
            f"the reference ({interval})"
        )
    said = f"{show_status(result.status).capitalize()}: {best.reason}"
    return said if untimed(best) else f"Not proven. {said}"


def stop_words(result: WritingResult) -> str:
    """Return why the search ended, and what it took."""
    taken = (
        f"{counted(result.screened, 'kernel')} screened in "
        f"{show_time(result.spent_s)} of {show_time(result.budget_s)}"
    )
    if result.stopped is None:
        return taken
    why = STOPPED[result.stopped]
    return why if result.stopped == "recalled" else f"{taken}; {why}"


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
    pairs = enumerate(result.rows, start=1)
    places = {id(row): row.after_s if by_time else float(number) for number, row in pairs}
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
            path=figures.dots(at(row, row.ratio or 1.0) for row in screened),
            note=f"{len(screened)} times",
        ),
        figures.Series(
            key="best_compile steps",
            title="best so far by screening, which is too high",
            path=_steps(screened, at),
        ),
        figures.Series(key="twin lines", title="from parent to child", path=_edges(screened, at)),
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


def lineage(result: WritingResult) -> list[Answer]:
    """Return the best kernel's ancestors from the first to itself.

    Without a verdict yet, those of the kernel that was screened best.
    """
    timed = [row for row in result.rows if row.status == "screened" and row.ratio is not None]
    leader = max(timed, key=lambda row: row.ratio or 0.0, default=None)
    start = result.best or leader
    return ancestry(result.rows, start.kernel_hash)[::-1] if start else []


def _ends(row: Answer) -> tuple[float, ...]:
    ratio = row.ratio or 1.0
    if row.stage == "screened":  # their intervals are not drawn
        return (ratio,)
    return (row.low or ratio, ratio, row.high or ratio)


At = Callable[[Answer, float], tuple[float, float]]


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


class WriteProgress(BudgetLine):
    """A moving line on stderr: what the run does, and how much of its budget is spent.

    In a pipe or a file, each verdict and each change of the best estimate is one plain line.
    """

    _best = 0.0
    _problem = ""

    def begin(self, problem: str) -> None:
        """Show which problem comes now."""
        self._problem, self._best = problem, 0.0

    def show(self, event: RunEvent) -> None:
        best = event.best_ratio or 0.0
        lines: list[str] = []
        if event.kind == "dropped":
            lines.append(f"goes on without {event.detail}")
        elif event.kind == "judged":
            lines.append(f"verdict on {event.detail}")
        elif best > self._best * 1.01:
            self._best = best
            lines.append(f"best estimate {show_ratio(best)} after {event.screened} kernels")
        for line in lines:
            said = f"{self._problem}: {line}" if self._problem else line
            self.keep(said, piped=f"[{time.monotonic() - self._began_s:5.0f} s] {said}")
        so_far = f"{event.screened} screened"
        if event.best_ratio:
            so_far += f", best estimate {show_ratio(event.best_ratio)}"
        self.spend(f"{self._problem}: {event.kind} {event.detail} ({so_far})".removeprefix(": "))
