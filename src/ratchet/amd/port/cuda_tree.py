"""A CUDA or C++ text as tree-sitter reads it, with an index of what rules ask for.

Bodies of macros are no syntax to tree-sitter: they are read in a second parse, at the same bytes.
What the preprocessor leaves out on ROCm is left out of the index.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

from ratchet.amd.port.preprocessor import (
    evaluated,
    left_out,
    without_inner_conditions,
    written_for_rocm,
)
from ratchet.amd.port.rule import Edit, inserted
from ratchet.base.errors import PortError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Query

NEEDED: Final = "reading CUDA needs tree-sitter: pip install 'torch-ratchet[port]'"
INDEXED: Final = """
(call_expression) @call
(identifier) @name
(type_identifier) @name
(namespace_identifier) @name
(field_identifier) @name
(preproc_include) @include
(gnu_asm_expression) @asm
(function_definition) @function
(declaration) @declaration
(field_declaration) @declaration
(for_statement) @for
(if_statement) @if
(binary_expression) @binary
(launch_bounds) @launch_bounds
(preproc_def) @define
(preproc_function_def) @macro
(preproc_if) @condition
(preproc_ifdef) @condition
(preproc_elif) @condition
(preproc_call) @directive
(enumerator) @enumerator
(parameter_declaration) @parameter
(type_definition) @typedef
(struct_specifier) @type
(class_specifier) @type
(enum_specifier) @type
(template_type) @template
(template_function) @template
(number_literal) @number
(ERROR) @error
"""


@cache
def _parser() -> tuple[Parser, Query]:
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError as error:
        raise PortError(NEEDED) from error
    language = tree_sitter.Language(tree_sitter_cuda.language())
    return tree_sitter.Parser(language), tree_sitter.Query(language, INDEXED)


ASKED: Final = re.compile(rb"""(__has_include(?:_next)?\s*\(\s*)([<"][^<>"\n]+[>"]\s*)\)""")
"""A condition that is no syntax to tree-sitter: its file's name is read as an identifier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """One call: the last part of its name, its arguments, the node."""

    name: str
    arguments: tuple[Node, ...]
    node: Node
    launch: tuple[Node, ...] = ()  # the arguments between <<< and >>>

    @property
    def at(self) -> int:
        return self.node.start_byte

    @property
    def function(self) -> Node | None:
        return self.node.child_by_field_name("function")


class CudaTree:
    """The syntax of one text."""

    def __init__(
        self,
        text: bytes,
        constants: dict[str, int] | None = None,
        own: frozenset[str] = frozenset(),
        *,
        is_hip: bool = False,
    ) -> None:
        """`own` are names that the repository defines; `is_hip` is text for AMD alone."""
        self.text = text
        self.is_hip = is_hip
        self._own = own
        self._outer = dict(constants or {})
        self.root = self._parse(text)
        self._nodes: dict[str, list[Node]] = defaultdict(list)
        self._index(self.root)
        self.dead = left_out(self._nodes["condition"])
        self._dead_starts = [start for start, _ in self.dead]
        if overlay := self._overlay():
            self._macros = self._parse(overlay)
            self._index(self._macros, skip=("define", "macro", "condition", "error"))

    def _parse(self, text: bytes) -> Node:
        parser, _ = _parser()
        masked = ASKED.sub(lambda one: one[1] + b"_" * len(one[2]) + b")", text)
        root: Node = parser.parse(masked).root_node
        if root.has_error and (flat := without_inner_conditions(masked)) != masked:
            root = parser.parse(flat).root_node
        return root

    def _index(self, root: Node, skip: tuple[str, ...] = ()) -> None:
        from tree_sitter import QueryCursor

        _, query = _parser()
        for name, nodes in QueryCursor(query).captures(root).items():
            if name not in skip:
                self._nodes[name] += nodes

    def _overlay(self) -> bytes:
        """Return a text in which each macro's body is a function's, at the same bytes."""
        spans = []
        for node in (*self._nodes["macro"], *self._nodes["define"]):
            value = node.child_by_field_name("value")
            if value is not None and b"(" in self.text[value.start_byte : value.end_byte]:
                spans.append((node.start_byte, value.start_byte, value.end_byte))
        if not spans:
            return b""
        made = bytearray(re.sub(rb"[^\n]", b" ", self.text))
        for start, body, end in spans:
            head = b"void m(){"
            if body - start < len(head) or end >= len(made):
                continue
            made[start : start + len(head)] = head
            made[body:end] = self.text[body:end].replace(b"\\\n", b" \n")
            closed = b";}" if made[end + 1 : end + 2] == b" " else b"}"
            made[end : end + len(closed)] = closed
        return bytes(made)

    def nodes(self, kind: str) -> Iterator[Node]:
        """Yield the nodes of a kind that ROCm's compiler would see."""
        for node in self._nodes[kind]:
            if not self.is_dead(node.start_byte):
                yield node

    def is_dead(self, at: int) -> bool:
        """Return whether the preprocessor leaves a byte out on ROCm."""
        index = bisect.bisect_right(self._dead_starts, at) - 1
        return index >= 0 and at < self.dead[index][1]

    @property
    def unread(self) -> float:
        """The share of the text that is no syntax to the parser."""
        covered = end = 0
        for node in sorted(self.nodes("error"), key=lambda one: one.start_byte):
            covered += max(0, node.end_byte - max(end, node.start_byte))
            end = max(end, node.end_byte)
        return covered / max(1, len(self.text))

    def is_for_rocm(self, at: int) -> bool:
        """Return whether a byte is code that its author wrote for ROCm alone."""
        return any(start <= at < end for start, end in self._for_rocm)

    @cached_property
    def _for_rocm(self) -> list[tuple[int, int]]:
        return written_for_rocm(self._nodes["condition"])

    def said(self, node: Node | None, field: str = "") -> str:
        """Return the text of a node, or of one of its fields; "" if there is none."""
        if node is not None and field:
            node = node.child_by_field_name(field)
        if node is None:
            return ""
        return self.text[node.start_byte : node.end_byte].decode(errors="replace")

    @cached_property
    def calls(self) -> dict[str, list[Called]]:
        """The calls by the last part of their names."""
        found: dict[str, list[Called]] = defaultdict(list)
        for node in self.nodes("call"):
            launch = next((one for one in node.children if one.type == "kernel_call_syntax"), None)
            name = last_name(self.said(node, "function"))
            arguments = listed(node.child_by_field_name("arguments"))
            call = Called(name=name, arguments=arguments, node=node, launch=listed(launch))
            found[name].append(call)
        return found

    def calls_of(self, *names: str) -> Iterator[Called]:
        for name in names:
            yield from self.calls.get(name, ())

    @cached_property
    def launches(self) -> list[Called]:
        return [call for calls in self.calls.values() for call in calls if call.launch]

    @cached_property
    def names(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self.nodes("name"):
            found[self.said(node)].append(node)
        for nodes in found.values():
            nodes.sort(key=lambda node: node.start_byte)
        return found

    @cached_property
    def includes(self) -> list[tuple[str, Node]]:
        """The included paths, without brackets."""
        found = []
        for node in self.nodes("include"):
            path = node.child_by_field_name("path")
            if path is not None:
                found.append((self.said(path).strip('<>"'), path))
        return found

    @cached_property
    def constants(self) -> dict[str, int]:
        """The integer constants of this text, over those of the repository."""
        return self._outer | dict(self.own_constants())

    def own_constants(self) -> Iterator[tuple[str, int]]:
        """Yield the constants that this text defines: macros, constexpr, const, enumerators."""
        known = dict(self._outer)
        for name, text in self._definitions():
            value = evaluated(text, known)
            if value is not None:
                known[name] = value
                yield name, value

    def _definitions(self) -> Iterator[tuple[str, str]]:
        made = [*self.nodes("define"), *self.nodes("enumerator")]
        names = ["name"] * len(made)
        for node in self.nodes("declaration"):
            words = {self.said(one) for one in node.children if one.type == "type_qualifier"}
            given = node.child_by_field_name("declarator")
            if given and given.type == "init_declarator" and words & {"const", "constexpr"}:
                made.append(given)
                names.append("declarator")
        for node, name in zip(made, names, strict=True):
            if (said := self.said(node, name)) and (value := self.said(node, "value")):
                yield said, value

    def value(self, node: Node | str) -> int | None:
        """Return an expression's value, if it is an integer constant."""
        return evaluated(node if isinstance(node, str) else self.said(node), self.constants)

    @cached_property
    def functions(self) -> list[Node]:
        """The definitions of functions, macros' bodies among them."""
        return sorted(self.nodes("function"), key=lambda node: node.start_byte)

    @cached_property
    def _function_starts(self) -> list[int]:
        return [node.start_byte for node in self.functions]

    def function_at(self, at: int) -> Node | None:
        index = bisect.bisect_right(self._function_starts, at)
        around = self.functions[max(0, index - 4) : index]
        return next((node for node in reversed(around) if node.end_byte > at), None)

    @property
    def has_kernels(self) -> bool:
        made = any("__global__" in self.head(one) for one in self.functions)
        return made or bool(self.kernel_macros)

    @cached_property
    def kernel_macros(self) -> tuple[str, ...]:
        made = (*self.nodes("macro"), *self.nodes("define"))
        return tuple(self.said(one, "name") for one in made if "__global__" in self.said(one))

    @cached_property
    def own(self) -> frozenset[str]:
        """The functions and macros that the text, or a header of the repository, defines."""
        heads = (self.said(one, "declarator").partition("(")[0] for one in self.functions)
        macros = (*self.nodes("macro"), *self.nodes("define"))
        names = {self.said(one, "name") for one in macros}
        return self._own | names | {last_name(one).lstrip("*& ") for one in heads} - {""}

    @cached_property
    def declared(self) -> frozenset[str]:
        """The variables, parameters, fields, types and functions that the text declares."""
        nodes = (*self.nodes("declaration"), *self.nodes("parameter"), *self.nodes("typedef"))
        made = (one for node in nodes for one in node.children_by_field_name("declarator"))
        types = (self.said(one, "name") for one in self.nodes("type"))
        return frozenset((*(self.said(_innermost(one)) for one in made), *types))

    def positions(self, word: str) -> Iterator[int]:
        """Yield where a word stands that may be an attribute; comments and strings do not count."""
        for found in re.finditer(rb"\b%s\b" % word.encode(), self.text):
            node = self.root.descendant_for_byte_range(found.start(), found.end())
            kind = node.type if node is not None else ""
            if not self.is_dead(found.start()) and kind not in ("comment", "string_content"):
                yield found.start()

    def head(self, function: Node) -> str:
        """Return what stands before a function's body."""
        body = function.child_by_field_name("body")
        end = body.start_byte if body is not None else function.end_byte
        return self.text[function.start_byte : end].decode(errors="replace")

    def is_device(self, function: Node | None) -> bool:
        """Return whether a function is a GPU's; a macro's body may be."""
        if function is None:
            return False
        head = self.head(function)
        return "__global__" in head or "__device__" in head or self.is_macro(function)

    def is_macro(self, function: Node) -> bool:
        """Return whether a function is the body of a macro, as `functions` has it."""
        return self.head(function).lstrip().startswith("#")


def replaced(node: Node, text: str) -> Edit:
    return Edit(start=node.start_byte, end=node.end_byte, text=text)


def around(node: Node, before: str, after: str) -> tuple[Edit, Edit]:
    """Return what puts a text before and after a node, which other edits may still change."""
    return inserted(node.start_byte, before), inserted(node.end_byte, after)


def last_name(text: str) -> str:
    """Return the last part of a called name, without template arguments: `a::b<3>` is `b`."""
    text = text.partition("<")[0] if "<" in text else text
    return re.split(r"::|\.|->", text)[-1].strip()


def listed(node: Node | None) -> tuple[Node, ...]:
    if node is None:
        return ()
    return tuple(one for one in node.named_children if one.type != "comment")


def _innermost(declarator: Node) -> Node:
    """Return the name in a declarator: that of `*x[3] = y` is `x`."""
    while (inner := declarator.child_by_field_name("declarator")) is not None:
        declarator = inner
    return declarator
