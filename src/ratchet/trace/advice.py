"""Findings: what could be won, the evidence for it, and the levers that try it, largest first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ratchet.base.show.words import show_ns
from ratchet.trace.answers.report import Report
from ratchet.trace.answers.sequences import SequenceRow

COMPILE = ("compile", "compile-max-autotune")
OPTIMIZER = re.compile(r"_foreach_|_fused_adam|multi_tensor_apply|Optimizer", re.IGNORECASE)
ADAMW = re.compile(r"_fused_adam|Adam|addcdiv", re.IGNORECASE)
_OTHER_OPTIMIZER = re.compile(r"Optimizer\.step#(?!AdamW?\b)")
OPTIMIZER_LEVERS = ("fused-optimizer",)
KERNEL_LEVERS = (
    (re.compile(r"rms_?norm", re.IGNORECASE), "kernel:rms_norm"),
    (re.compile(r"layer_?norm", re.IGNORECASE), "kernel:layer_norm"),
    # Half of a rotated vector is negated and joined to the other.
    (re.compile(r"Rotary|rope\b|^(?=.*(::neg\b|neg_kernel))(?=.*(::cat\b|CatArray))",
                re.IGNORECASE), "kernel:rope"),
    (re.compile(r"log_softmax|LogSoftMax|nll_loss|cross_entropy", re.IGNORECASE),
     "kernel:linear_cross_entropy"),
    # A gate is an activation and a product with another branch.
    (re.compile(r"SwiGLU|GeGLU|(::silu|::gelu)(?=.*(::mul|MulFunctor))", re.IGNORECASE),
     "kernel:gated_activation"),
)  # fmt: skip
"""Kernels of the library by the module or op that they replace, on a CPU and on a GPU."""
SERVED = ("cpu", "cuda", "rocm")
"""Platforms that the library has kernels for: C++ on a CPU, Triton on a GPU."""
_COUNTED = re.compile(r"_\d+$")  # The number that the profiler appends to a module's class name
_NAMED = 3
_SHARE = 0.1  # Runs below this share of the gain name no kernel of the library


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """An observation, the most it could give, and the levers that try it."""

    name: str
    evidence: str
    gain: int  # Upper bound on the time saved in the window, in ns
    levers: tuple[str, ...] = ()  # Names for `ratchet optimize --try`; empty if no lever does it
    remedy: str
    always: bool = False  # True if it is named however little it gives


def fusible_kernels(report: Report) -> Advice | None:
    """Find runs of kernels between products, copies and collectives."""
    runs = [row for row in report.sequences if row.under == "between products"]
    runs = sorted((row for row in runs if row.could_win > 0), key=lambda row: -row.could_win)
    gain = min(sum(row.could_win for row in runs), report.identity.window)
    if not runs:
        return None
    what = "kernels" if report.on_device else "ops"
    said = "; ".join(_words(row, what) for row in runs[:_NAMED])
    more = len(runs) - _NAMED
    return Advice(
        name="fusible-kernels",
        evidence=(
            f"{sum(row.count * row.length for row in runs):,} {what} run one after another with "
            f"no product between them: {said}" + (f"; and {more} more sorts of run" * (more > 0))
        ),
        gain=gain,
        levers=_levers(runs, gain, report.platform in SERVED),
        remedy=(
            "fuse them: a fused run takes at least the time of its longest kernel, and no more if "
            "the others only touch the same data"
        ),
    )


def _words(row: SequenceRow, what: str) -> str:
    home = _COUNTED.sub("", row.name.rpartition(" > ")[2]).removeprefix("Optimizer.step#")
    where = f" in {home}" if home else f" around {row.op}" if row.op else ""
    return (
        f"{row.count:,} x {row.length} {what}{where} take {show_ns(row.time + row.gaps)}, "
        f"the longest of each {show_ns(row.longest)}"
    )


def _levers(runs: list[SequenceRow], gain: int, served: bool) -> tuple[str, ...]:
    """Return what would take the runs' time away, of the heaviest run first."""
    found: dict[str, None] = {}
    for row in runs:
        if row.could_win >= _SHARE * gain:
            text = " ".join((row.name, row.op, *row.kernels))
            found.update((lever, None) for lever in _levers_of(text, served))
    return (*found, *COMPILE)


def _levers_of(text: str, served: bool) -> Iterator[str]:
    """Yield the levers of a run by the names in it."""
    if OPTIMIZER.search(text):
        if served and ADAMW.search(text) and not _OTHER_OPTIMIZER.search(text):
            yield "kernel:adamw"
        if "aten::_fused_" not in text:
            yield from OPTIMIZER_LEVERS
    elif served:
        yield from (lever for what, lever in KERNEL_LEVERS if what.search(text))


def attention(report: Report) -> Advice | None:
    """Find attention far from the ceilings: a product, so no run of fusible kernels holds it."""
    rows = [row for row in report.roofline if row.category == "attention" and row.could_win]
    rows = [row for row in rows if row.name.startswith("aten::")]
    gain = min(sum(row.could_win for row in rows), report.identity.window)
    if not gain or report.platform not in SERVED:
        return None
    return Advice(
        name="attention",
        evidence=(
            f"{sum(row.count for row in rows):,} calls of attention take "
            f"{show_ns(sum(row.time for row in rows))}, and at the ceilings "
            f"{show_ns(sum(row.least for row in rows))}"
        ),
        gain=gain,
        levers=("kernel:attention",),
        remedy="have the library's kernel judged on these shapes: it is kept only if it is faster",
    )


WORTH = 0.02  # Findings below this share of the window are dropped
ASSUMED_SPEEDUP = 2
"""Assumed speedup of a narrower type: a cautious figure without a source. It only ranks the
finding; the lever's own measurement decides."""


def advise(report: Report) -> tuple[Advice, ...]:
    """Return the findings that apply and are worth naming, the one with the largest gain first."""
    # Times of the CPU on a run that computes on a device say nothing about its kernels.
    finders = FINDINGS if report.on_device or report.platform == "cpu" else (graph_breaks,)
    made = [finding for find in finders if (finding := find(report)) is not None]
    least = max(WORTH * report.identity.window, 1)
    found = [one for one in made if one.gain >= least or one.always]
    return tuple(sorted(found, key=lambda finding: -finding.gain))


def exposed_communication(report: Report) -> Advice | None:
    """Find communication that no compute hides."""
    whole = report.identity
    if whole.overlap is None:
        return None
    return Advice(
        name="exposed-communication",
        evidence=(
            f"{show_ns(whole.exposed_communication)} of "
            f"{show_ns(whole.communication)} of communication is not hidden by compute "
            f"({whole.overlap:.1%} overlap)"
        ),
        gain=whole.exposed_communication,
        remedy=(
            "start collectives earlier (DDP bucket_cap_mb, FSDP prefetch), send fewer bytes (bf16 "
            "gradients), or compare ranks: waiting for a late rank counts as communication"
        ),
    )


def graph_breaks(report: Report) -> Advice | None:
    """Find graph breaks and recompilations that the recording caught."""
    compiled = report.compiled
    if compiled is None or not (compiled.graph_breaks or compiled.recompilations):
        return None
    reasons = [*compiled.break_reasons, *compiled.recompile_reasons]
    why = f": {'; '.join(reasons[:3])}" if reasons else ""
    return Advice(
        name="graph-breaks",
        always=True,
        evidence=(
            f"{compiled.graph_breaks} graph breaks and {compiled.recompilations} recompilations, "
            f"{show_ns(compiled.compile_time)} of compilation in the recording{why}"
        ),
        gain=compiled.compile_time,
        remedy=(
            "run with TORCH_LOGS=graph_breaks,recompiles, mark changing sizes with "
            "torch._dynamo.mark_dynamic, and move what dynamo cannot trace out of the step"
        ),
    )


def _idle(name: str, gain: int, cause: str, remedy: str) -> Advice:
    said = f"the device idles {show_ns(gain)} while the CPU {cause}"
    return Advice(name=name, evidence=said, gain=gain, remedy=remedy)


def data_loading(report: Report) -> Advice:
    """Find idle time while the CPU is in a data loader."""
    remedy = "raise the loader's num_workers and prefetch_factor, and set pin_memory"
    return _idle("data-loading", report.idle.data_loading, "loads data", remedy)


def host_bound(report: Report) -> Advice | None:
    """Find idle time that ends with work that the CPU launched late."""
    if not report.on_device:
        return None
    gain = report.idle.host_bound
    return Advice(
        name="host-bound",
        evidence=(
            f"the device idles {show_ns(gain)} before work that the CPU launched late "
            f"({report.launches.count:,} launches)"
        ),
        gain=gain,
        levers=("compile", "compile-max-autotune", "fused-optimizer"),
        remedy="launch less: compile the step, capture it in a graph, or raise the batch size",
    )


def queued_gaps(report: Report) -> Advice | None:
    """Find idle time before work that was launched long before."""
    gain = report.idle.kernel_gap - report.idle.turn_around
    if not report.launches.count or gain <= 0:
        return None
    return Advice(
        name="queued-gaps",
        evidence=(
            f"the device idles {show_ns(gain)} in gaps of more than 10 µs before work that was "
            "launched already, or whose launch is unknown"
        ),
        gain=gain,
        remedy=(
            "see what the work after the longest gaps waits for: an event of another stream, "
            "another process on the device, or the profiler itself"
        ),
    )


def fp32_matmuls(report: Report) -> Advice | None:
    """Find matrix multiplies that run in fp32 on a device with faster units."""
    slow = [row for row in report.matmuls if row.kernel == "fp32" and row.inputs in ("fp32", "")]
    if not report.on_device or not slow:
        return None
    time = min(sum(row.time for row in slow), report.identity.compute)
    return Advice(
        name="fp32-matmuls",
        evidence=(
            f"{show_ns(time)} in {sum(row.count for row in slow):,} fp32 matrix kernels, most "
            f"of it in {slow[0].op or slow[0].example}"
        ),
        gain=time - time // ASSUMED_SPEEDUP,
        levers=("bf16-autocast", "bf16-weights", "matmul-precision"),
        remedy="lower the precision of matrix multiplies if the loss allows it",
    )


def recompute(report: Report) -> Advice | None:
    """Find forward work that activation checkpointing runs a second time."""
    gain = report.recompute.device
    return Advice(
        name="recompute",
        evidence=(
            f"checkpointing recomputes {show_ns(gain)} of forward work "
            f"({report.recompute.share:.1%} of the device time that ops launched)"
        ),
        gain=gain,
        remedy="checkpoint fewer blocks, or only cheap ones, if the peak leaves memory free",
    )


def small_kernels(report: Report) -> Advice | None:
    """Find small device work and short gaps between queued kernels."""
    launches = report.launches
    if not launches.small:
        return None
    # If no launch is known, every gap counts as turn-around: that says nothing about kernels.
    gaps = report.idle.turn_around if launches.count else 0
    return Advice(
        name="small-kernels",
        evidence=(
            f"{launches.small:,} pieces of device work are shorter than "
            f"{show_ns(launches.small_below)} ({show_ns(launches.small_time)} together, "
            f"{show_ns(gaps)} in gaps of up to 10 µs between queued work)"
        ),
        gain=min(gaps + launches.small_time // 2, report.identity.window),
        levers=("compile", "fused-optimizer"),
        remedy="fuse elementwise chains and optimizer updates",
    )


def synchronisation(report: Report) -> Advice:
    """Find idle time around synchronising calls."""
    gain, waited_in = report.idle.synchronisation, report.idle.waited_in
    cause = f"is in a synchronising call, most of it in {waited_in}"
    remedy = "read losses and masks less often: .item(), .cpu() and nonzero wait for the device"
    if waited_in.endswith(("Malloc", "Free")):
        remedy = (
            "run a few steps before you record, as the first calls start the device and get its "
            "memory; if later steps do it too, memory is short or fragmented: see `ratchet memory`"
        )
    return _idle("synchronisation", gain, cause, remedy)


FINDINGS: tuple[Callable[[Report], Advice | None], ...] = (
    exposed_communication,
    graph_breaks,
    data_loading,
    fusible_kernels,
    attention,
    host_bound,
    queued_gaps,
    fp32_matmuls,
    recompute,
    small_kernels,
    synchronisation,
)
