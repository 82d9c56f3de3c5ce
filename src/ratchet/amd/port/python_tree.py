"""A Python text as `ast` reads it, with imports resolved and an index of what rules ask for."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar

from ratchet.amd.port.rule import CodeText, Edit, Match

Kind = TypeVar("Kind", bound=ast.AST)
CUDA_ARGUMENTS: Final = frozenset(("cuda_sources", "cuda_source", "cuda_src"))
IS_CUDA: Final = re.compile(r"__global__|<<<|__device__|#include\s*<cuda")
FOR_ONE: Final = re.compile(r"(?i)rocm|(?<![a-z])(hip|amd|nvidia)(?![a-z-])")
"""Words of a condition that tells AMD from NVIDIA."""
QUOTE: Final = re.compile(rb"[a-zA-Z]*(\"\"\"|'''|\"|')")
IS_CPP: Final = re.compile(r"#include\s*[<\"]|\b(?:torch::Tensor|at::Tensor)\b[^\n]*\(")


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
        yield from (node for node in self.nodes[kind] if isinstance(node, kind))

    def at(self, node: ast.AST) -> int:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return self.source.start_of(line) + int(column)

    def end(self, node: ast.AST) -> int:
        line, column = getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0)
        return self.source.start_of(line) + int(column)

    def said(self, node: ast.AST) -> str:
        return self.source.text[self.at(node) : self.end(node)].decode(errors="replace")

    def replaced(self, node: ast.AST, text: str) -> tuple[Edit, ...]:
        """Return what puts a text with a condition on `torch.version` in place of a node.

        There is none if the text does not import torch under that name.
        """
        if self.imported.get("torch") != "torch":
            return ()
        return (Edit(start=self.at(node), end=self.end(node), text=text),)

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

    def match(self, node: ast.AST, detail: str, **given: Any) -> Iterator[Match]:
        """Yield a match of a node, unless a condition around it asks for ROCm."""
        if not self.is_guarded(node):
            yield Match(at=self.at(node), detail=detail, **given)

    def strings(self) -> Iterator[tuple[ast.Constant, str]]:
        for node, text in strings(self.of(ast.Constant)):
            if not isinstance(self.parents.get(id(node)), ast.Expr | ast.JoinedStr):
                yield node, text

    def embedded(self) -> Iterator[CodeText]:
        """Yield the strings that hold CUDA code, as texts with their places in the file."""
        given = {
            id(inner)
            for _, call in self.calls
            for word in call.keywords
            if word.arg in CUDA_ARGUMENTS
            for inner in ast.walk(word.value)
        }
        for node, text in self.strings():
            is_cuda = IS_CUDA.search(text) or (id(node) in given and IS_CPP.search(text))
            if "\n" not in text or not is_cuda:
                continue
            code, start = text.encode(errors="replace"), self.at(node)
            quote = QUOTE.match(self.source.text, start)
            body = quote.end() if quote else start
            same = self.source.text[body : body + len(code)] == code
            yield replace(
                self.source,
                kind="cuda",
                text=code,
                first_line=node.lineno,
                shift=body if same else None,  # a string with escapes is not the file's own bytes
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


def strings(nodes: Iterable[ast.AST]) -> list[tuple[ast.Constant, str]]:
    """Return the string literals among nodes, with their values."""
    return [
        (one, one.value)
        for one in nodes
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
