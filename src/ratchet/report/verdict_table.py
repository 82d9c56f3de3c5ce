"""Print one verdict on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ratchet.report.console import heading, make_console, table, verbatim
from ratchet.report.emulated_table import print_estimates
from ratchet.report.static_table import print_static
from ratchet.report.verdict_words import (
    MEANING,
    measured_speedups,
    recalled_words,
    show_confidence,
    show_speedup,
    show_status,
)


def print_verdict(judged: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of `ratchet judge PROBLEM KERNEL`.

    `judged` is a `JudgedKernel` as plain data, with `paths` if files were written. The console
    defaults to stdout.
    """
    out = console or make_console()
    verdict, status = judged["verdict"], judged["verdict"]["status"]
    out.print(f"{show_status(status)}: {verdict['reason']}")
    out.print(f"({MEANING[status]})")
    if judged["recalled"]:
        out.print(f"({recalled_words(judged['judged_at'])})")
    heading(out, "Evidence")
    if verdict["evidence"]:
        out.print(table(("", "check", "detail"), map(_row, verdict["evidence"]), left=3))
    else:
        out.print("Nothing was checked.")
    heading(out, "Speed-up")
    speedups = measured_speedups(verdict)
    for title, ratio in speedups:
        out.print(f"against {title}: {show_speedup(ratio)}, {show_confidence(ratio)}")
    if not speedups:
        out.print("none: nothing was timed, or the times do not count")
    print_estimates(out, verdict.get("emulated") or ())
    if verdict["environment"].get("tier"):
        heading(out, "Sizes")
        out.print(f"tier {verdict['environment']['tier']}")
    heading(out, "Isolation")
    out.print(verdict["isolation"])
    print_static(out, verdict.get("static"))
    if judged.get("paths"):
        heading(out, "Written")
        verbatim(out, (f"    {path}" for path in judged["paths"].values()))


def _row(evidence: Mapping[str, Any]) -> tuple[str, str, str]:
    passed = {True: "ok", False: "NO", None: "-"}[evidence["passed"]]
    return (passed, evidence["check"], evidence["detail"])
