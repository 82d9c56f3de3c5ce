"""Triton for the value of a node at an index: temporaries in nested scopes, masks, reductions.

A tile's values have shape [rows, columns]; what does not depend on an axis has size 1 along it, and
what depends on none is a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.write.form import Choice, Constant, Map, Node, UnsupportedOp, own_axes
from ratchet.write.form.build import class_of
from ratchet.write.form.extent import Extent, Pair
from ratchet.write.form.op_table import FOLDS, MAPS, FoldOp, filled
from ratchet.write.generator.evaluate import CODES, Buffer, NestedScopes
from ratchet.write.generator.fusion import Index

TYPES: Final = {
    "float": "tl.float32",
    "double": "tl.float64",
    "int64_t": "tl.int64",
    "int32_t": "tl.int32",
    "bool": "tl.int1",
}
"""Triton's types that values are computed in."""
LOADED_AS: Final = {
    "bfloat16": "tl.float32",
    "float16": "tl.float32",
    "int8": "tl.int32",
    "uint8": "tl.int32",
}
Tags = frozenset[str]


def rendered(extent: Extent, *, host: bool = False) -> str:
    """Return an extent as Python, for a kernel or for its caller."""

    def pair(one: Pair) -> str:
        left, right = rendered(one.left, host=host), rendered(one.right, host=host)
        if one.relation in ("min", "max"):
            return f"{one.relation if host else f'tl.{one.relation}imum'}({left}, {right})"
        return f"({left} {'//' if one.relation == '/' else '%'} {right})"

    return extent.written(pair)


class TileEvaluator(NestedScopes):
    def __init__(self, buffers: Mapping[Node, Buffer]) -> None:
        super().__init__(buffers)
        self.tags: dict[str, Tags] = {}  # The axes of the tile that a name depends on

    def axis(self, name: str, text: str, bound: str) -> None:
        """Define an index along an axis of the tile in the innermost scope, and its mask."""
        scope = self.scopes[-1]
        scope.lines += [f"{name} = {text}", f"{name}_in = {name} < {bound}"]
        scope.names |= {name, f"{name}_in"}
        self.tags[name] = frozenset([name])

    def tags_of(self, names: Tags | set[str]) -> Tags:
        """Return the axes that names depend on."""
        return frozenset(tag for name in names for tag in self.tags.get(name, ()))

    def define(self, text: str, needs: Tags | set[str]) -> str:
        """Define a temporary as early as what it needs is known; return its name."""
        scope = self.scopes[self.depth_of(needs)]
        name = self.fresh()
        scope.lines.append(f"{name} = {text}")
        scope.names.add(name)
        self.tags[name] = self.tags_of(needs)
        return name

    def declare(self, name: str, tags: Tags, node: Node | None = None, index: Index = ()) -> None:
        """Note a name that the innermost scope's text defines, as a node's value if one is given.

        The text itself is the caller's.
        """
        self.scopes[-1].names.add(name)
        self.tags[name] = tags
        if node is not None:
            self.scopes[-1].values[(node, index, ())] = name

    def mask(self, tags: Tags) -> str:
        """Return the condition under which every one of the axes is inside."""
        return " & ".join(f"{tag}_in" for tag in sorted(tags)) or "True"

    # --- values

    @staticmethod
    def literal(node: Constant) -> str:
        kind, value = class_of(node.dtype), node.value
        if kind == "bool":
            return "(1 == 1)" if value else "(1 == 0)"
        if kind in ("int64_t", "int32_t"):
            return f"({int(value)})"
        number = float(value)
        return f"({number!r})" if math.isfinite(number) else f'float("{number}")'

    def _position(self, place: Extent) -> str:
        return self.define(f"tl.cast({rendered(place)}, tl.int64)", place.names)

    def _mapped(self, node: Map, index: Index) -> str:
        args = [self.value(one, index) for one in node.args]
        if node.op == "copy":
            return args[0]
        return self.define(self._operation(node, args), _identifiers(args))

    def _drawn(self, text: str) -> str:
        return text if text.isidentifier() else self.define(text, set())

    def _choice(self, node: Choice, index: Index) -> str:
        conditions = [one.replace(own_axes(index)) for one in node.when]
        names = frozenset(name for one in conditions for name in one.names)
        inside = self.define(" & ".join(f"({rendered(c)} >= 0)" for c in conditions), names)
        outside = self.define(" | ".join(f"({rendered(c)} < 0)" for c in conditions), names)
        before, texts = self.guards, []
        for guard, part in ((inside, node.arg), (outside, node.other)):
            self.guards = (*before, guard)
            texts.append(self.operand(self.value(part, index), class_of(node.dtype)))
        self.guards = before
        return self.define(
            f"tl.where({inside}, {texts[0]}, {texts[1]})", _identifiers([inside, *texts])
        )

    def load(self, buffer: Buffer, index: Index) -> str:
        address = buffer.address(index)
        needs = address.names | set(self.guards)
        place, mask = self.place(buffer, address, self.tags_of(needs), self.guards)
        masked = f", {mask}, other=0" if mask else ""
        text = f"tl.load({place}{masked})"
        if buffer.dtype in LOADED_AS:
            text += f".to({LOADED_AS[buffer.dtype]})"
        if buffer.dtype.startswith("float8"):
            text = f"{self.call('from_' + CODES[buffer.dtype])}({text})"
        return self.define(text, needs)

    def place(
        self, buffer: Buffer, address: Extent, tags: Tags, guards: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Return the pointers of elements along some axes, and the mask of those inside."""
        parts = [buffer.name]
        if address.terms:
            parts.append(rendered(address))
        parts += [f"{tag} * 0" for tag in sorted(tags - self.tags_of(address.names))]
        mask = " & ".join([*(f"{tag}_in" for tag in sorted(tags)), *guards])
        return " + ".join(parts), mask

    def store(self, buffer: Buffer, index: Index, value: str, tags: Tags = frozenset()) -> str:
        """Return the statement that stores a value, whose shape has `tags` as well as its own."""
        address = buffer.address(index)
        every = tags | self.tags_of(address.names | _identifiers([value]))
        place, mask = self.place(buffer, address, every)
        masked = f", {mask}" if mask else ""
        return f"tl.store({place}, {self.rounded(buffer.dtype, value)}{masked})"

    def rounded(self, dtype: str, value: str) -> str:
        value = self.operand(value, class_of(dtype))
        if dtype.startswith("float8"):
            return f"{self.call('to_' + CODES[dtype])}({value})"
        if stored_type(dtype) == TYPES[class_of(dtype)]:
            return value
        return f"tl.cast({value}, {stored_type(dtype)})"

    @staticmethod
    def operand(text: str, kind: str) -> str:
        """Return a literal as a tensor of its type; other texts as they are."""
        return text if text.isidentifier() else f"tl.full((), {text}, {TYPES[kind]})"

    def _operation(self, node: Map, args: Sequence[str]) -> str:
        op, kind = MAPS[node.op], class_of(node.dtype)
        op.check(node.dtype)
        pairs = zip(args, node.args, strict=True)
        tensors = [self.operand(text, class_of(one.dtype)) for text, one in pairs]
        if op.name == "cast" and node.dtype == "bool":
            return f"{tensors[0]} != 0"
        narrow = node.dtype in ("int8", "uint8")
        if op.name == "cast" and narrow and node.args[0].dtype not in ("bool", node.dtype):
            return f"tl.cast({tensors[0]}, tl.int32).to(tl.{node.dtype}).to(tl.int32)"
        if op.sign and any(text.isidentifier() for text in args):
            tensors = list(args)
        template = op.triton_text(whole=kind in ("int64_t", "int32_t", "bool"))
        return filled(template, tensors, self.used, type=TYPES[kind])


def stored_type(dtype: str) -> str:
    """Return Triton's type of what lies in memory; fp8 codes are bytes."""
    if dtype.startswith("float8"):
        return "tl.uint8"
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"


def _identifiers(texts: Sequence[str]) -> set[str]:
    return {text for text in texts if text.isidentifier()}


LIMITS: Final = {"int64_t": (-(2**63), 2**63 - 1), "int32_t": (-(2**31), 2**31 - 1)}


@dataclass(frozen=True, kw_only=True)
class TileFolding:
    """A reduction's type and start, and how it takes values in."""

    op: FoldOp
    kind: str
    used: set[str]  # Takes the functions of the prelude that the texts call

    @property
    def type(self) -> str:
        return "tl.int32" if self.kind == "bool" else TYPES[self.kind]

    @property
    def start(self) -> str:
        neutral = self.op.neutral
        if math.isinf(neutral) and self._is_whole:
            own = "int32_t" if self.kind == "bool" else self.kind
            return str(LIMITS[own][neutral > 0])
        return f'float("{neutral}")' if math.isinf(neutral) else str(neutral)

    @property
    def _is_whole(self) -> bool:
        return self.kind not in ("float", "double")

    def ready(self, value: str, mask: str) -> str:
        """Return a value of the whole tile, neutral outside of the mask."""
        if self.kind == "bool":
            return f"tl.where({mask}, {value}.to(tl.int32), {self.start})"
        neutral = f"tl.full((), {self.start}, {self.type})" if self.kind in LIMITS else self.start
        return f"tl.where({mask}, {value}, {neutral})"

    def joined(self, one: str, other: str) -> str:
        if self.op.sign:
            return f"{one} {self.op.sign} {other}"
        return self._filled(MAPS[self.op.name].triton_text(whole=self._is_whole), one, other)

    def along(self, value: str, axis: int) -> str:
        """Return the reduction of a tile along an axis, which keeps size 1."""
        template = (self._is_whole and self.op.along_whole) or self.op.along
        return self._filled(template, value, str(axis))

    def result(self, total: str) -> str:
        """Return the reduction's value as its node has it."""
        return f"{total} != 0" if self.kind == "bool" else total

    def scanned(self, value: str) -> str:
        """Return the running reduction of a tile's rows."""
        if not self.op.scan:
            raise UnsupportedOp(f"scan of {self.op.name}", "in Triton")
        return self._filled(self.op.scan, value)

    def _filled(self, template: str, *args: str) -> str:
        return filled(template, args, self.used)


def tile_folding(node: Node, op: str, used: set[str]) -> TileFolding:
    return TileFolding(op=FOLDS[op], kind=class_of(node.dtype), used=used)


def finisher(way: TileFolding, name: str, stored: str) -> str:
    """Write the kernel that reduces what the programs left: [count, width] to [width]."""
    value = f"tl.load(partial + r * width + c, r_in & c_in, other={way.start})"
    return "\n".join(
        [
            "@triton.jit",
            f"def {name}(partial, out, count, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):",
            "    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]",
            "    c_in = c < width",
            f"    total = tl.full((ROWS, BLOCK), {way.start}, {way.type})",
            "    for first in range(0, count, ROWS):",
            "        r = first + tl.arange(0, ROWS)[:, None]",
            "        r_in = r < count",
            f"        total = {way.joined('total', value)}",
            f"    found = {way.along('total', 0)}",
            f"    found = {way.result('found')}",
            f"    tl.store(out + c, {stored}, c_in)",
        ]
    )
