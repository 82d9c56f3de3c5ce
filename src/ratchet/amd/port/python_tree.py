"""A Python text as `ast` reads it, with imports resolved and an index of what rules ask for."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeVar

from ratchet.amd.port.rule import CodeText

Kind = TypeVar("Kind", bound=ast.AST)
CUDA_ARGUMENTS: Final = frozenset(("cuda_sources", "cuda_source", "cuda_src"))
IS_CUDA: Final = re.compile(r"__global__|<<<|__device__|#include\s*<cuda")
FOR_ONE: Final = re.compile(r"(?i)rocm|(?<![a-z])(hip|amd|nvidia)(?![a-z-])")
"""Words of a condition that tells AMD from NVIDIA."""
IS_CPP: Final = re.compile(r"#include\s*[<\"]|\b(?:torch::Tensor|at::Tensor)\b[^\n]*\(")


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """CUDA code in a string."""

    node: ast.Constant
    text: bytes
    shift: int | None
    """Byte of the file at which it begins; None if the string has escapes."""
    line: int


class PythonTree:
    """The syntax of one Python text. Raises SyntaxError or ValueError if it does not parse."""

    def __init__(self, source: CodeText) -> None:
        self.source = source
        self.module = ast.parse(source.text)
        self.nodes: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self.parents: dict[int, ast.AST] = {}
        waiting: list[ast.AST] = [self.module]
        for node in waiting:
            self.nodes[type(node)].append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[id(child)] = node
                waiting.append(child)

    def of(self, kind: type[Kind]) -> Iterator[Kind]:
        """Yield the nodes of a kind."""
        yield from (node for node in self.nodes[kind] if isinstance(node, kind))

    def at(self, node: ast.AST) -> int:
        """Return the byte at which a node begins."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return self.source.start_of(line) + int(column)

    def end(self, node: ast.AST) -> int:
        """Return the byte after a node."""
        line, column = getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0)
        return self.source.start_of(line) + int(column)

    def said(self, node: ast.AST) -> str:
        return self.source.text[self.at(node) : self.end(node)].decode(errors="replace")

    @cached_property
    def imported(self) -> dict[str, str]:
        """The full name behind each local name of an import: `tl` is `triton.language`."""
        found = {}
        for node in self.of(ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                found[one.asname or top] = one.name if one.asname else top
        for inner in self.of(ast.ImportFrom):
            found |= {one.asname or one.name: f"{inner.module}.{one.name}" for one in inner.names}
        return found

    def name(self, node: ast.AST) -> str:
        """Return the dotted name of an expression with imports resolved; "" if it has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imported.get(node.id, node.id))
        return ".".join(reversed(parts))

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """The calls with their names."""
        return [(self.name(node.func), node) for node in self.of(ast.Call)]

    @cached_property
    def attributes(self) -> list[tuple[str, ast.Attribute]]:
        """The whole dotted names: `a.b.c`, without `a.b`."""
        found = []
        for node in self.of(ast.Attribute):
            if not isinstance(self.parents.get(id(node)), ast.Attribute) and (
                name := self.name(node)
            ):
                found.append((name, node))
        return found

    def modules(self) -> Iterator[tuple[str, ast.AST]]:
        """Yield each imported module, `from a import b` as `a.b`."""
        for node in self.of(ast.Import):
            yield from ((one.name, node) for one in node.names)
        for inner in self.of(ast.ImportFrom):
            if not inner.level:
                yield from ((f"{inner.module}.{one.name}", inner) for one in inner.names)

    def strings(self) -> Iterator[ast.Constant]:
        """Yield the strings that are no docstrings."""
        for node in self.of(ast.Constant):
            if isinstance(node.value, str):
                parent = self.parents.get(id(node))
                if not isinstance(parent, ast.Expr | ast.JoinedStr):
                    yield node

    def embedded(self) -> Iterator[Embedded]:
        """Yield the strings that hold CUDA code."""
        given = self._given_as_cuda()
        for node in self.strings():
            text = str(node.value)
            if "\n" in text and (
                IS_CUDA.search(text) or (id(node) in given and IS_CPP.search(text))
            ):
                yield self._embedded(node)

    def _given_as_cuda(self) -> set[int]:
        return {
            id(inner)
            for _, call in self.calls
            for word in call.keywords
            if word.arg in CUDA_ARGUMENTS
            for inner in ast.walk(word.value)
        }

    def _embedded(self, node: ast.Constant) -> Embedded:
        text = str(node.value).encode(errors="replace")
        start, end = self.at(node), self.end(node)
        raw = self.source.text[start:end]
        quote = re.match(rb"[a-zA-Z]*(\"\"\"|'''|\"|')", raw)
        body = start + (quote.end() if quote else 0)
        same = self.source.text[body : body + len(text)] == text
        return Embedded(node=node, text=text, shift=body if same else None, line=node.lineno)

    def as_source(self, found: Embedded) -> CodeText:
        """Return the CUDA code as a text of its own, with its place in the file."""
        return replace(
            self.source,
            kind="cuda",
            text=found.text,
            first_line=found.line,
            shift=found.shift,
            for_torch=True,
        )

    def is_guarded(self, node: ast.AST) -> bool:
        """Return whether a condition around a node asks for ROCm, as by `torch.version.hip`."""
        above: ast.AST | None = node
        while (above := self.parents.get(id(above))) is not None:
            if isinstance(above, ast.If | ast.IfExp | ast.BoolOp):
                said = self.said(above.test if not isinstance(above, ast.BoolOp) else above)
                if FOR_ONE.search(said):
                    return True
        return False


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return a keyword argument's expression."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def number(node: ast.AST | None) -> int | None:
    """Return an integer literal's value."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None
