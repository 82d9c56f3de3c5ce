"""Check a region's problem from a file before any of its text runs.

The judge runs a problem's reference outside of the sandbox. The text of a region's problem is
written by `problems.py`: calls of ATen operations on tensors, and a table of cases. Other text is
refused.
"""

from __future__ import annotations

import ast
from typing import Final

from ratchet.base.errors import KernelError
from ratchet.judge.problems.problem import Problem

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
