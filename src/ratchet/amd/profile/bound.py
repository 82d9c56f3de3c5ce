"""Estimate a lower bound on the time of a kernel's launches on each AMD device of the catalogue.

The bound of one launch is the larger of two times. One is its matrix work over the rate of the
compiled instructions, on as many SIMDs as the launch has waves for. The other is the bytes of its
tensors, each moved once, over the memory's bandwidth on paper. Launches follow one another, so
their times add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.base.devices import catalogue
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.devices.matrix import MatrixInstruction, simds_per_cu

FORMULA: Final = (
    "sum over launches of max(dot_flops / (min(waves, SIMDs) * flops_per_SIMD_per_cycle * clock), "
    "tensor_bytes / memory_bandwidth)"
)
ASSUMES: Final = (
    "an estimate and no measurement: highest clock and bandwidth on paper, every SIMD with work "
    "busy with matrix instructions, each tensor passed moved once from or to cold memory, no cost "
    "of launching"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchWork:
    """The least work of one launch."""

    dot_flops: float | None
    """None if unknown."""
    flops_per_simd_per_cycle: float | None
    """The rate of the compiled matrix instructions; None without any, if the dots run on the
    vector units."""
    waves: int
    tensor_bytes: int


def rate_of(counts: Sequence[tuple[MatrixInstruction, int]]) -> float | None:
    """Return operations per cycle and SIMD of a mix of matrix instructions; None for no mix."""
    cycles = sum(one.cycles * count for one, count in counts)
    return sum(one.flops * count for one, count in counts) / cycles if cycles else None


def bounds(gfx: str, launches: Sequence[LaunchWork]) -> list[dict[str, object]]:
    """Return the bound on each device in seconds, and which of its two parts is larger."""
    return [one for device in catalogue.load().of_target(gfx) if (one := _bound(device, launches))]


def _bound(device: CatalogueDevice, launches: Sequence[LaunchWork]) -> dict[str, object] | None:
    units, clock_ghz = device.number("compute_units"), device.number("max_engine_clock")
    bandwidth = device.memory_bytes_per_s()
    arch = device.get("arch")
    if units is None or clock_ghz is None or bandwidth is None or arch is None or not launches:
        return None
    simds = units / device.logical_devices * simds_per_cu(arch.value.lower().split()[0])
    memory = [one.tensor_bytes / bandwidth for one in launches]
    vector = (device.peak_flops_per_s("vector_fp32") or 0.0) / (simds * clock_ghz * 1e9)
    matrix = [_matrix_time_s(one, simds, clock_ghz * 1e9, vector) for one in launches]
    both = [max(pair) for pair in zip(memory, matrix, strict=True)]
    return {
        "device": device.name,
        "time_s": sum(both),
        "matrix_s": sum(matrix),
        "memory_s": sum(memory),
        "limit": "matrix" if sum(matrix) > sum(memory) else "memory",
        "estimate": True,
        "formula": FORMULA,
    }


def _matrix_time_s(launch: LaunchWork, simds: float, clock_hz: float, vector_rate: float) -> float:
    """Return the matrix time of a launch; 0 if it has no known dots."""
    rate = launch.flops_per_simd_per_cycle or vector_rate
    if not launch.dot_flops or not rate:
        return 0.0
    return launch.dot_flops / (min(float(launch.waves), simds) * rate * clock_hz)
