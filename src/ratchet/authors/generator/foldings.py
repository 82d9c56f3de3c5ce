"""Accumulate reductions, with scratch memory for what they keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ratchet.authors.form.build import class_of
from ratchet.authors.form.form import Fold

START: Final = {
    ("sum", "float"): "0.0f",
    ("sum", "double"): "0.0",
    ("prod", "float"): "1.0f",
    ("prod", "double"): "1.0",
    ("max", "float"): "-__builtin_inff()",
    ("max", "double"): "-__builtin_inf()",
    ("min", "float"): "__builtin_inff()",
    ("min", "double"): "__builtin_inf()",
    ("sum", "int64_t"): "0",
    ("prod", "int64_t"): "1",
    ("max", "int64_t"): "INT64_MIN",
    ("min", "int64_t"): "INT64_MAX",
    ("max", "int32_t"): "INT32_MIN",
    ("min", "int32_t"): "INT32_MAX",
    ("any", "bool"): "0",
    ("all", "bool"): "1",
}


@dataclass(frozen=True, kw_only=True)
class Folding:
    """A reduction's accumulator: its C type, its start and its OpenMP operator."""

    op: str
    kind: str
    start: str
    operator: str

    def add(self, total: str, value: str) -> str:
        """Return the statement that takes a value in."""
        if self.op in ("sum", "prod", "any", "all"):
            sign = {"sum": "+", "prod": "*", "any": "|", "all": "&"}[self.op]
            return f"{total} {sign}= {value};"
        return f"{total} = r_{self.op}({total}, {value});"


def folding(node: Fold) -> Folding:
    """Return how a reduction accumulates."""
    kind = class_of(node.dtype)
    start = START[(node.op, kind)]
    operator = {"sum": "+", "prod": "*", "any": "|", "all": "&", "max": "max", "min": "min"}[
        node.op
    ]
    if node.op in ("max", "min") and kind in ("float", "double"):
        operator = f"r_{node.op}"
    return Folding(
        op=node.op, kind="int32_t" if kind == "bool" else kind, start=start, operator=operator
    )


class Scratch:
    """Asks for scratch memory and names it."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, str, str]] = []
        """(name, C type, number of elements)."""

    def ask(self, name: str, kind: str, count: str) -> None:
        """Reserve memory for the whole call."""
        self.parts.append((name, kind, count))
