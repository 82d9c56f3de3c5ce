"""A lower bound on a kernel's time on a GPU that is not here, from what the emulator counted.

For each unit of the device, its work over its rate on paper, as if it never waited:

    memory   lines of 64 bytes that were touched, each moved once, over the memory's bandwidth
    matrix   cycles of the matrix instructions over the SIMDs that have a wave and the clock
    vector   4 cycles (RDNA: 1) for each other vector instruction of a wave, likewise
    LDS      bytes and bank conflicts over 128 bytes a cycle in each compute unit that has a program
             (RDNA: in both compute units of the work-group processor that has one)

The bound is the largest. It leaves out latency, stalls, caches, launches and clocks under load.

Sources: a SIMD has 16 lanes, so a wave of 64 takes 4 cycles (catalogue: 128 FP32 operations without
packing per cycle and compute unit, 4 SIMDs); the LDS has 32 banks of 4 bytes a cycle ("AMD Instinct
MI300 Instruction Set Architecture", chapter "Data Share Operations"); `mfma.csv` has the cycles.
RDNA: a SIMD has 32 lanes, so a wave of 32 takes a cycle, and the two operations of one `v_dual`
share it (catalogue: RX 7900 XTX, 61.4 TFLOP/s in FP32 at the "dual-issue rate"); the LDS of a
work-group processor has two sets of 32 banks ("RDNA3 Instruction Set Architecture", chapter "Data
Share Operations").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratchet.base.devices import catalogue, matrix
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.judge.verdict import EmulatedBound, EmulatedCase, EmulatedKernel

CYCLES: Final = {"cdna": 4, "rdna": 1}
UNITS_PER_PROGRAM: Final = {"cdna": 1, "rdna": 2}
"""Compute units whose LDS one program can use."""
LDS_BYTES_PER_CYCLE: Final = 128
SHOWN_SHARE, SHOWN_OFF = 0.01, 0.2
DUAL: Final = "v_dual_"
"""Prefix of each of the two operations of one instruction, counted under their own names."""


def matrix_cycles(target: str) -> dict[str, int]:
    """Return the cycles of a target's matrix instructions, of the slowest type of each."""
    names = {row.name for row in matrix.load() if row.gfx == target}
    return {name: row.cycles for name in sorted(names) if (row := matrix.find(target, name))}


def hottest(kernel: EmulatedKernel, source: str, count: int = 3) -> list[str]:
    """Return a sentence for each of the hottest lines, with its text from `source`."""
    cycles = max(1, sum(one.cycles for one in kernel.lines))
    lines_64 = max(1, sum(one.lines_64 for one in kernel.lines))
    texts = source.splitlines()
    said = []
    for one in kernel.lines[:count]:
        if max(one.cycles / cycles, one.lines_64 / lines_64) < SHOWN_SHARE:
            continue
        file, _, number = one.place.rpartition(":")
        own = file.startswith("kernel") and number.isdecimal() and 0 < int(number) <= len(texts)
        text = " ".join(texts[int(number) - 1].split())[:80] if own else ""
        words = (
            f"{one.cycles / cycles:.0%} of the cycles, {one.lines_64 / lines_64:.0%} of the bytes"
        )
        conflicts = f", {one.lds_conflicts:,} LDS conflicts" if one.lds_conflicts else ""
        off = f", {one.lanes_off:.0%} of the lanes off" if one.lanes_off > SHOWN_OFF else ""
        place = one.place or "no line"
        said.append(f"{place}: {words}{conflicts}{off}" + (f": {text}" if text else ""))
    return said


def estimate(case: str, target: str, kernels: Sequence[EmulatedKernel]) -> EmulatedCase:
    """Return the bound of one case on each device of the catalogue that runs the target's code.

    If the cycles of a matrix instruction are unknown, there is none, and `no_estimate` says so.
    """
    unknown = matrix.missing_cycles(target, (n for one in kernels for n in one.matrix_instructions))
    if unknown:
        return EmulatedCase(
            case=case, target=target, kernels=list(kernels), bounds=[], no_estimate=unknown
        )
    devices = [
        one
        for one in catalogue.load().devices.values()
        if (found := one.get("target")) and found.value == target
    ]
    devices.sort(key=lambda one: -(one.number("compute_units") or 0))
    bounds = [bound for one in devices if (bound := _bound(one, target, kernels))]
    return EmulatedCase(case=case, target=target, kernels=list(kernels), bounds=bounds)


def _bound(
    device: CatalogueDevice, target: str, kernels: Sequence[EmulatedKernel]
) -> EmulatedBound | None:
    units, clock_ghz = device.number("compute_units"), device.number("max_engine_clock")
    bandwidth = device.memory_bytes_per_s()
    if not units or not clock_ghz or not bandwidth or not kernels:
        return None
    units /= device.logical_devices
    clock = clock_ghz * 1e9
    family = "cdna" if target.startswith("gfx9") else "rdna"
    rows = []
    for one in kernels:
        simds = min(one.waves / one.launches, units * matrix.SIMDS_PER_CU[family])
        programs = one.programs / one.launches
        shared_cycles = one.lds_bytes / LDS_BYTES_PER_CYCLE + one.lds_conflicts
        rows.append(
            (
                one.touched_bytes / bandwidth,
                matrix.cycles_of(target, one.matrix_instructions, CYCLES[family]) / simds / clock,
                CYCLES[family] * one.vector_instructions / simds / clock,
                shared_cycles / min(programs * UNITS_PER_PROGRAM[family], units) / clock,
            )
        )
    memory, products, vector, shared = (sum(column) for column in zip(*rows, strict=True))
    return EmulatedBound(
        device=device.name,
        time_s=sum(max(row) for row in rows),
        memory_s=memory,
        matrix_s=products,
        vector_s=vector,
        lds_s=shared,
    )


def words(case: EmulatedCase) -> str:
    """Return in one line the bound on the first device, and its parts."""
    lines = sum(one.lines_64 for one in case.kernels) * 64
    needed = sum(one.accessed_bytes for one in case.kernels)
    conflicts = sum(one.lds_conflicts for one in case.kernels)
    said = f"{sum(one.instructions for one in case.kernels):,} instructions of waves, "
    said += f"{sum(one.touched_bytes for one in case.kernels):,} bytes touched, "
    said += f"{lines / max(1, needed):.2f} bytes moved for each one used, "
    said += f"{conflicts:,} LDS conflicts"
    if not case.bounds:
        return f"no bound: {case.no_estimate}; {said}" if case.no_estimate else said
    one = case.bounds[0]
    parts = {"memory": one.memory_s, "matrix": one.matrix_s, "vector": one.vector_s}
    parts["LDS"] = one.lds_s
    listed = ", ".join(f"{name} {time_s * 1e6:.3g}" for name, time_s in parts.items())
    return f"at least {one.time_s * 1e6:.3g} us on {one.device} ({listed}); {said}"
