"""Render the page of one verdict: one file that opens offline, with no script and no loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.report import figures
from ratchet.report.emulated_table import estimate_table, heat_tables
from ratchet.report.environment import page_environment, plain
from ratchet.report.static_table import static_tables
from ratchet.report.verdict_words import (
    MEANING,
    measured_speedups,
    short_hash,
    show_confidence,
    show_status,
    tone,
)

_ARMS = {
    "reference": ("as_written", "the reference"),
    "reference again": ("twin", "the reference again (A/A)"),
    "torch.compile": ("best_compile", "torch.compile of the reference"),
    "candidate": ("ratchet", "the kernel"),
}
_MORE_STYLES = ("same_arithmetic", "best_compile_same")


def render_verdict_page(judged: Mapping[str, Any]) -> str:
    """Return the page of one verdict as HTML.

    `judged` is a `JudgedKernel` as plain data: the verdict, the kernel and the problem. All text is
    escaped, and the page's own policy forbids scripts and loads.
    """
    verdict, kernel, problem = judged["verdict"], judged["kernel"], judged["problem"]
    page = page_environment().get_template("verdict.html")
    return page.render(
        verdict=verdict,
        kernel=kernel,
        problem=problem,
        judged_at=judged["judged_at"],
        recalled=judged["recalled"],
        status=show_status(verdict["status"]),
        meaning=MEANING[verdict["status"]],
        tone=tone(verdict["status"]),
        speedups=measured_speedups(verdict),
        plots=_plots(verdict["samples"]),
        static=static_tables(verdict.get("static")),
        estimates=estimate_table(verdict.get("emulated") or ()),
        heat=heat_tables(verdict.get("emulated") or (), str(kernel["source"])),
        cases=_case_rows(problem["cases"]),
        environment=_facts(verdict["environment"]),
        short_hash=short_hash,
        show_confidence=show_confidence,
    )


def _plots(samples: Sequence[Mapping[str, Any]]) -> list[tuple[str, figures.Plot]]:
    """Return one plot for each timed case."""
    cases = dict.fromkeys(str(sample["case"]) for sample in samples)
    arms = dict.fromkeys(str(sample["arm"]) for sample in samples)
    unknown = [arm for arm in arms if arm not in _ARMS]
    styles = _ARMS | {
        arm: (style, arm) for arm, style in zip(unknown, _MORE_STYLES * len(unknown), strict=False)
    }
    titles = {arm: title for arm, (_, title) in styles.items()}
    colours = {arm: style for arm, (style, _) in styles.items()}
    plots = []
    for case in cases:
        own = [sample for sample in samples if sample["case"] == case]
        plot = figures.dots_plot(own, titles, what="one call", colours=colours)
        if plot is not None:
            plots.append((case, plot))
    return plots


def _case_rows(cases: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return every case that is not hidden, with its inputs."""
    return [
        (str(case["name"]), "timed" if case["timed"] else "", _inputs(case))
        for case in cases
        if not case["hidden"]
    ]


def _inputs(case: Mapping[str, Any]) -> str:
    shown = []
    for spec in case["inputs"]:
        layout = "" if spec["layout"] == "contiguous" else f" {spec['layout']}"
        shown.append(f"{spec['dtype']} {_shape(spec['shape'])}{layout}")
    return ", ".join(shown)


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(str(extent) for extent in shape) or "scalar"


def _facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), plain(value)) for name, value in environment.items()]
