"""Measure one workload's step time, throughput, MFU and peak memory in this process."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ratchet.base.devices.ceilings import above, measure, unrefuted
from ratchet.base.devices.probe import probe
from ratchet.base.show import model as m
from ratchet.base.show.words import common_unit, show_bytes, show_rate, show_share
from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.config import StepConfig, gemm_dtype
from ratchet.train.workloads.fake import flops_of
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.workload import Workload, count

WARMUP_STEPS = 3
"""The first step allocates and compiles, and the second may compile again; later ones are alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchResult:
    """Measurements of a run of steps. Times are medians; memory is the process's peak."""

    workload: str
    device: str
    precision: str
    compile_mode: str | None
    steps: int
    parameters: int
    step_time_s: float
    low_s: float  # Time within which the fastest tenth of the steps finished
    high_s: float  # Time within which nine tenths of the steps finished
    first_step_s: float
    tokens_per_s: float  # Items of `unit` (tokens, images or samples) per second
    unit: str
    flops_per_step: int
    mfu: float
    """Share of the measured matrix-product rate in the step's dtype; 0 if none was measured."""
    peak_memory_bytes: int
    loss: float | None  # None if it is not finite
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""


def bench(workload: Workload, config: StepConfig, steps: int = 10) -> BenchResult:
    """Run `steps` timed steps after a warm-up, on fresh batches. Trains the workload in place."""
    first = batch_of(workload, 0)
    per_step, unit = count(workload, first)
    step = TrainingStep(workload, config)
    flops = flops_of(step, first)
    ran = [_timed(step, index) for index in range(WARMUP_STEPS + steps)]
    low_s, median_s, high_s = spread_of([time_s for time_s, _ in ran[WARMUP_STEPS:]])
    rate = gemm_rate(workload, config, flops / median_s)
    return BenchResult(
        workload=workload.name,
        device=workload.device,
        precision=config.precision,
        compile_mode=config.compile_mode,
        steps=steps,
        parameters=sum(p.numel() for p in workload.model.parameters()),
        step_time_s=median_s,
        low_s=low_s,
        high_s=high_s,
        first_step_s=ran[0][0],
        tokens_per_s=per_step / median_s,
        unit=unit,
        flops_per_step=flops,
        mfu=flops / median_s / rate if rate else 0.0,
        peak_memory_bytes=peak_memory_bytes(workload.device),
        loss=ran[-1][1],
    )


def spread_of(times_s: Sequence[float]) -> tuple[float, float, float]:
    """Return the time of the fastest tenth, the median, and the time of nine tenths."""
    ordered, count = sorted(times_s), len(times_s)
    return ordered[count // 10], statistics.median(ordered), ordered[(9 * count) // 10]


def peak_memory_bytes(device: str) -> int:
    """Return this process's peak resident memory or, on a GPU, the peak that torch allocated."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # getrusage(2) counts kilobytes on Linux and bytes on macOS.
    return peak if sys.platform == "darwin" else peak * 1024


def _timed(step: TrainingStep, index: int) -> tuple[float, float]:
    """Run one step and return (time_s, loss); the batch is made before the clock starts."""
    batch, device = batch_of(step.workload, index), step.workload.device
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    loss = step(batch)
    if on_gpu:
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_s, float(loss)


def gemm_rate(workload: Workload, config: StepConfig, reached: float) -> float:
    """Return the measured ceiling of the step's dtype, in FLOP/s; 0 if unmeasured.

    A step that `reached` more refutes it: then it is measured anew.
    """
    device, dtype = probe(workload.device), gemm_dtype(config)
    found = unrefuted(device, measure(device), lambda one: above(one, reached, dtype))
    return found.flops_per_s.get(dtype, 0.0)


def bench_report(results: Sequence[BenchResult]) -> m.ResultReport:
    """Describe the result of `ratchet bench`: one row per workload."""
    unit = common_unit([row.step_time_s for row in results])
    counted = sorted({row.unit for row in results}, reverse=True)
    columns = (
        m.name("workload"),
        m.number(f"step, {unit.name}", "step_time_s", unit.show),
        m.number(f"{' or '.join(counted)}/s", "tokens_per_s", show_rate),
        m.number("MFU", "mfu", show_share),
        m.number("peak memory", "peak_memory_bytes", show_bytes),
    )
    said = (m.Words(line, "warning") for row in results for line in row.warnings)
    return m.ResultReport(header=(m.ResultTable(columns, results), *said))
