"""Compilation that the recording caught: graph breaks and recompilations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.trace.advice.finding import Finding, milliseconds

if TYPE_CHECKING:
    from ratchet.trace.report import Report


def find(report: Report) -> Finding | None:
    """Graph breaks or recompilations."""
    compiled = report.compiled
    if compiled is None or not (compiled.graph_breaks or compiled.recompilations):
        return None
    reasons = [*compiled.break_reasons, *compiled.recompile_reasons]
    why = f": {'; '.join(reasons[:3])}" if reasons else ""
    return Finding(
        name="graph-breaks",
        evidence=(
            f"{compiled.graph_breaks} graph breaks and {compiled.recompilations} recompilations, "
            f"{milliseconds(compiled.compile_time)} of compilation in the recording{why}"
        ),
        gain=compiled.compile_time,
        levers=(),
        remedy=(
            "run with TORCH_LOGS=graph_breaks,recompiles, mark changing sizes with "
            "torch._dynamo.mark_dynamic, and move what dynamo cannot trace out of the step"
        ),
    )
