"""Kernels that run one after another with no product between them: candidates for fusion."""

from __future__ import annotations

import re

from ratchet.trace.advice.finding import Finding, milliseconds
from ratchet.trace.answers.report import Report
from ratchet.trace.answers.sequences.sequences import SequenceRow

COMPILE = ("compile", "compile-max-autotune")
OPTIMIZER = re.compile(r"_foreach_|_fused_adam|multi_tensor_apply|Optimizer", re.IGNORECASE)
OPTIMIZER_LEVERS = ("fused-optimizer", "foreach-optimizer")
KERNEL_LEVERS = (
    (re.compile(r"RMSNorm", re.IGNORECASE), "kernel:rms_norm"),
    (re.compile(r"LayerNorm|native_layer_norm", re.IGNORECASE), "kernel:layer_norm"),
    (re.compile(r"Rotary|rope\b|RoPE", re.IGNORECASE), "kernel:rope"),
    (re.compile(r"log_softmax|nll_loss|cross_entropy", re.IGNORECASE),
     "kernel:linear_cross_entropy"),
    (re.compile(r"::silu|::gelu|SwiGLU|GeGLU", re.IGNORECASE), "kernel:gated_activation"),
    (OPTIMIZER, "kernel:adamw"),
)  # fmt: skip
"""Kernels of the library by the module or op that they replace; they run on CPUs."""
_COUNTED = re.compile(r"_\d+$")
"""The number that the profiler appends to a module's class name."""
_NAMED = 3
_SHARE = 0.1
"""Runs below this share of the gain name no kernel of the library."""


def fusible_kernels(report: Report) -> Finding | None:
    """Find runs of kernels between products, copies and collectives."""
    runs = [row for row in report.sequences if row.under == "between products"]
    runs = sorted((row for row in runs if row.could_win > 0), key=lambda row: -row.could_win)
    gain = min(sum(row.could_win for row in runs), report.identity.window)
    if not runs:
        return None
    what = "kernels" if report.on_device else "ops"
    said = "; ".join(_words(row, what) for row in runs[:_NAMED])
    more = len(runs) - _NAMED
    return Finding(
        name="fusible-kernels",
        evidence=(
            f"{sum(row.count * row.length for row in runs):,} {what} run one after another with "
            f"no product between them: {said}" + (f"; and {more} more sorts of run" * (more > 0))
        ),
        gain=gain,
        levers=_levers(runs, gain, report.platform == "cpu"),
        remedy=(
            "fuse them: a fused run takes at least the time of its longest kernel, and no more if "
            "the others only touch the same data"
        ),
    )


def _words(row: SequenceRow, what: str) -> str:
    module = _COUNTED.sub("", row.name.rpartition(" > ")[2])
    where = f" in {module}" if module else f" around {row.op}" if row.op else ""
    return (
        f"{row.count:,} x {row.length} {what}{where} take {milliseconds(row.time + row.gaps)}, "
        f"the longest of each {milliseconds(row.longest)}"
    )


def _levers(runs: list[SequenceRow], gain: int, on_cpu: bool) -> tuple[str, ...]:
    """Return the levers for the heaviest runs, on CPUs those of the library's kernels first."""
    found: dict[str, None] = {}
    optimizer = 0
    for row in runs:
        text = " ".join((row.name, row.op, *row.kernels))
        if OPTIMIZER.search(text):
            optimizer += row.could_win
        if on_cpu and row.could_win >= _SHARE * gain:
            found.update((lever, None) for what, lever in KERNEL_LEVERS if what.search(text))
    ours = OPTIMIZER_LEVERS if optimizer >= gain / 2 else ()
    return (*found, *ours, *COMPILE)
