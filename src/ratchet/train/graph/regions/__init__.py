"""Regions: the problems in a workload's compiled graphs, forward and backward.

trace.py     runs one step and takes the graphs that Inductor would compile
cut.py       sorts ATen operations and cuts a graph into regions
form.py      a region's canonical form, its key and its Python text; sizes that follow the batch
problems.py  a region's problem: how its inputs are drawn, timed case, hidden cases
capture.py   all of it: a workload's regions, with floor and time, ranked
install.py   the custom op that a region becomes, and the pass that puts it there
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ratchet.base.errors import KernelError

if TYPE_CHECKING:
    from ratchet.judge.problems.problem import Problem

Direction = Literal["forward", "backward"]
RegionKind = Literal["fused", "product"]
REGION = "region:"
"""Start of the name that stands for a region among the kernels of a step's config."""
TimedBy = Literal["inductor", "estimate"]
OVERLAPPED = 0.25
"""Likely share won of a region that shares operations with a more promising one, which would take
them out of the step's graphs."""
BEYOND_REACH = 0.25
"""Part of a product's gap to its roofline that is likely won beyond the step's best product."""


def region_name(key: str) -> str:
    """Return the name of a region's kernel in a step's config."""
    return f"{REGION}{key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """One distinct region; equal regions of a step are counted."""

    key: str  # Hex SHA-256 of the graph, shapes, strides, dtypes and kind of device
    kind: RegionKind
    """`fused`: pointwise, reduction and view operations. `product`: a matrix product, convolution
    or attention with the pointwise operations around it, which may also belong to a fused region.
    """
    problem: Problem
    count: int  # Sites in one step
    direction: Direction  # The first site's direction
    ops: tuple[str, ...]  # Names of the operations that compute, in order, without views
    bytes: int  # Compulsory traffic of one site: every input read once, every output written once
    flops: float
    """Operations of one site's products, convolutions and attention; the rest counts as free."""
    floor_s: float  # Roofline time of one site at the measured ceilings
    time_s: float  # Time of one site now
    timed_by: TimedBy
    """`inductor`: measured as torch.compile's default compiles the region alone. `estimate`: its
    time op by op, scaled as in the regions that were measured."""
    where: str  # Path of the first site's module; empty if the graph does not tell
    reach_s: float = 0.0
    """Time of one site at the share of its roofline that the step's best product reaches."""
    overlapped: bool = False  # True if a more promising region has some of its operations

    @property
    def gain_s(self) -> float:
        """Return the seconds of a step that can still be won: count times (time - floor)."""
        return self.count * max(0.0, self.time_s - self.floor_s)

    @property
    def likely_s(self) -> float:
        """Return the part of `gain_s` that is likely won.

        A product seldom gets closer to its roofline than the best product of the same step.
        """
        reach_s = min(self.time_s, max(self.reach_s, self.floor_s))
        beyond_s = BEYOND_REACH * (reach_s - self.floor_s)
        part = OVERLAPPED if self.overlapped else 1.0
        return part * self.count * max(0.0, self.time_s - reach_s + beyond_s)

    def as_json(self) -> dict[str, object]:
        return {
            "key": self.key,
            "kind": self.kind,
            "name": self.problem.name,
            "count": self.count,
            "direction": self.direction,
            "ops": list(self.ops),
            "bytes": self.bytes,
            "flops": self.flops,
            "floor_s": self.floor_s,
            "time_s": self.time_s,
            "timed_by": self.timed_by,
            "gain_s": self.gain_s,
            "likely_s": self.likely_s,
            "where": self.where,
            "problem": self.problem.as_json(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionReport:
    """The regions of a workload, and what was left out."""

    regions: tuple[Region, ...]  # The most time that can still be won first
    notes: tuple[str, ...] = ()
    """One line for each part of the graphs that has no region, with the reason."""


# Check a region's problem from a file before any of its text runs.
#
# The judge runs a problem's reference outside of the sandbox. The text of a region's problem is
# written by `problems.py`: calls of ATen operations on tensors, and a table of cases. Other text
# is refused.

IMPORTS: Final = frozenset(
    {
        "from __future__ import annotations",
        "from ratchet import Case, Problem, TensorSpec",
        "import torch",
        "import torch._prims",
        "import torch._inductor.inductor_prims",
    }
)
TABLES: Final = ("aten", "prims")
"""Operations are called as `aten.NAME.OVERLOAD` or `prims.NAME.OVERLOAD`."""
REFUSED: Final = ("from_file", "resize_", "set_")
"""Parts of names of operations that reach beyond their tensors."""
_EXPRESSIONS: Final = (
    ast.Assign, ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant,
    ast.FunctionDef, ast.IfExp, ast.List, ast.Name, ast.Return, ast.Subscript, ast.Tuple,
    ast.UnaryOp, ast.arg, ast.arguments, ast.boolop, ast.cmpop, ast.expr_context, ast.keyword,
    ast.operator, ast.unaryop,
)  # fmt: skip


def check_region_problem(problem: Problem, key: str) -> None:
    """Raise a KernelError unless the problem is that of the region with this key, by its text."""
    title = f"the problem of region {key[:8]}"
    if not problem.text.startswith(f'"""A region of a compiled training step, key {key}."""\n'):
        raise KernelError(f"{title} is missing or belongs to another region")
    if problem.check or problem.model is not None or problem.reference != "reference":
        raise KernelError(f"{title} is not written like a region's")
    try:
        body = ast.parse(problem.text).body[1:]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise KernelError(f"{title} is no Python: {error}") from error
    functions = [one for one in body if isinstance(one, ast.FunctionDef)]
    if [one.name for one in functions] != ["reference"] or functions[0].decorator_list:
        raise KernelError(f"{title} does not define a reference alone")
    for statement in body:
        if not (_is_head(statement) or _is_plain(statement)):
            raise KernelError(f"{title} does more than call operations (line {statement.lineno})")


def _is_head(statement: ast.stmt) -> bool:
    """Return True for an import, or `aten = torch.ops.aten`."""
    text = ast.unparse(statement)
    return text in IMPORTS or text in [f"{name} = torch.ops.{name}" for name in TABLES]


def _is_plain(statement: ast.stmt) -> bool:
    """Return True for the reference and the table of cases."""
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) != "PROBLEM":
        return False
    if not isinstance(statement, ast.Assign | ast.FunctionDef):
        return False
    return all(_is_harmless(node) for node in ast.walk(statement))


def _is_harmless(node: ast.AST) -> bool:
    if not isinstance(node, _EXPRESSIONS):
        return False
    if isinstance(node, ast.Call):
        return _is_operation(node.func)
    if isinstance(node, ast.Attribute):
        return not node.attr.startswith("__")
    if isinstance(node, ast.Name):
        return not node.id.startswith("__")
    return True


def _is_operation(called: ast.expr) -> bool:
    """Return True for an ATen operation, and for the names that a table of cases calls."""
    path = ast.unparse(called).split(".")
    if path in (["Case"], ["TensorSpec"], ["Problem"]):
        return True
    if len(path) == 1:
        return path[0] in ("float", "int", "max", "min")
    if len(path) == 2:
        return path[1] == "to" and path[0] != "torch"
    if len(path) != 3 or path[0] not in TABLES:
        return False
    return not any(part in path[1] for part in REFUSED)
