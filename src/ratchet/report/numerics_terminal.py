"""A comparison of numerics on the terminal."""

from __future__ import annotations

import sys

from rich.text import Text

from ratchet.guard.numerics.comparison import SCRIPT, headline
from ratchet.guard.numerics.divergence import Divergence, NumericsReport
from ratchet.report.compare_terminal import short
from ratchet.report.console import make_console, table, verbatim


def print_numerics(report: NumericsReport) -> None:
    """Print the first divergence, what surrounds it, and the script."""
    console = make_console()
    console.print(Text(headline(report), style="bold"))
    console.print(f"A (reference): {report.titles[0]}")
    console.print(f"B (compared):  {report.titles[1]}")
    if report.divergence is not None:
        for line in _divergence_lines(report.divergence):
            console.print(line)
    broken = report.not_finite
    if broken is not None:
        console.print(f"its inputs: {'; '.join(broken.inputs) or 'none'}")
        if broken.place:
            console.print(f"your code:  {broken.place}")
    elif report.divergence is None or report.divergence.part != "weights":
        console.print(f"{report.compared} tensors were compared against {report.oracle}")
    if report.largest:
        console.print()
        rows = [(name, f"{error:.1e}") for name, error in report.largest]
        console.print(table(("B errs most at", "relative error"), rows))
    console.print()
    steps = list(zip(*report.losses, strict=True))
    for name, at in (("first loss", 0), ("last loss", -1)):
        if steps:
            console.print(f"{name}: A {steps[at][0]:.6f}, B {steps[at][1]:.6f}")
    lines = []
    if report.reproduces is not None:
        seen = "it reproduces" if report.reproduces else "the module alone does NOT reproduce it"
        lines.append(f"script: {report.folder}/{SCRIPT} ({seen})")
    if report.exit_code and report.turn:
        lines.append(f"next: ratchet repro {short(report.turn)}")
    verbatim(console, lines)
    for warning in report.warnings:
        print(f"ratchet: {warning}", file=sys.stderr)


def _divergence_lines(found: Divergence) -> list[str]:
    if found.part == "weights" or found.detail:
        return [found.detail]
    lines = [
        f"error {found.error:.2e} against the reference; the dtype explains "
        f"{found.allowed_error:.2e} (the baseline's error is {found.baseline_error:.2e})"
    ]
    if abs(found.scale) > found.error / 2:
        lines.append(
            f"it is too {'large' if found.scale > 0 else 'small'} by {abs(found.scale):.2%}"
        )
    if found.op is not None:
        op = found.op
        where = f"op {op.index} of the module, {op.op}"
        if op.error is None:
            other = f"where A runs {op.expected}" if op.expected else "which A does not run"
            lines.append(f"{where}, {other}")
        else:
            lines.append(f"{where}: its output is off by {op.error:.2e}")
    return lines
