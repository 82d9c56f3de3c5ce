"""One verdict: its evidence, its speed-up, and what the kernel compiles to and does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ratchet.base.show import figures
from ratchet.base.show import model as m
from ratchet.base.show.model import WHERE, facts_of
from ratchet.base.show.page import render_page
from ratchet.base.show.words import ABSENT, sentence, show_interval, show_moment, show_ratio
from ratchet.judge.court.show_emulated import estimate_section, heat_section
from ratchet.judge.court.show_static import static_section

if TYPE_CHECKING:
    from ratchet.judge.court.terms import JudgedKernel
    from ratchet.judge.kernels.kernel import Kernel
    from ratchet.judge.problems.case import TensorSpec
    from ratchet.judge.problems.problem import Problem
    from ratchet.judge.verdict import Evidence, Ratio, Speedups, TimedSample, Verdict

MEANING = {
    "proven": "right on every case, and faster than the reference",
    "correct": "right on every case, but not proven to be faster",
    "wrong": "an answer is wrong",
    "cheating": "it tried to pass without doing the work",
    "crashed": "its process died, or it raised an error",
    "timed_out": "it was too slow",
    "refused": "the problem or the source cannot be judged",
    "unmeasured": "the judge could not finish; this says nothing about the kernel",
    "unanswered": "there is no kernel for this problem",
    "not_reached": "the run ended before this problem",
}
NO_FILES: Final[Mapping[str, str]] = {}
RIVALS = {"vs_reference": "the reference (eager)", "vs_compile": "torch.compile"}
_ARMS = {
    "reference": ("as_written", "the reference"),
    "reference again": ("twin", "the reference again (A/A)"),
    "torch.compile": ("best_compile", "torch.compile of the reference"),
    "candidate": ("ratchet", "the kernel"),
}
_MORE_STYLES = ("same_arithmetic", "best_compile_same")


def show_passed(passed: bool) -> m.Span:
    """Format whether a check passed, so that a failure stands out."""
    return m.Span("yes", "yes") if passed else m.Span("NO", "no")


EVIDENCE = (
    m.name("check"),
    m.Column("passed", "passed", show_passed),
    m.why("detail"),
)
"""The columns of a verdict's checks, on the terminal and on every page."""
CASES = (
    m.name("case", "name"),
    m.Column("", "timed", lambda timed: "timed" if timed else ""),
    m.Column("inputs", "inputs", lambda specs: ", ".join(map(_input, specs))),
)


def render_verdict_page(judged: JudgedKernel) -> str:
    return render_page(verdict_report(judged))


def verdict_report(judged: JudgedKernel, paths: Mapping[str, str] = NO_FILES) -> m.ResultReport:
    """Describe a verdict, and the files that were written."""
    verdict, kernel, problem = judged.verdict, judged.kernel, judged.problem
    status, tier = show_status(verdict.status), verdict.environment.get("tier")
    sections = m.blocks(
        evidence_section("Evidence", verdict.evidence),
        _samples(verdict.samples),
        estimate_section(verdict.emulated),
        heat_section(verdict.emulated, kernel.source),
        static_section(verdict.static),
        _judged(verdict, kernel, problem),
        m.section(WHERE, m.Facts(facts_of(verdict.environment)), on="page"),
        m.written(paths),
    )
    return m.ResultReport(
        title=f"{problem.name}, {status}",
        heading=f"verdict on {kernel.name} for {problem.name}",
        headline=(m.Span(sentence(status), tone(verdict.status)), f": {verdict.reason}"),
        header=(
            m.Words(f"{sentence(status)} means: {MEANING[verdict.status]}.", "soft"),
            *([m.Words(recalled_words(judged.judged_at), "soft")] if judged.recalled else []),
            m.Words(
                f"judged {show_moment(judged.judged_at)}{f' · tier {tier}' if tier else ''} · "
                f"isolation: {verdict.isolation}",
                "soft",
            ),
            m.Tiles(speedup_tiles(verdict.speedup)),
        ),
        sections=sections,
    )


def evidence_section(title: str, evidence: Sequence[Evidence]) -> m.ReportSection:
    """Return the checks of a verdict, in their order."""
    return m.section(
        title,
        m.note(
            "The checks, in order. A check that was never reached is not listed and does not count "
            "as passed."
        ),
        m.ResultTable(EVIDENCE, evidence) if evidence else "Nothing was checked.",
    )


def speedup_tiles(speedup: Speedups, confirmed: str = "") -> list[m.Tile]:
    """Return how fast the kernel is against each rival, in large print."""
    return [
        m.Tile(
            show_ratio(ratio.ratio),
            f"against {title}",
            f"{confirmed}{show_confidence(ratio)} {show_interval(ratio.low, ratio.high)}",
        )
        for title, ratio in measured_speedups(speedup)
    ] or [m.Tile(ABSENT, "no speed-up", "nothing was timed, or the times do not count")]


def _samples(samples: Sequence[TimedSample]) -> m.ReportSection | None:
    """Return one plot for each timed case."""
    cases = dict.fromkeys(sample.case for sample in samples)
    arms = dict.fromkeys(sample.arm for sample in samples)
    unknown = [arm for arm in arms if arm not in _ARMS]
    more = zip(unknown, _MORE_STYLES * len(unknown), strict=False)
    styles = _ARMS | {arm: (style, arm) for arm, style in more}
    plots = []
    for case in cases:
        own = [sample for sample in samples if sample.case == case]
        plot = figures.dots_plot(own, styles, what="one call")
        label = "Every timed batch over the rounds; the legend has the medians"
        plots.append(m.section(case, m.Figure("plot", plot, label, "dots")))
    if not plots:
        return None
    said = m.note(
        "Every timed batch, as the time of one call by the judge's clock. In each round every arm "
        "ran once, in random order. The scale is logarithmic."
    )
    return m.section("Raw samples", said, *plots, on="page")


def _judged(verdict: Verdict, kernel: Kernel, problem: Problem) -> m.ReportSection:
    libraries = ", ".join(problem.libraries)
    own = f"in the kernel's own code{f'; library {libraries} allowed' if libraries else ''}"
    work = own if problem.task == "own" else "anywhere, libraries included"
    named = f"{kernel.name}, {kernel.language}, entry "
    visible = [case for case in problem.cases if not case.hidden]
    hash = m.Span(short_hash(verdict.kernel_hash), "code")
    facts: list[tuple[str, m.Inline]] = [
        ("problem", (f"{problem.name} ", m.Span(short_hash(verdict.problem_hash), "code"))),
        ("the work must run", work),
        ("kernel", (named, m.Span(kernel.entry, "code"), " ", hash)),
    ]
    return m.section(
        "The problem and the kernel",
        m.Facts(facts),
        m.section("Visible cases", m.ResultTable(CASES, visible)) if visible else None,
        m.section("the kernel's source", m.Lines([kernel.source]), closed=True),
        on="page",
    )


def _input(spec: TensorSpec) -> str:
    layout = "" if spec.layout == "contiguous" else f" {spec.layout}"
    shape = " × ".join(str(extent) for extent in spec.shape) or "scalar"
    return f"{spec.dtype} {shape}{layout}"


def show_status(status: str) -> str:
    """Format a status for people."""
    return status.replace("_", " ")


def status_cell(status: str) -> m.Span:
    """Format a status with its colour."""
    return m.Span(show_status(status), tone(status))


def tone(status: str) -> str:
    """Return a status's tone for colouring: `yes`, `no`, or empty for neither."""
    if status == "proven":
        return "yes"
    return "" if status in ("correct", "screened", "unanswered", "not_reached", "none") else "no"


def show_speedup(ratio: Ratio) -> str:
    """Format a ratio with its interval."""
    return f"{show_ratio(ratio.ratio)} ({show_interval(ratio.low, ratio.high)})"


def show_confidence(ratio: Ratio) -> str:
    """Format the confidence as `98.3 % interval`; old verdicts without one give `interval`."""
    if ratio.confidence is None:
        return "interval"
    return f"{100 * ratio.confidence:.3g} % interval"


def measured_speedups(speedup: Speedups) -> list[tuple[str, Ratio]]:
    """Return each rival that the kernel was timed against, with the ratio."""
    found = ((title, getattr(speedup, key)) for key, title in RIVALS.items())
    return [(title, ratio) for title, ratio in found if ratio is not None]


def recalled_words(judged_at: str) -> str:
    """Say that a verdict is not of this run."""
    return f"from the ledger, judged {show_moment(judged_at)}; not judged again"


def short_hash(hash: str) -> str:
    """Return a hash's first digits, enough to find it in the ledger."""
    return hash[:12]
