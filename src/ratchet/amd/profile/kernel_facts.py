"""Facts of one compiled kernel, as JSON: registers, occupancy, instructions, widths."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.amd.architectures import Architecture, occupancy
from ratchet.amd.compile import assembly
from ratchet.amd.compile.assembly import MATRIX, Instruction, KernelCode
from ratchet.amd.compile.process import CompiledKernel
from ratchet.base import Json
from ratchet.base.devices import matrix
from ratchet.base.devices.matrix import MatrixInstruction

CLASSES: Final = (
    *("matrix", "vector", "transcendental", "scalar", "scalar_load"),
    *("global_load", "global_store", "global_atomic", "lds", "scratch"),
    *("wait", "barrier", "branch", "other"),
)
TRANSCENDENTAL: Final = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos|s_exp|s_log|s_rcp|s_sqrt)_")
WIDTHS: Final = {
    "ubyte": 8, "sbyte": 8, "byte": 8, "ushort": 16, "sshort": 16, "short": 16,
    "dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128,
    "u8": 8, "i8": 8, "b8": 8, "u16": 16, "i16": 16, "b16": 16,
    "b32": 32, "b64": 64, "b96": 96, "b128": 128,
}  # fmt: skip
"""Bits that one lane moves, by the word that names it; GFX9 says dwordx4 where RDNA says b128."""


KINDS: Final = (
    ("matrix", MATRIX),
    ("vector", "v_"),
    ("lds", "ds_"),
    ("scratch", "scratch_"),
    ("global", ("global_", "buffer_", "flat_", "tbuffer_")),
    ("barrier", "s_barrier"),
    ("branch", ("s_branch", "s_cbranch", "s_endpgm", "s_setpc", "s_swappc", "s_call")),
    ("wait", ("s_wait", "s_nop", "s_delay_alu", "s_sleep")),
    ("scalar_load", ("s_load", "s_buffer_load")),
    ("scalar", "s_"),
)
"""The kind of an instruction by the first of these beginnings that its name has."""


def class_of(name: str) -> str:
    kind = next((kind for kind, starts in KINDS if name.startswith(starts)), "other")
    if kind == "vector" and TRANSCENDENTAL.match(name):
        return "transcendental"
    if kind == "global":
        verbs = ("atomic", "store", "load")
        return next((f"global_{verb}" for verb in verbs if f"_{verb}_" in name), "other")
    return kind


def access_bits(name: str) -> int | None:
    """Return the bits that one lane loads or stores with this instruction, or None."""
    words = name.split("_")
    if not {"load", "store"} & set(words):
        return None
    widths = [WIDTHS[word] for word in words if word in WIDTHS]
    return widths[0] if widths else None


def drains(name: str, operands: str) -> bool:
    """Return True if a wait lasts until every outstanding load has returned."""
    if name == "s_waitcnt":
        return "vmcnt(0)" in operands
    waits_for_loads = name in ("s_wait_loadcnt", "s_wait_loadcnt_dscnt")
    return waits_for_loads and re.fullmatch(r"\s*(0x)?0+\s*", operands) is not None


ENCODING: Final = r"_(e32|e64|vop3p)$"  # the end of an instruction's name that an assembler may add
F8F6F4_TYPES = {0: "fp8", 1: "fp8", 2: "fp6", 3: "fp6", 4: "fp4"}
"""The cbsz and blgp fields of the f8f6f4 instructions: E4M3, E5M2, E2M3, E3M2, E2M1."""
NARROW_BITS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelFacts:
    """The facts of one kernel, and its mix of matrix instructions, for a bound on its time."""

    document: dict[str, Json]
    hot_matrix: list[tuple[MatrixInstruction, int]]
    """Matrix instructions of the hottest part with known cycles, and their counts."""
    waves_per_workgroup: int


def amd_facts(kernel: CompiledKernel, architecture: Architecture) -> KernelFacts | None:
    """Return an AMD kernel's facts; None if the assembly has no kernel of this name."""
    codes = assembly.parse(kernel.texts.get("amdgcn", ""))
    code = next((one for one in codes if one.name == kernel.name), None)
    if code is None:
        return None
    waves = _waves(kernel, code, architecture)
    lds = max(kernel.shared_bytes, code.number("group_segment_fixed_size"))
    vgprs, agprs = code.number("vgpr_count"), code.number("agpr_count")
    found = occupancy(architecture, vgprs=vgprs, lds_bytes=lds, workgroup_waves=waves)
    document = {
        "vgprs": vgprs - agprs,
        "agprs": agprs,
        "total_vgprs": vgprs,
        "sgprs": code.number("sgpr_count"),
        "spills": code.number("vgpr_spill_count") + code.number("sgpr_spill_count"),
        "vgpr_spills": code.number("vgpr_spill_count"),
        "sgpr_spills": code.number("sgpr_spill_count"),
        "lds_bytes": lds,
        "scratch_bytes": code.number("private_segment_fixed_size"),
        "waves_per_workgroup": waves,
        "occupancy_waves": found.waves_per_simd,
        "occupancy_limit": found.limit,
        "max_waves": architecture.max_waves_per_simd,
        "instructions": _mix(code.instructions),
        "instructions_in_loops": _mix([one for one in code.instructions if one.depth]),
        "matrix_instructions": _matrix_rows(code.instructions, architecture),
        "global_load_bits": _widths(code.instructions, "global_load"),
        "global_store_bits": _widths(code.instructions, "global_store"),
        "waits": _waits(code.instructions),
        "mca": mca_summary(kernel.mca),
    }
    document["notes"] = _notes(document)
    hot: list[tuple[MatrixInstruction, int]] = []
    for part in (code.hot_loop(), code.instructions):
        counted = _counted(part, architecture).values()
        hot = hot or [(row, count) for row, count in counted if row is not None]
    return KernelFacts(document=document, hot_matrix=hot, waves_per_workgroup=waves)


def _waves(kernel: CompiledKernel, code: KernelCode, architecture: Architecture) -> int:
    """Return the waves of a workgroup: Triton's warps, or the most for a HIP kernel."""
    if kernel.num_warps is not None:
        return kernel.num_warps
    threads = code.number("max_flat_workgroup_size") or architecture.wavefront_size
    return max(1, -(-threads // architecture.wavefront_size))


def _mix(body: Sequence[Instruction]) -> dict[str, int]:
    counts = Counter(class_of(one.name) for one in body)
    return {"total": len(body)} | {name: counts[name] for name in CLASSES}


def _widths(body: Sequence[Instruction], kind: str) -> dict[str, int]:
    moved = [access_bits(one.name) for one in body if class_of(one.name) == kind]
    counts = Counter(bits for bits in moved if bits is not None)
    return {str(width): count for width, count in sorted(counts.items())}


def _waits(body: Sequence[Instruction]) -> dict[str, int]:
    waits = [one for one in body if one.name.startswith("s_wait")]
    draining = [one for one in waits if drains(one.name, one.operands)]
    return {
        "total": len(waits),
        "in_loops": sum(one.depth > 0 for one in waits),
        "drains": len(draining),
        "drains_in_loops": sum(one.depth > 0 for one in draining),
    }


def _matrix_rows(body: Sequence[Instruction], architecture: Architecture) -> list[dict[str, Json]]:
    """Return each matrix instruction once, with its count, shape and cycles."""
    products = [one for one in body if one.name.startswith(MATRIX)]
    in_loops = Counter((one.name, _input_type(one)) for one in products if one.depth)
    rows = []
    for key, (row, count) in _counted(products, architecture).items():
        known = {} if row is None else _matrix_row(row)
        rows.append({"name": key[0], "count": count, "in_loops": in_loops[key]} | known)
    return rows


def _counted(
    body: Sequence[Instruction], architecture: Architecture
) -> dict[tuple[str, str], tuple[MatrixInstruction | None, int]]:
    """Return the row and the count of each instruction, by its name and its input type."""
    counts = Counter((one.name, _input_type(one)) for one in body)
    return {
        (name, kind): (
            matrix.find(architecture.name, re.sub(ENCODING, "", name), in_type=kind or None),
            count,
        )
        for (name, kind), count in counts.items()
    }


def _matrix_row(row: MatrixInstruction) -> dict[str, Json]:
    best = next((kind for kind, types in matrix.KINDS.items() if row.in_type in types), "")
    fastest = matrix.fastest(row.gfx, best)
    return {
        "shape": list(row.shape),
        "in_type": row.in_type,
        "out_type": row.out_type,
        "cycles": row.cycles,
        "flops_per_cu_per_cycle": row.flops_per_cu_per_cycle,
        "older_shape": matrix.is_older_shape(row),
        "faster_shape": fastest.name if fastest and matrix.is_older_shape(row) else None,
    }


def _input_type(one: Instruction) -> str:
    """Return the input type of an instruction whose operands tell it, else ""."""
    if "f8f6f4" not in one.name:
        return ""
    fields = dict(re.findall(r"(cbsz|blgp):(\d)", one.operands))
    kinds = [F8F6F4_TYPES.get(int(fields.get(name, 0)), "fp8") for name in ("cbsz", "blgp")]
    return "fp8" if "fp8" in kinds else kinds[0]


def mca_summary(answer: Mapping[str, str | int]) -> dict[str, Json]:
    """Return cycles and the busiest resource from llvm-mca's JSON, or why there are none."""
    if not answer:
        return {"error": "not run"}
    if "json" not in answer:
        return {"error": str(answer.get("error", "no answer"))[:300]}
    try:
        document = json.loads(str(answer["json"]))
        region = document["CodeRegions"][0]
        summary, count = region["SummaryView"], len(region["Instructions"])
        iterations = int(summary["Iterations"])
        names = document["TargetInfo"]["Resources"]
        pressure = {
            str(names[one["ResourceIndex"]]): float(one["ResourceUsage"])
            for one in region["ResourcePressureView"]["ResourcePressureInfo"]
            if one["InstructionIndex"] == count  # the row after the last: all instructions
        }
        critical = max(pressure, key=lambda name: pressure[name], default=None)
        return {
            "cycles_per_pass": int(summary["TotalCycles"]) / iterations,
            "instructions": int(summary["Instructions"]) // iterations,
            "left_out": int(answer.get("left_out", 0)),
            "stood_in": int(answer.get("stood_in", 0)),
            "critical_resource": critical,
            "resource_cycles": pressure,
        }
    except (ValueError, KeyError, IndexError, TypeError, ZeroDivisionError) as error:
        return {"error": f"llvm-mca's answer could not be read ({type(error).__name__})"}


def _notes(document: dict[str, Json]) -> list[str]:
    """Return what a reader should look at first."""
    notes = []
    if document["spills"] or document["scratch_bytes"]:
        notes.append(
            f"{document['spills']} registers are spilled and {document['scratch_bytes']} bytes of "
            "scratch memory are used per lane"
        )
    for row in document["matrix_instructions"]:
        if row.get("older_shape"):
            notes.append(f"{row['name']} runs at half rate or less: use {row['faster_shape']}")
        elif "cycles" not in row:
            notes.append(f"the cycles of {row['name']} are not known")
    loads = document["global_load_bits"]
    narrow = sum(count for bits, count in loads.items() if int(bits) < NARROW_BITS)
    if narrow:
        total = sum(loads.values())
        notes.append(f"{narrow} of {total} global loads move under {NARROW_BITS} bits a lane")
    return notes


PTX_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)[\s;]", re.MULTILINE)
PTX_MATRIX = ("mma.", "wgmma.mma_async", "tcgen05.mma")
PTX_BITS = re.compile(r"\.[bsuf](8|16|32|64|128)$")


def cuda_facts(kernel: CompiledKernel, architecture: Architecture) -> KernelFacts | None:
    """Return an NVIDIA kernel's facts from its PTX and `ptxas -v`; None without PTX."""
    ptx = kernel.texts.get("ptx")
    if not ptx or kernel.num_warps is None:
        return None
    log = kernel.texts.get("ptxas", "")
    registers, spills = _after("Used", "registers", log), _after("", "bytes spill stores", log)
    lds = max(kernel.shared_bytes, _after("", "bytes smem", log))
    found = occupancy(
        architecture, vgprs=registers, lds_bytes=lds, workgroup_waves=kernel.num_warps
    )
    names = PTX_INSTRUCTION.findall(ptx)
    document: dict[str, Json] = {
        "registers": registers or None,
        "spills": spills // 4,
        "spill_bytes": spills,
        "lds_bytes": lds,
        "occupancy_waves": found.waves_per_simd if registers else None,
        "occupancy_limit": found.limit if registers else None,
        "max_waves": architecture.max_waves_per_simd,
        "instructions": {"total": len(names)},
        "matrix_instructions": [
            {"name": name, "count": count}
            for name, count in Counter(n for n in names if n.startswith(PTX_MATRIX)).items()
        ],
        "global_load_bits": _ptx_widths(names, "ld.global"),
        "global_store_bits": _ptx_widths(names, "st.global"),
        "notes": [] if log else ["ptxas is missing: registers and spills are not known"],
    }
    return KernelFacts(document=document, hot_matrix=[], waves_per_workgroup=kernel.num_warps)


def _after(before: str, unit: str, log: str) -> int:
    found = re.search(rf"{before}\s*(\d+) {unit}", log)
    return int(found.group(1)) if found else 0


def _ptx_widths(names: list[str], kind: str) -> dict[str, int]:
    """Count the instructions by the bits that each thread moves."""
    counts: Counter[int] = Counter()
    for name in names:
        if name.startswith(kind) and (bits := PTX_BITS.search(name)):
            vector = re.search(r"\.v(\d)", name)
            counts[int(bits[1]) * (int(vector[1]) if vector else 1)] += 1
    return {str(width): count for width, count in sorted(counts.items())}
