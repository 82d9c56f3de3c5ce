"""Timing of torch's GEMM, copy and triad, and of multiply-adds in registers.

No other file here puts load on the device. Batches are short on a CPU, so that on a busy machine
some of them fit into a moment in which the cores are free.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from ratchet.base import scratch
from ratchet.base.devices.probe import Device, compiler, level_bytes
from ratchet.base.errors import DeviceError

LOG = logging.getLogger(__name__)

GEMM_BUDGET_S = 0.7  # Time for each dtype, over all sizes and layouts
STREAM_BUDGET_S = 0.15  # Time for each cache level
LOOP_BUDGET_S = 0.2  # Time for each dtype of the loop of multiply-adds
BATCH_S = {"cpu": 5e-4, "cuda": 2e-3}
"""Least length of a timed batch, so that the clock and a launch do not matter."""
MOST_BATCHES = 400
PARTS = {"cpu": 16, "cuda": 1}  # Parts of a DRAM working set, each a step of its own
LOOP = Path(__file__).parent / "data" / "multiply_add.cpp"
LOOP_FLAGS = ("-O2", "-march=native", "-ffp-contract=fast", "-pthread")
LOOP_LIMIT_S = 60.0  # Limit for compiling the loop, and for running it

GEMM_SIZES = {"cpu": (512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DRAM_BYTES = {"cpu": (2**28, 2**30), "cuda": (2**31, 2**33)}
"""Least and most bytes in flight for a DRAM rate; between them, four times the last cache."""

Step = Callable[[], object]


def gemm(device: Device) -> dict[str, float]:
    """Measure a square torch.mm with a given output: best FLOP/s of sizes and layouts, by dtype."""
    names = ("fp32", "bf16", "fp16") if device.kind == "cuda" else ("fp32", "bf16")
    with _whole_precision():
        return {name: _gemm_rate(device, DTYPES[name]) for name in names}


BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def multiply_add(device: Device) -> dict[str, float]:
    """Measure multiply-adds in registers on torch's threads: FLOP/s by dtype.

    Its program is compiled first, which takes a second. Empty on a GPU, and without a C++ compiler.
    """
    path = compiler()
    if device.kind != "cpu" or path is None:
        return {}
    threads = min(torch.get_num_threads(), device.threads)
    with scratch.folder("ceilings") as folder:
        program = str(folder / "multiply_add")
        for command in (
            [path, *LOOP_FLAGS, str(LOOP), "-o", program],
            [program, str(threads), str(LOOP_BUDGET_S)],
        ):
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=LOOP_LIMIT_S, check=False
                )
            except (OSError, subprocess.SubprocessError) as error:
                LOG.info("no loop of multiply-adds was measured: %s", error)
                return {}
            if done.returncode:
                said = " ".join(done.stderr.split())
                LOG.info("the loop of multiply-adds: exit code %d %.300s", done.returncode, said)
    rates = read_rates(done.stdout)
    if BF16_FLAGS.isdisjoint(device.isa):  # the compiler asks the CPU itself, also one held to less
        rates.pop("bf16", None)
    return rates


def read_rates(text: str) -> dict[str, float]:
    """Return the best rate of each dtype from lines `fp32 2.4e11`."""
    found: dict[str, float] = {}
    for name, rate in (line.split() for line in text.splitlines()):
        found[name] = max(found.get(name, 0.0), float(rate))
    return {name: rate for name, rate in found.items() if rate > 0}


@contextlib.contextmanager
def on_one_thread() -> Iterator[None]:
    """Let torch use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def copy(device: Device) -> dict[str, float]:
    """Measure copy_ between two given buffers: bytes/s read and written, by level."""
    return _stream_rates(device, 2, lambda source, target: lambda: target.copy_(source))


def triad(device: Device) -> dict[str, float]:
    """Measure a = b + s * c over given buffers: bytes/s, by level."""
    return _stream_rates(
        device, 3, lambda out, left, right: lambda: torch.add(left, right, alpha=0.5, out=out)
    )


def _gemm_rate(device: Device, dtype: torch.dtype) -> float:
    sizes = GEMM_SIZES[device.kind]
    best, deadline = 0.0, time.perf_counter() + GEMM_BUDGET_S
    call_s: dict[int, float] = {}  # By layout: a library may lack instructions for one of them
    for size in sizes:
        for layout, step in enumerate(_gemm_steps(device, dtype, size)):
            left_s = deadline - time.perf_counter()
            # The next size takes eight times as long, and is called five times at least.
            if 5 * 8 * call_s.get(layout, 0.0) > left_s:
                continue
            times_s = timed(device, step, budget_s=max(left_s / (2 * len(sizes)), 0.02))
            call_s[layout] = best_of(times_s)
            best = max(best, 2 * size**3 / call_s[layout])
    return best


def _gemm_steps(device: Device, dtype: torch.dtype, size: int) -> Iterator[Step]:
    """Return y = x w and a linear layer's y = x w^T: libraries differ on the two."""
    try:
        left, right, out = (
            torch.randn(size, size, device=device.torch_name).to(dtype) for _ in range(3)
        )
    except RuntimeError as error:
        raise DeviceError(
            f"{device.torch_name} cannot hold a {size} x {size} matrix: {error}; free its memory"
        ) from None
    for weight in (right, right.t()):
        yield functools.partial(torch.mm, left, weight, out=out)


def _stream_rates(device: Device, arrays: int, step_of: Callable[..., Step]) -> dict[str, float]:
    """Time a step over so many buffers, each of which it reads or writes once."""
    rates = {}
    for level, size_bytes in working_sets(device).items():
        parts = PARTS[device.kind] if level == "dram" else 1
        count = size_bytes // (4 * arrays * parts)
        buffers = _buffers(device, count * parts, arrays)
        split = zip(*(one.view(parts, count).unbind() for one in buffers), strict=True)
        step = _in_turn([step_of(*own) for own in split])
        call_s = best_of(timed(device, step, budget_s=STREAM_BUDGET_S))
        rates[level] = 4 * count * arrays / call_s
    return rates


def _in_turn(steps: list[Step]) -> Step:
    """Return a step that runs these one after another, and then again from the first."""
    turn = itertools.cycle(steps)
    return lambda: next(turn)()


def working_sets(device: Device) -> dict[str, int]:
    """Return the bytes in flight for each level: half of a cache; far more than all for DRAM."""
    levels = level_bytes(device)
    least, most = DRAM_BYTES[device.kind]
    dram = min(max(least, 4 * max(levels.values(), default=0)), most)
    if device.memory_bytes:
        dram = min(dram, device.memory_bytes // 8)
    halves = {level: size // 2 for level, size in levels.items() if size < dram}
    return {**halves, "dram": dram}


def _buffers(device: Device, count: int, arrays: int) -> list[torch.Tensor]:
    try:
        # ones, not empty: all untouched pages map to one page of zeros.
        return [torch.ones(count, device=device.torch_name) for _ in range(arrays)]
    except RuntimeError as error:
        raise DeviceError(
            f"{device.torch_name} cannot hold {arrays * count * 4} bytes: {error}; free its memory"
        ) from None


def timed(device: Device, step: Step, *, budget_s: float) -> list[float]:
    """Warm up, then return seconds per call of the batches that fit the budget, at least three."""
    clock = _cuda_batch_s if device.kind == "cuda" else _cpu_batch_s
    step()
    once = clock(step, 1)
    calls = max(1, round(BATCH_S[device.kind] / max(once, 1e-7)))
    batches = min(MOST_BATCHES, max(3, int(budget_s / (max(once, 1e-7) * calls))))
    return [clock(step, calls) for _ in range(batches)]


def best_of(times_s: list[float]) -> float:
    """Return the median of the fastest quarter, so that one mistimed batch does not decide."""
    ordered = sorted(times_s)
    return float(np.median(ordered[: max(1, len(ordered) // 4)]))


def _cpu_batch_s(step: Step, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def _cuda_batch_s(step: Step, calls: int) -> float:
    start, end = (torch.Event(device="cuda", enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls


@contextlib.contextmanager
def _whole_precision() -> Iterator[None]:
    """Force real fp32 while it is measured, whatever the caller allows."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
