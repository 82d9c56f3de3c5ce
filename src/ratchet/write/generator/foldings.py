"""Accumulate reductions, with scratch memory for what they keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ratchet.write.form.build import class_of
from ratchet.write.form.form import Fold, Scan
from ratchet.write.form.op_table import FOLDS, FoldOp

LEAST: Final = {"int64_t": "INT64_MIN", "int32_t": "INT32_MIN"}
GREATEST: Final = {"int64_t": "INT64_MAX", "int32_t": "INT32_MAX"}


@dataclass(frozen=True, kw_only=True)
class Folding:
    """A reduction's accumulator: its C type and its start."""

    op: FoldOp
    kind: str

    @property
    def start(self) -> str:
        """Return what changes nothing."""
        neutral, suffix = self.op.neutral, "f" if self.kind == "float" else ""
        if math.isinf(neutral):
            if self.kind in LEAST:
                return (LEAST if neutral < 0 else GREATEST)[self.kind]
            return f"{'-' if neutral < 0 else ''}__builtin_inf{suffix}()"
        return f"{float(neutral)}{suffix}" if self.kind in ("float", "double") else str(neutral)

    @property
    def total_kind(self) -> str:
        """Return the C type of a long total."""
        return "double" if self.kind == "float" and self.op.wide else self.kind

    @property
    def operator(self) -> str:
        """Return OpenMP's name of the reduction."""
        own = f"r_{self.op.name}" if self.kind in ("float", "double") else self.op.name
        return self.op.sign or own

    def add(self, total: str, value: str) -> str:
        """Return the statement that takes a value in."""
        if self.op.sign:
            return f"{total} {self.op.sign}= {value};"
        return f"{total} = r_{self.op.name}({total}, {value});"


def folding(node: Fold | Scan) -> Folding:
    """Return how a reduction accumulates."""
    kind = class_of(node.dtype)
    return Folding(op=FOLDS[node.op], kind="int32_t" if kind == "bool" else kind)


class Scratch:
    """Asks for scratch memory and names it."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, str, str]] = []
        """(name, C type, number of elements)."""

    def ask(self, name: str, kind: str, count: str) -> None:
        """Reserve memory for the whole call."""
        self.parts.append((name, kind, count))
