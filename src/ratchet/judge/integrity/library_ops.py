"""Judge the census of a kernel in Python: how much of its work torch does.

It counts elements, not seconds: in Triton's interpreter a kernel takes a thousand times longer than
the operation that it hides.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from ratchet.base.serialise import Count
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.verdict import Evidence, fault
from ratchet.judge.workers.memory.layout import BatchLayout

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
ALLOWED: Final = {"matmul": MATMULS}
"""Operations of a library that a problem allows by name."""
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
ADDRESSED: Final = ("ctypes.", "/proc/self/mem")
"""Prefix of Python's functions that read memory by its address, of unknown extent."""
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

    ops: dict[str, tuple[Count, Count]]
    """Calls and elements."""
    launches: dict[str, tuple[Count, Count, Count]]
    """Calls, programs, and elements that were stored."""
    emulated: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseCensus:
    """The work of one call on one case."""

    elements: int
    """Elements of all inputs and outputs."""
    output_elements: int
    ops: Mapping[str, int]
    """Elements by operation."""
    programs: Mapping[str, int]
    """Programs that ran, by kernel."""
    stored: int
    """Elements that its own kernels wrote."""
    emulated: object = None
    """The emulator's counts, as the candidate's process reported them."""


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
    problem: Problem, kernel: Kernel, censuses: Sequence[CaseCensus], evidence: list[Evidence]
) -> None:
    """Add the evidence of whose work the visible cases are.

    Raises CandidateFault if they are not the kernel's own.
    """
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
            reason = f"the problem asks for its own work, and on {name} {foreign}: {words}"
            raise fault("cheating", reason)


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
