"""AMD's matrix instructions: shapes, cycles and operations of MFMA and WMMA, with sources.

Each row of `data/mfma.csv` is one instruction of one architecture. Cycles are per SIMD. A sparse
instruction counts the operations of the dense product that it computes.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

from ratchet.base.devices.catalogue import CatalogueDevice

SIMDS_PER_CU: Final = {"cdna": 4, "rdna": 2}
"""ROCm documentation, gpu-arch/mi250.md ("four SIMD units"); RDNA: a work-group processor of two
compute units has four SIMD32."""

KINDS: Final = {
    "fp64": ("fp64",),
    "fp32": ("fp32",),
    "tf32": ("xf32",),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "fp8": ("fp8", "amd_fp8"),
    "fp6": ("fp6",),
    "fp4": ("fp4",),
    "int8": ("int8", "iu8"),
}
"""The catalogue's names of matrix peaks, and the table's input types that reach each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixInstruction:
    gfx: str
    isa: str
    name: str
    in_type: str
    in_type_b: str
    out_type: str
    shape: tuple[int, int, int]  # m, n, k of one block
    sparse: bool
    cycles: int  # Cycles for which it occupies one SIMD
    flops: int  # Multiplications and additions of one instruction, over all its blocks
    source: str
    note: str

    @property
    def flops_per_simd_per_cycle(self) -> float:
        """Operations per cycle of one SIMD that runs nothing else."""
        return self.flops / self.cycles

    @property
    def flops_per_cu_per_cycle(self) -> float:
        """Operations per cycle of a compute unit that runs nothing else."""
        return self.flops_per_simd_per_cycle * simds_per_cu(self.isa)


def simds_per_cu(isa: str) -> int:
    """SIMDs of one compute unit of `cdna3`, `rdna4`, ..."""
    return SIMDS_PER_CU[isa.rstrip("0123456789")]


@functools.cache
def load() -> tuple[MatrixInstruction, ...]:
    text = resources.files("ratchet.base.devices").joinpath("data/mfma.csv").read_text("utf-8")
    return tuple(_instruction(row) for row in csv.DictReader(text.splitlines()))


def find(gfx: str, name: str, *, in_type: str | None = None) -> MatrixInstruction | None:
    """Return the row of an instruction, or None.

    One name may have several input types (f8f6f4). `in_type` picks one; the default is the slowest
    row.
    """
    rows = [row for row in load() if row.gfx == gfx and row.name == name]
    rows = [row for row in rows if in_type is None or row.in_type == in_type] or rows
    return max(rows, key=lambda row: row.cycles, default=None)


def missing_cycles(gfx: str, names: Iterable[str]) -> str:
    """Return in a line which of these instructions have no row; empty if all have one."""
    unknown = sorted({name for name in names if find(gfx, name) is None})[:3]
    return f"the cycles of {', '.join(unknown)} on {gfx} are not known" if unknown else ""


def cycles_of(gfx: str, counts: Mapping[str, int], otherwise: int) -> int:
    """Return the cycles of counted instructions; one without a row takes `otherwise`."""
    rows = ((find(gfx, name), count) for name, count in counts.items())
    return sum((otherwise if row is None else row.cycles) * count for row, count in rows)


def fastest(gfx: str, kind: str) -> MatrixInstruction | None:
    """Return the dense instruction with most operations per cycle for a kind (`bf16`), or None."""
    rows = [
        row
        for row in load()
        if row.gfx == gfx and not row.sparse and row.in_type in KINDS.get(kind, ())
    ]
    return max(rows, key=lambda row: row.flops_per_simd_per_cycle, default=None)


def is_older_shape(instruction: MatrixInstruction) -> bool:
    """Return whether a dense instruction with the same inputs has twice the rate."""
    kind = next((kind for kind, types in KINDS.items() if instruction.in_type in types), "")
    best = fastest(instruction.gfx, kind)
    if best is None or instruction.sparse:
        return False
    return best.flops_per_simd_per_cycle >= 2 * instruction.flops_per_simd_per_cycle


def peak_flops_per_s(device: CatalogueDevice, kind: str) -> float | None:
    """Return a whole board's matrix peak: operations per cycle x compute units x highest clock."""
    target, units = device.get("target"), device.number("compute_units")
    clock_ghz = device.number("max_engine_clock")
    instruction = None if target is None else fastest(target.value, kind)
    if instruction is None or units is None or clock_ghz is None:
        return None
    return instruction.flops_per_cu_per_cycle * units * clock_ghz * 1e9


def _instruction(row: dict[str, str]) -> MatrixInstruction:
    return MatrixInstruction(
        gfx=row["gfx"],
        isa=row["isa"],
        name=row["instruction"],
        in_type=row["in_type"],
        in_type_b=row["in_type_src1"],
        out_type=row["out_type"],
        shape=(int(row["m"]), int(row["n"]), int(row["k"])),
        sparse=row["sparse"] == "1",
        cycles=int(row["cycles"]),
        flops=int(row["flops"]),
        source=row["source"],
        note=row["note"],
    )
