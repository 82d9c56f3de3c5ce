"""Judge the census of a kernel in Python: how much of its work torch does.

It counts elements, not seconds: in Triton's interpreter a kernel takes a thousand times longer than
the operation that it hides.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from ratchet.base.serialise import Count
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.shared_memory import BatchLayout
from ratchet.judge.verdict import Evidence, fault

T = TypeVar("T")
CHECK: Final = "own work"
LIBRARY_SHARE: Final = 0.25
"""Library operations may work on less than this part of a case's elements. The last sum over what
a kernel's programs left stays below it."""
WRITTEN_SHARE: Final = 0.5
"""Launched kernels must write at least this part of the outputs; results may be views."""
LAUNCHING: Final = ("triton", "hip")
"""Languages whose kernels are launched: their Python, or host code, may move memory."""
SHOWN: Final = 4
MATMULS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "inner"),
        *("matmul", "linear", "einsum", "tensordot", "chain_matmul", "_addmm_activation"),
        *("linalg_matmul", "linalg_multi_dot", "_scaled_mm", "_grouped_mm", "_int_mm"),
    )
)
ALLOWED: Final = {"matmul": MATMULS}  # Operations of a library that a problem allows by name
MEMORY: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"),
        *("full", "full_like", "new_full", "fill_", "zero_", "scalar_tensor", "arange", "resize_"),
        *("set_", "set_data", "is_pinned"),
        *("lift", "detach", "detach_", "alias", "_has_compatible_shallow_copy_type"),
        *("stride", "size", "is_same_size", "is_contiguous", "data", "requires_grad_", "_version"),
    )
)
"""Operations that make memory. Reading a number (`item`) or making a tensor of Python's numbers
(`lift_fresh`) counts as work: a host that does so for every element computes in Python."""
ADDRESSED: Final = ("ctypes.", "/proc/self/mem", "os.fork")
"""Prefixes of Python's functions that read memory by its address, or copy their process: of unknown
extent."""
VIEWS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "view_as", "_unsafe_view", "reshape", "reshape_as", "_reshape_alias"),
        *("as_strided", "flatten", "unflatten", "ravel", "squeeze", "squeeze_"),
        *("unsqueeze", "unsqueeze_"),
        *("expand", "expand_as", "broadcast_to", "broadcast_tensors", "permute", "transpose", "t"),
        *("transpose_", "t_", "numpy_T", "mT", "mH", "adjoint", "swapaxes", "swapdims", "movedim"),
        *("moveaxis", "select", "slice", "narrow", "chunk", "split", "split_with_sizes", "unbind"),
        *("tensor_split", "diagonal", "unfold", "view_as_real", "view_as_complex", "real", "imag"),
        *("resolve_conj", "resolve_neg", "positive", "_conj", "conj", "hsplit", "vsplit", "dsplit"),
    )
)
COPIES: Final = frozenset(
    f"aten::{name}" for name in ("copy_", "clone", "contiguous", "to", "_to_copy", "cpu", "copy")
)
"""Free in launched languages: wrappers bring inputs into the form that their kernel takes."""


class _ToldCensus(msgspec.Struct, frozen=True, kw_only=True):
    """The census of a batch, by the names of the worker's `Census`."""

    ops: dict[str, tuple[Count, Count]]  # Calls and elements
    launches: dict[str, tuple[Count, Count, Count]]
    """Calls, programs, and elements that were stored."""
    emulated: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseCensus:
    """The work of one call on one case."""

    elements: int  # Elements of all inputs and outputs
    output_elements: int
    ops: Mapping[str, int]  # Elements by operation
    programs: Mapping[str, int]  # Programs that ran, by kernel
    stored: int  # Elements that its own kernels wrote
    emulated: object = None  # The emulator's counts, as the candidate's process reported them


def read_census(layout: BatchLayout, told: object) -> CaseCensus:
    """Read the census of a batch of one call. Raises CandidateFault if it is nonsense."""
    found = told_as(_ToldCensus, told)
    return CaseCensus(
        elements=sum(math.prod(slot.size) for slot in layout.calls[0]),
        output_elements=sum(math.prod(slot.size) for slot in layout.answers(0)),
        ops={printable(name): elements for name, (_, elements) in found.ops.items()},
        programs={printable(name): programs for name, (_, programs, _) in found.launches.items()},
        stored=sum(stored for _, _, stored in found.launches.values()),
        emulated=found.emulated,
    )


def told_as(kind: type[T], told: object) -> T:
    """Return what a candidate's process reports, as `kind`; raises CandidateFault for nonsense."""
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise fault("crashed", "the candidate's process answered nonsense") from error


def judge_census(
    problem: Problem, kernel: Kernel, censuses: Sequence[CaseCensus]
) -> tuple[list[Evidence], str]:
    """Return the evidence of whose work the visible cases are, up to the first that is not the
    kernel's own; and why it is not, or "".
    """
    evidence = []
    visible = [
        (case.name, census)
        for case, census in zip(problem.cases, censuses, strict=False)
        if not case.hidden
    ]
    for name, census in visible or [(problem.cases[0].name, censuses[0])]:
        words = _words(census, problem, kernel)
        foreign = _foreign(census, problem, kernel)
        check = f"{CHECK}, operations on {name}"
        evidence.append(Evidence(check=check, passed=not foreign, detail=words))
        if foreign:
            return evidence, f"the problem asks for its own work, and on {name} {foreign}: {words}"
    return evidence, ""


def _foreign(census: CaseCensus, problem: Problem, kernel: Kernel) -> str:
    share = sum(_library(census, problem, kernel).values())
    if share >= LIBRARY_SHARE:
        return f"a library worked on {_percent(share)} of the elements"
    if kernel.language not in LAUNCHING:
        return ""
    if not any(census.programs.values()):
        return "none of its kernels was launched"
    if census.stored < WRITTEN_SHARE * census.output_elements:
        return (
            f"its kernels wrote {census.stored} elements where the outputs have "
            f"{census.output_elements}"
        )
    return ""


def _library(census: CaseCensus, problem: Problem, kernel: Kernel) -> dict[str, float]:
    """Return the share of the case's elements that each library operation worked on, sorted."""
    free = MEMORY | VIEWS | (COPIES if kernel.language in LAUNCHING else frozenset())
    for name in problem.libraries:
        free |= ALLOWED.get(name, frozenset())
    elements = max(1, census.elements)
    found = {
        name: 1.0 if name.startswith(ADDRESSED) else size / elements
        for name, size in census.ops.items()
        if name not in free
    }
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _words(census: CaseCensus, problem: Problem, kernel: Kernel) -> str:
    found = _library(census, problem, kernel)
    shown = [f"{name} {_percent(share)}" for name, share in list(found.items())[:SHOWN]]
    more = [f"{len(found) - SHOWN} more"] if len(found) > SHOWN else []
    parts = [", ".join([*shown, *more]) or "no library operation"]
    if kernel.language in LAUNCHING:
        ran = [f"{name} in {count} programs" for name, count in census.programs.items() if count]
        idle = sorted(declared(kernel.source) - {name for name, n in census.programs.items() if n})
        parts.append(f"launched {', '.join(ran[:SHOWN]) or 'nothing'}")
        if idle and not ran:
            parts.append(f"never launched {', '.join(idle[:SHOWN])}")
    return "; ".join(parts)


def declared(source: str) -> set[str]:
    """Return the functions of a source that are decorated as Triton kernels."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def printable(name: str) -> str:
    """Return the beginning of a reported name, fit to print."""
    return "".join(c if c.isprintable() else "?" for c in name)[:80]


# Judge the census of a candidate's process on a GPU: whose kernels ran, and how.
#
# The candidate's own process reports it, so it can only count against the candidate. A GPU cannot
# be sampled from outside as a core can, and the evidence says so.

DEVICE_LIBRARY_SHARE: Final = 0.25
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
ALLOWED_KERNELS: Final = {"matmul": MATMUL}
DEVICE_CHECK: Final = "own work on the GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCount:
    kernels: Mapping[str, tuple[Count, Count]]  # Launches and nanoseconds by name, without copies
    elsewhere: Mapping[str, tuple[Count, Count]]
    """Those that ran on another stream than the current one."""
    streams: Count
    graphs: Count  # Launches of captured graphs
    launches: Count
    kept_bytes: Count  # Bytes by which the allocated memory grows with each call
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


def judge_own(found: DeviceCount, problem: Problem, kernel: Kernel) -> tuple[Evidence, str]:
    """Return the evidence of whose kernels do the work, and why they are not its own, or ""."""
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
    elif share >= DEVICE_LIBRARY_SHARE:
        foreign = detail
    words = f"{foreign or detail} (as its own process tells; nothing outside can see it)"
    why = f"the problem asks for its own work, and on the GPU: {foreign}" if foreign else ""
    return Evidence(check=DEVICE_CHECK, passed=not foreign, detail=words), why


def is_own(name: str, problem: Problem, kernel: Kernel) -> bool:
    """Return True if a kernel is the candidate's, or of a library that the problem allows."""
    if any(
        ALLOWED_KERNELS[one].search(name) for one in problem.libraries if one in ALLOWED_KERNELS
    ):
        return True
    if kernel.language == "triton":
        return any(
            re.fullmatch(rf"{re.escape(own)}(_\w+)?", name) for own in declared(kernel.source)
        )
    return not (LIBRARY.search(name) or MATMUL.search(name))
