"""Facts of one kernel compiled for NVIDIA, from its PTX and the words of `ptxas -v`."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from ratchet.judge.static_profile.answers import CompiledKernel
from ratchet.judge.static_profile.kernel_facts import KernelFacts
from ratchet.judge.workers.candidate.architectures import Architecture, occupancy

INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)[\s;]", re.MULTILINE)
MATRIX = ("mma.", "wgmma.mma_async", "tcgen05.mma")
ELEMENT_BITS = re.compile(r"\.[bsuf](8|16|32|64|128)$")


def cuda_facts(kernel: CompiledKernel, architecture: Architecture) -> KernelFacts | None:
    """The facts; None where there is no PTX."""
    ptx = kernel.texts.get("ptx")
    if not ptx or kernel.num_warps is None:
        return None
    log = kernel.texts.get("ptxas", "")
    registers, spills = _after("Used", "registers", log), _after("", "bytes spill stores", log)
    lds = max(kernel.shared_bytes, _after("", "bytes smem", log))
    found = occupancy(
        architecture, vgprs=registers, lds_bytes=lds, workgroup_waves=kernel.num_warps
    )
    names = INSTRUCTION.findall(ptx)
    document: dict[str, Any] = {
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
            for name, count in Counter(n for n in names if n.startswith(MATRIX)).items()
        ],
        "global_load_bits": _widths(names, "ld.global"),
        "global_store_bits": _widths(names, "st.global"),
        "notes": [] if log else ["ptxas is missing: registers and spills are not known"],
    }
    return KernelFacts(document=document, hot_matrix=[], waves_per_workgroup=kernel.num_warps)


def _after(before: str, unit: str, log: str) -> int:
    found = re.search(rf"{before}\s*(\d+) {unit}", log)
    return int(found.group(1)) if found else 0


def _widths(names: list[str], kind: str) -> dict[str, int]:
    """Count the instructions by the bits that they move a thread."""
    counts: Counter[int] = Counter()
    for name in names:
        bits = ELEMENT_BITS.search(name)
        if name.startswith(kind) and bits:
            vector = re.search(r"\.v(\d)", name)
            counts[int(bits.group(1)) * (int(vector.group(1)) if vector else 1)] += 1
    return {str(bits): counts[bits] for bits in sorted(counts)}
