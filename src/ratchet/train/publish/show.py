"""The report of `ratchet export` on a terminal."""

from __future__ import annotations

from pathlib import Path

from ratchet.base.show import model as m
from ratchet.base.show.words import ABSENT
from ratchet.train.publish.export_result import ExportResult

WHAT = {
    "kernels": "a repository of Hugging Face's kernels",
    "wheel": "a project that pip builds",
    "patch": "a patch",
    "export": "programs of torch.export",
}
KERNELS = (
    m.name("kernel", "entry"),
    m.Column("of", "library"),
    m.Column("language"),
    m.number("speed-up", "speedup"),
    m.Column("judged again", "after"),
)
PROGRAMS = (
    m.name("program", "file"),
    m.number("operations"),
    m.number("apart", "apart", lambda value: f"{value:.1e}"),
    m.why("ONNX", "onnx"),
)
FALLBACKS = (
    m.name("operator"),
    m.Column("program"),
    m.number("calls"),
    m.Column("Core ATen", "core_aten", lambda value: _yes(value)),
    m.Column("ONNX", "onnx", lambda value: _yes(value)),
)


def export_report(result: ExportResult) -> m.ResultReport:
    """Return what was exported and how it was checked."""
    left = m.grid(("left out", "why"), result.left_out)
    return m.ResultReport(
        title=f"export of {result.subject}",
        heading="export",
        headline=f"{result.subject} is exported as {WHAT[result.to]}: {result.out}",
        header=tuple(m.Words(f"{one}.") for one in result.checks),
        sections=m.blocks(
            m.section("Kernels", m.ResultTable(KERNELS, result.kernels))
            if result.kernels
            else None,
            m.section("Left out", left) if result.left_out else None,
            m.section("Programs", m.ResultTable(PROGRAMS, result.programs))
            if result.programs
            else None,
            _fallbacks(result),
            m.section("The patch adds", m.Lines(result.lines)) if result.lines else None,
            m.section("Next", m.Lines(next_lines(result))),
        ),
    )


def next_lines(result: ExportResult) -> list[str]:
    """Return the commands that use an export."""
    out = Path(result.out)
    return {
        "kernels": [f"hf upload USER/{out.resolve().name} {out} --repo-type kernel"],
        "wheel": [f"pip wheel --no-deps {out}"],
        "patch": [f"git apply {out}"],
        "export": [f"python -c 'import torch; torch.export.load(\"{out}/step.pt2\")'"],
    }[result.to]


def _fallbacks(result: ExportResult) -> m.ReportSection | None:
    if result.to != "export":
        return None
    if not result.fallbacks:
        return m.section("Operators that may fall back", m.Words("None."))
    table = m.ResultTable(FALLBACKS, result.fallbacks)
    return m.section("Operators that may fall back", table)


def _yes(value: bool) -> str:
    return {True: "yes", False: "no"}.get(value, ABSENT)
