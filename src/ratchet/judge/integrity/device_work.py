"""Judge the census of a candidate's process on a GPU: whose kernels ran, and how.

The candidate's own process reports it, so it can only count against the candidate. A GPU cannot be
sampled from outside as a core can, and the evidence says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ratchet.base.serialise import Count
from ratchet.judge.integrity.library_ops import declared, printable
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.verdict import Evidence, fault

LIBRARY_SHARE: Final = 0.25
"""With this share of the time in library kernels, it is not the candidate's own work."""
FREE: Final = re.compile(r"copy|Copy|[Mm]em(cpy|set)|FillFunctor|fillBuffer")
"""Kernels that only copy or fill: the harness itself copies results."""
MATMUL: Final = re.compile(
    r"cublas|cutlass|nvjet|xmma|gemm|gemv|splitK|Cijk_|rocblas|hipblas|Tensile", re.IGNORECASE
)
"""Matrix products of NVIDIA and AMD; those of Tensile (rocBLAS, hipBLASLt) begin with Cijk."""
LIBRARY: Final = re.compile(
    r"\bat::|at_cuda|\bcub::|\bthrust::|cudnn|implicit_convolve|miopen|igemm_|\bck::|rocprim|hipcub"
    r"|flash_fwd|flash_bwd|\bflash::|fmha|\battn_(fwd|bwd)|aotriton|batch_norm|nccl|rccl"
    r"|\btriton_(poi|red|per|tem|mm|bmm|for|spl|unk)_",
    re.IGNORECASE,
)
"""Kernels of torch, of its libraries, and of torch.compile."""
ALLOWED: Final = {"matmul": MATMUL}
SHOWN: Final = 4
CHECK: Final = "own work on the GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCount:
    """The work of one batch on the device."""

    kernels: Mapping[str, tuple[Count, Count]]
    """Launches and nanoseconds by name, without copies."""
    elsewhere: Mapping[str, tuple[Count, Count]]
    """Those that ran on another stream than the current one."""
    streams: Count
    graphs: Count
    """Launches of captured graphs."""
    launches: Count
    kept_bytes: Count
    """Bytes by which the allocated memory grows with each call."""
    calls: Count


def facts(found: DeviceCount) -> list[Evidence]:
    """Return evidence that is worth knowing but decides nothing."""
    calls = max(1, found.calls)
    launched = f"{found.launches / calls:.1f} launches a call"
    graphs = f", {found.graphs} launches of captured graphs" if found.graphs else ""
    names = ", ".join(printable(one) for one in list(found.kernels)[:SHOWN]) or "no kernel"
    away = ", ".join(printable(one) for one in list(found.elsewhere)[:SHOWN])
    streams = f"on other streams than the current: {away}" if away else "all on the current stream"
    kept = found.kept_bytes
    memory = f"{kept} more bytes stay allocated with each call: a cache" if kept else "none is kept"
    return [
        Evidence(check="kernels on the GPU", passed=True, detail=f"{launched}{graphs}: {names}"),
        Evidence(check="streams", passed=not away, detail=streams),
        Evidence(check="memory between calls", passed=not kept, detail=memory),
    ]


def judge_own(
    found: DeviceCount, problem: Problem, kernel: Kernel, evidence: list[Evidence]
) -> None:
    """Add the evidence of whose kernels do the work; raise CandidateFault if a library's do."""
    owned = {name: ns for name, (_, ns) in found.kernels.items() if is_own(name, problem, kernel)}
    others = {name: ns for name, (_, ns) in found.kernels.items() if name not in owned}
    theirs = {name: ns for name, ns in others.items() if not FREE.search(name)}
    total = sum(owned.values()) + sum(theirs.values())
    share = sum(theirs.values()) / total if total else 0.0
    shown = ", ".join(printable(one) for one in list(theirs)[:SHOWN])
    detail = f"{100 * share:.0f} % of the time in library kernels{': ' if shown else ''}{shown}"
    foreign = ""
    if not total:
        foreign = "no kernel ran that does more than copy"
    elif share >= LIBRARY_SHARE:
        foreign = detail
    words = f"{foreign or detail} (as its own process tells; nothing outside can see it)"
    evidence.append(Evidence(check=CHECK, passed=not foreign, detail=words))
    if foreign:
        raise fault("cheating", f"the problem asks for its own work, and on the GPU: {foreign}")


def is_own(name: str, problem: Problem, kernel: Kernel) -> bool:
    """Return True if a kernel is the candidate's, or of a library that the problem allows."""
    if any(ALLOWED[one].search(name) for one in problem.libraries if one in ALLOWED):
        return True
    if kernel.language == "triton":
        return any(
            re.fullmatch(rf"{re.escape(own)}(_\w+)?", name) for own in declared(kernel.source)
        )
    return not (LIBRARY.search(name) or MATMUL.search(name))
