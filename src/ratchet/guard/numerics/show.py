"""A comparison of numerics: the first divergence, what surrounds it, and the script."""

from __future__ import annotations

from ratchet.base.show.model import Lines, ResultReport, blocks, grid
from ratchet.guard.compare.show import short
from ratchet.guard.numerics.comparison import SCRIPT, headline
from ratchet.guard.numerics.divergence import Divergence, NumericsReport


def numerics_report(report: NumericsReport) -> ResultReport:
    """Describe the first divergence, what surrounds it, and the script."""
    largest = [(name, f"{error:.1e}") for name, error in report.largest]
    return ResultReport(
        headline=headline(report),
        header=blocks(
            f"A (reference): {report.titles[0]}",
            f"B (compared):  {report.titles[1]}",
            *(_divergence(report.divergence) if report.divergence else ()),
            *_inputs(report),
            grid(("B errs most at", "relative error"), largest),
            *_losses(report),
            Lines(_next(report), indent=0),
        ),
    )


def _inputs(report: NumericsReport) -> list[str]:
    broken = report.not_finite
    if broken is not None:
        place = f"your code:  {broken.place}" if broken.place else ""
        return [f"its inputs: {'; '.join(broken.inputs) or 'none'}", place]
    if report.divergence is None or report.divergence.part != "weights":
        return [f"{report.compared} tensors were compared against {report.oracle}"]
    return []


def _losses(report: NumericsReport) -> list[str]:
    steps = list(zip(*report.losses, strict=True))
    return [
        f"{name}: A {steps[at][0]:.6f}, B {steps[at][1]:.6f}"
        for name, at in (("first loss", 0), ("last loss", -1))
        if steps
    ]


def _next(report: NumericsReport) -> list[str]:
    lines = []
    if report.reproduces is not None:
        seen = "it reproduces" if report.reproduces else "the module alone does NOT reproduce it"
        lines.append(f"script: {report.folder}/{SCRIPT} ({seen})")
    if report.exit_code and report.turn:
        lines.append(f"next: ratchet repro {short(report.turn)}")
    return lines


def _divergence(found: Divergence) -> list[str]:
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
