"""C++ for the value of a node at an index: temporaries in nested scopes.

A temporary goes into the outermost scope that has all that it needs, so what does not change in a
loop is computed before it.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ratchet.write.form import (
    Choice,
    Constant,
    Fold,
    Map,
    Node,
    Position,
    Scan,
    Shape,
    UnsupportedOp,
    View,
    own_axes,
)
from ratchet.write.form.build import class_of
from ratchet.write.form.extent import Extent, at_least, flattened, named
from ratchet.write.form.op_table import FOLDS, MAPS, FoldOp, filled
from ratchet.write.generator.conditions import LoopSplits, condition_of
from ratchet.write.generator.fusion import Index

STORED: Final = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "int32": "int32_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "uint8_t",
    "bfloat16": "uint16_t",
    "float16": "uint16_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
}
CODES: Final = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}


@dataclass(frozen=True, kw_only=True)
class Buffer:
    name: str
    dtype: str
    shape: Shape
    strided: bool
    lead: int = 0
    """Leading dimensions that it has no place for: one index of them at a time is there."""

    def address(self, index: Index) -> Extent:
        """Return the element's number from the first one."""
        if not self.strided:
            return flattened(index[self.lead :], self.shape[self.lead :])
        total = flattened((), ())
        for place, one in enumerate(index):
            total = total + one * named(f"{self.name}_s{place}")
        return total


@dataclass
class LoopScope:
    """Lines of code and the values that they define."""

    lines: list[str] = field(default_factory=list)
    values: dict[tuple[object, ...], str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    fixed: bool = False
    """Nothing that is computed inside may move out: the index may lie outside of a tensor."""


class NestedScopes(abc.ABC):
    """A stack of scopes with temporaries for the values of nodes, in any language."""

    def __init__(self, buffers: Mapping[Node, Buffer]) -> None:
        self.buffers = buffers
        self.scopes: list[LoopScope] = [LoopScope()]
        self.used: set[str] = set()  # Functions of the prelude that the code calls
        self.local: set[Node] = set()
        """Nodes with memory that the stage computes itself, element by element."""
        self.guards: tuple[str, ...] = ()
        """Conditions under which the index lies inside of a tensor."""
        self._count = 0

    def fresh(self, kind: str = "v") -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def push(self, names: Sequence[str] = (), *, fixed: bool = False) -> LoopScope:
        """Open a scope with its loop variables."""
        scope = LoopScope(names=set(names), fixed=fixed)
        self.scopes.append(scope)
        return scope

    def pop(self) -> LoopScope:
        return self.scopes.pop()

    def depth_of(self, names: frozenset[str] | set[str]) -> int:
        """Return the innermost scope that defines one of the names."""
        for depth in range(len(self.scopes) - 1, -1, -1):
            if self.scopes[depth].fixed or self.scopes[depth].names & names:
                return depth
        return 0

    def call(self, function: str) -> str:
        self.used.add(function)
        return f"r_{function}"

    def value(self, node: Node, index: Index) -> str:
        """Return a temporary or a literal with the node's value at the index."""
        for count in range(len(self.guards) + 1):
            key = (node, index, self.guards[:count])
            for scope in reversed(self.scopes):
                if key in scope.values:
                    return scope.values[key]
        name = self._computed(node, index)
        depth = self.depth_of({name}) if name.isidentifier() else 0
        self.scopes[depth].values[(node, index, self.guards)] = name
        return name

    def _computed(self, node: Node, index: Index) -> str:
        if node in self.buffers and node not in self.local:
            return self.load(self.buffers[node], index)
        match node:
            case Constant():
                return self.literal(node)
            case Position():
                return self._position(node.value.replace(own_axes(index)))
            case View():
                own = own_axes(index)
                places = [
                    place.replace(own)
                    if isinstance(place, Extent)
                    else named(self._drawn(self.value(place, index)))
                    for place in node.places
                ]
                return self.value(node.arg, tuple(places))
            case Choice():
                return self._choice(node, index)
            case Map():
                return self._mapped(node, index)
        raise UnsupportedOp(type(node).__name__.lower(), "inside of another computation")

    @abc.abstractmethod
    def load(self, buffer: Buffer, index: Index) -> str:
        """Return a temporary with an element of a buffer."""

    @abc.abstractmethod
    def literal(self, node: Constant) -> str: ...

    @abc.abstractmethod
    def _position(self, place: Extent) -> str: ...

    @abc.abstractmethod
    def _drawn(self, text: str) -> str:
        """Return the name of an index that a tensor holds."""

    @abc.abstractmethod
    def _choice(self, node: Choice, index: Index) -> str: ...

    @abc.abstractmethod
    def _mapped(self, node: Map, index: Index) -> str: ...


class Evaluator(NestedScopes):
    """Writes the values of nodes as temporaries of C++."""

    def __init__(self, buffers: Mapping[Node, Buffer], *, reciprocal: bool = False) -> None:
        super().__init__(buffers)
        self.reciprocal = reciprocal
        self.addresses: list[Extent] = []
        """Addresses of all loads and stores, to find axes that can be merged."""
        self.indices: list[Extent] = []  # Other uses of loop variables
        self.floor = 0  # The outermost scope for a choice
        self.known: tuple[Extent, ...] = ()  # Extents that are at least 0 wherever the loop runs
        self.splits: LoopSplits | None = None  # Splits of the loop that is being written
        self.evaluated: Callable[[Node, Index, str], None] | None = None
        self.remembered: Callable[[Node, Index], str | None] | None = None
        self._unbounded: set[str] = set()  # Indices that tensors hold: nothing bounds them

    def define(self, dtype_class: str, text: str, needs: frozenset[str] | set[str]) -> str:
        """Define a temporary as early as what it needs is known; return its name."""
        scope = self.scopes[self.depth_of(needs)]
        name = self.fresh()
        scope.lines.append(f"const {dtype_class} {name} = {text};")
        scope.names.add(name)
        return name

    def _computed(self, node: Node, index: Index) -> str:
        known = None if self.remembered is None else self.remembered(node, index)
        return super()._computed(node, index) if known is None else known

    @staticmethod
    def literal(node: Constant) -> str:
        kind, value = class_of(node.dtype), node.value
        if kind == "bool":
            return "true" if value else "false"
        if kind in ("int64_t", "int32_t"):
            return f"({kind}){int(value)}"
        number = float(value)
        if math.isnan(number):
            text = '__builtin_nanf("")' if kind == "float" else '__builtin_nan("")'
            return f"({text})"
        if math.isinf(number):
            text = "__builtin_inff()" if kind == "float" else "__builtin_inf()"
            return f"({'-' if number < 0 else ''}{text})"
        return f"({number!r}f)" if kind == "float" else f"({number!r})"

    def _position(self, place: Extent) -> str:
        self.indices.append(place)
        return self.define("int64_t", place.text, place.names)

    def _mapped(self, node: Map, index: Index) -> str:
        condition = condition_of(node, index)
        if condition is not None and not (condition.names & self._unbounded):
            return self._compared(condition)
        args = [self.value(one, index) for one in node.args]
        needs = {one for one in args if one.isidentifier()}
        name = self.define(class_of(node.dtype), self._operation(node, args), needs)
        if self.evaluated is not None:
            self.evaluated(node, index, name)
        return name

    def _compared(self, condition: Extent) -> str:
        if self._holds(condition):
            return "true"
        if self._surely(condition * -1, 1):
            return "false"
        self.indices.append(condition)
        return self.define("bool", self._test(condition), condition.names)

    def _drawn(self, text: str) -> str:
        if not text.isidentifier():
            text = self.define("int64_t", text, frozenset())
        self._unbounded.add(text)
        return text

    def _choice(self, node: Choice, index: Index) -> str:
        own = own_axes(index)
        whens = [one.replace(own) for one in node.when]
        conditions = [one for one in whens if not self._holds(one)]
        if not conditions:
            return self.value(node.arg, index)
        if any(self._surely(one * -1, 1) for one in conditions):
            return self.value(node.other, index)
        self.indices += conditions
        names: set[str] = set()
        for one in (*conditions, *index):
            names |= one.names
        depth = max(self.depth_of(names), self.floor)
        hidden = self.scopes[depth + 1 :]
        del self.scopes[depth + 1 :]
        name, kind = self.fresh(), class_of(node.dtype)
        texts = []
        for part in (node.arg, node.other):
            self.push(fixed=True)
            found = self.value(part, index)
            texts.append((self.pop().lines, found))
        (first, left), (second, right) = texts
        scope = self.scopes[depth]
        test = " && ".join(self._test(one) for one in conditions)
        scope.lines.append(f"{kind} {name};")
        scope.lines.append(f"if ({test}) {{ {' '.join(first)} {name} = {left}; }}")
        scope.lines.append(f"else {{ {' '.join(second)} {name} = {right}; }}")
        scope.names.add(name)
        self.scopes.extend(hidden)
        return name

    def _surely(self, extent: Extent, least: int) -> bool:
        return not (extent.names & self._unbounded) and at_least(extent, least)

    def _holds(self, condition: Extent) -> bool:
        """Return whether a condition is at least 0 wherever the loop runs."""
        return any(
            self._surely(condition - one, 0) or condition == one for one in self.known
        ) or self._surely(condition, 0)

    def _test(self, condition: Extent) -> str:
        splits = self.splits
        if splits is not None and len(self.scopes) > splits.depth:
            own = {name for scope in self.scopes[splits.depth :] for name in scope.names}
            if not (condition.names & own - {splits.variable}):
                name = splits.name_of(condition)
                if name is not None:
                    return name
        return f"{condition.text} >= 0"

    def load(self, buffer: Buffer, index: Index) -> str:
        address = buffer.address(index)
        self.addresses.append(address)
        text = f"{buffer.name}[{address.text}]"
        if buffer.dtype in CODES:
            text = f"{self.call('from_' + CODES[buffer.dtype])}({text})"
        elif buffer.dtype == "bool":
            text = f"{text} != 0"
        return self.define(class_of(buffer.dtype), text, address.names)

    def store(self, buffer: Buffer, index: Index, value: str) -> str:
        address = buffer.address(index)
        self.addresses.append(address)
        return f"{buffer.name}[{address.text}] = {self.rounded(buffer.dtype, value)};"

    def rounded(self, dtype: str, value: str) -> str:
        if dtype in CODES:
            return f"{self.call('to_' + CODES[dtype])}({value})"
        return f"({STORED[dtype]})({value})"

    def _operation(self, node: Map, args: Sequence[str]) -> str:
        op, kind = MAPS[node.op], class_of(node.dtype)
        op.check(node.dtype)
        if op.name == "cast" and node.dtype == "bool":
            return f"{args[0]} != 0"
        if op.name == "cast" and node.dtype in ("int8", "uint8"):  # fewer values than the C type
            return f"(int32_t)({STORED[node.dtype]})(int32_t){args[0]}"
        if op.name == "div" and self.reciprocal:
            value, divisor = args
            if divisor.startswith("(") and divisor.rstrip("f)")[-1:].isdigit():  # a number
                return f"{value} * (1 / {divisor})"
            both = value.isidentifier() and divisor.isidentifier()
            if both and self.depth_of({divisor}) < self.depth_of({value}):
                inverse = self.define(kind, f"1 / {divisor}", {divisor})
                return f"{value} * {inverse}"
        return filled(op.cpp_text, args, self.used, kind=kind)


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
        if self.op.sign:
            return f"{total} {self.op.sign}= {value};"
        return f"{total} = r_{self.op.name}({total}, {value});"


def folding(node: Node) -> Folding:
    assert isinstance(node, Fold | Scan)
    kind = class_of(node.dtype)
    return Folding(op=FOLDS[node.op], kind="int32_t" if kind == "bool" else kind)


Scratch = list[tuple[str, str, str]]
"""Memory that stages ask for: name, C type and number of elements."""
