"""Decide which nodes get memory, and which of them share a loop nest.

A loop nest (`LoopNest`) runs over the sizes of one shape, sizes of 1 left out. Some of its axes are
`inner`: a row is what the others, the outer ones, leave. In a row, reductions over the inner axes
give numbers that later passes over the same row use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ratchet.write.form import (
    Choice,
    Fold,
    InputNode,
    LoopForm,
    Map,
    Matmul,
    Node,
    Order,
    Scan,
    Scatter,
    View,
    axes_of,
    ordered,
    over_of,
    own_axes,
)
from ratchet.write.form.extent import ONE, ZERO, Extent, named

Role = Literal["element", "part", "row", "row fold", "column fold", "whole fold", "scan"]
"""A part: elements of a longer row, of which the nest's rows are groups; the last may be short."""
Index = tuple[Extent, ...]


@dataclass(kw_only=True, eq=False)
class LoopNest:
    """Nodes that are computed in one loop nest."""

    name: str
    sizes: tuple[Extent, ...]
    inner: frozenset[int] | None = None
    """Axes that a row consists of; None as long as no member decides it."""
    members: dict[Node, Role] = field(default_factory=dict)
    takes_parts: bool = True

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.members)

    def index(self, place: int) -> Extent:
        return named(f"{self.name}_{place}", self.sizes[place])

    def axes(self, role: Role) -> tuple[int, ...]:
        """Return the axes that a member's own dimensions run over."""
        every = range(len(self.sizes))
        inner = self.inner or frozenset()
        if role in ("row", "row fold"):
            return tuple(place for place in every if place not in inner)
        if role == "column fold":
            return tuple(place for place in every if place in inner)
        return () if role == "whole fold" else tuple(every)

    def place_of(self, shape: Sequence[Extent], axes: Sequence[int]) -> Index:
        """Return the index of a tensor whose dimensions other than 1 run over `axes`."""
        waiting = iter(axes)
        return tuple(ZERO if size == ONE else self.index(next(waiting)) for size in shape)

    def place(self, shape: Sequence[Extent], role: Role) -> Index:
        """Return the index in the loop variables of what a member runs over."""
        if role != "part":
            return self.place_of(shape, self.axes(role))
        last = len(self.sizes) - 1
        joined = self.index(last - 1) * self.sizes[last] + self.index(last)
        waiting = iter([*(self.index(place) for place in range(last - 1)), joined])
        return tuple(ZERO if size == ONE else next(waiting) for size in shape)

    def row_results(self, wanted: Collection[Node]) -> list[Node]:
        """Return the members with one value for each row; of reductions, those that are wanted."""
        members = self.members.items()
        return [n for n, role in members if role == "row" or (role == "row fold" and n in wanted)]

    def guard(self, node: Node) -> Extent | None:
        """Return what is at least 0 where a part has an element; None if it always has."""
        width, place = dense(node.shape)[-1], self.place(dense(node.shape), "part")[-1]
        whole_rows = self.sizes[-2] * self.sizes[-1] == width
        return None if whole_rows else width - 1 - place


@dataclass(frozen=True, kw_only=True, eq=False)
class Alone:
    """A scatter, a sort or a product: a stage of its own."""

    node: Node

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.node,)


Stage = LoopNest | Alone


@dataclass(frozen=True, kw_only=True)
class FusionPlan:
    """The stages of a form in order, and the nodes that get memory."""

    stages: tuple[Stage, ...]
    outputs: tuple[Node, ...]
    kept: frozenset[Node]  # Nodes that get memory, outputs among them
    apart: bool = False
    """Products read factors whose places are sums of one of the row and one of the column."""

    def factor(self, node: Node) -> tuple[Node, Index]:
        """Return the node with memory that a product's factor is read from, and the index."""
        return stripped(node, apart=self.apart)

    def read_outside(self, own: Collection[Stage]) -> frozenset[Node]:
        """Return what stages other than `own` read from memory."""
        others = (stage for stage in self.stages if stage not in own)
        nodes = (node for stage in others for node in stage.nodes)
        return frozenset(one for node in nodes for one, _ in own_reads(node, self.kept))


def planned(
    form: LoopForm,
    *,
    fuse: bool = True,
    factors: bool = True,
    parts: bool = True,
    apart: bool = False,
) -> FusionPlan:
    """Return the stages of a form; without `fuse`, every node that gets memory has its own.

    `factors`: the factors of products get memory; with `apart`, only what is below windows and
    other views whose places are sums of one of the row and one of the column. `parts`: nests take
    parts of longer rows.
    """
    outputs = _apart(form.outputs)
    kept = _kept(outputs, factors, apart)
    stages: list[Stage] = []
    home: dict[Node, int] = {}
    read = {one for node in kept for one, _ in own_reads(node, kept)}
    order = [node for node in ordered(outputs) if node in kept]
    for node in sorted(order, key=lambda one: one not in read):  # what nobody reads joins last
        reads = {one for one, _ in own_reads(node, kept)}
        first = max((home[one] for one in reads if one in home), default=0)
        place = _joined(node, stages, first, kept) if fuse else None
        if place is None:
            stages.append(_stage_of(node, len(stages), parts))
            place = len(stages) - 1
        home[node] = place
    return FusionPlan(stages=tuple(stages), outputs=outputs, kept=frozenset(kept), apart=apart)


def _apart(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Give every output a node of its own that its memory belongs to."""
    found: list[Node] = []
    narrow = ("bfloat16", "float16")
    for node in outputs:
        alone = isinstance(node, Scatter | Matmul) and node.dtype in narrow
        if isinstance(node, InputNode) or node in found or alone:
            node = Map(shape=node.shape, dtype=node.dtype, op="copy", args=(node,))
        found.append(node)
    return tuple(found)


def _kept(outputs: Sequence[Node], factors: bool, apart: bool) -> set[Node]:
    kept = set(outputs)
    for node in ordered(outputs):
        if isinstance(node, Fold | Scan | Scatter | Order | Matmul):
            kept.add(node)
        operands: tuple[Node, ...] = ()
        if isinstance(node, Matmul) and factors:
            operands = (node.left, node.right)
        if isinstance(node, Order):
            operands = (node.arg,)
        for operand in operands:
            base = stripped(operand, apart=apart and isinstance(node, Matmul))[0]
            if not isinstance(base, InputNode):
                kept.add(base)
    return kept


def stripped(node: Node, *, apart: bool = False) -> tuple[Node, Index]:
    """Return the node that is read where it lies in memory, and the index into it.

    `node` is a product's factor, or what is sorted. The walk goes down through casts that round
    nothing and through views, as long as each place of the index is even: a step along an axis of
    `node` always adds the same. The index is in the names of the axes of `node`: that of the node
    below a transpose of [rows, columns] is (#1, #0). The walk stops at the first node that computes
    something, at an index that a tensor holds, and at a place that is not even.

    With `apart`, a place need not be even: no term of it may depend on two of the last axis, the
    one before it, and the others. A product then reads through a table of places for each of both
    axes, as it does for a convolution's windows.
    """
    places: Index = axes_of(node.shape)
    names = {f"#{k}" for k in range(len(places))}

    def fits(place: Extent) -> bool:
        if apart and len(names) > 1:
            return _is_apart(place, names)
        return all(place.factor_of(name) is not None for name in names & place.names)

    while True:
        if isinstance(node, Map) and node.op in ("cast", "copy"):
            arg = node.args[0]  # a cast to bf16 rounds what a product reads; one from it does not
            if arg.dtype != node.dtype and (arg.dtype, node.dtype) != ("bfloat16", "float32"):
                break
            node = arg
        elif isinstance(node, View):
            moved = own_axes(places)
            own = [one.replace(moved) for one in node.places if isinstance(one, Extent)]
            if len(own) != len(node.places) or not all(map(fits, own)):
                break
            node, places = node.arg, tuple(own)
        else:
            break
    return node, places


def _is_apart(place: Extent, names: set[str]) -> bool:
    count = len(names)
    last = [{f"#{count - 1}"}, {f"#{count - 2}"}]
    groups = [*last, names - last[0] - last[1]]
    return all(sum(bool(one.names & group) for group in groups) <= 1 for one in place.parts)


def reads_of(
    node: Node, index: Index, kept: set[Node] | frozenset[Node]
) -> list[tuple[Node, Index]]:
    """Return the nodes with memory that a node reads, with their index; inputs as well.

    Names that begin with @ stand for an index that another tensor holds.
    """
    found: list[tuple[Node, Index]] = []
    seen: set[tuple[Node, Index]] = set()
    stack = list(_arguments(node, index))
    while stack:
        one, place = stack.pop()
        if (one, place) in seen:
            continue
        seen.add((one, place))
        if isinstance(one, InputNode) or one in kept:
            found.append((one, place))
        else:
            stack.extend(_arguments(one, place))
    return found


def _arguments(node: Node, index: Index) -> Iterator[tuple[Node, Index]]:
    if isinstance(node, Map):
        yield from ((one, index) for one in node.args)
    elif isinstance(node, Choice):
        yield node.arg, index
        yield node.other, index
    elif isinstance(node, View):
        own = own_axes(index)
        places: list[Extent] = []
        for place in node.places:
            if isinstance(place, Extent):
                places.append(place.replace(own))
            else:
                yield place, index
                places.append(named(f"@{id(place)}_{hash(index) & 0xFFFFFFFFFFFFFFF}"))
        yield node.arg, tuple(places)
    elif isinstance(node, Fold | Scan):
        yield node.arg, index
    else:
        for one in node.inputs:
            yield one, axes_of(one.shape)


def own_reads(node: Node, kept: set[Node] | frozenset[Node]) -> list[tuple[Node, Index]]:
    """Return the same, with indices in the names of what the node runs over."""
    return reads_of(node, axes_of(over_of(node)), kept)


def dense(shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the sizes other than 1."""
    return tuple(size for size in shape if size != ONE)


def dense_index(index: Sequence[Extent], shape: Sequence[Extent]) -> Index:
    """Return the places along the first dimensions other than 1, as many as `index` has."""
    return tuple(one for one, size in zip(index, shape, strict=False) if size != ONE)


def _stage_of(node: Node, number: int, parts: bool) -> Stage:
    if isinstance(node, Scatter | Order | Matmul):
        return Alone(node=node)
    nest = LoopNest(name=f"i{number}", sizes=dense(over_of(node)), takes_parts=parts)
    _admit(nest, node)
    return nest


def _joined(node: Node, stages: list[Stage], first: int, kept: set[Node]) -> int | None:
    """Add a node to the latest nest that can take it; return its place."""
    if isinstance(node, Scatter | Order | Matmul):
        return None
    for place in range(len(stages) - 1, first - 1, -1):
        stage = stages[place]
        if isinstance(stage, LoopNest) and _admit(stage, node, kept):
            return place
    return None


def _admit(nest: LoopNest, node: Node, kept: set[Node] | None = None) -> bool:
    before = nest.inner
    for role, inner in _roles(nest, node):
        nest.inner = inner
        if kept is None or _aligned(nest, node, role, kept):
            nest.members[node] = role
            return True
    nest.inner = before
    return False


def _roles(nest: LoopNest, node: Node) -> Iterator[tuple[Role, frozenset[int] | None]]:
    """Yield the roles that a node can have by its shape, with the inner axes that they need."""
    every = range(len(nest.sizes))
    if isinstance(node, Fold):
        if dense(node.arg.shape) != nest.sizes:
            return
        shape = node.arg.shape
        reduced = frozenset(_dense_place(shape, axis) for axis in node.axes if shape[axis] != ONE)
        if len(reduced) == len(nest.sizes):
            yield "whole fold", nest.inner
            return
        if nest.inner is not None:
            if reduced == nest.inner:
                yield "row fold", nest.inner
            elif reduced == frozenset(every) - nest.inner:
                yield "column fold", nest.inner
            return
        last = len(nest.sizes) - 1
        leading = reduced == frozenset(range(len(reduced)))
        if last not in reduced and leading:
            yield "column fold", frozenset(every) - reduced
        else:
            yield "row fold", reduced
        return
    sizes = dense(node.shape)
    if isinstance(node, Scan):
        axis = frozenset([_dense_place(node.shape, node.axis)])
        if sizes == nest.sizes and nest.inner in (None, axis) and node.shape[node.axis] != ONE:
            yield "scan", axis
        return
    if sizes == nest.sizes:
        yield "element", nest.inner
        return
    if nest.inner is not None and sizes == tuple(nest.sizes[k] for k in nest.axes("row")):
        yield "row", nest.inner
    grouped = nest.takes_parts and nest.inner == frozenset([len(nest.sizes) - 1])
    if grouped and _groups(nest.sizes, sizes):
        yield "part", nest.inner


def _groups(nest: Sequence[Extent], sizes: Sequence[Extent]) -> bool:
    """Return whether the nest's rows are groups of these sizes' last axis."""
    if len(nest) < 2 or len(sizes) != len(nest) - 1 or tuple(nest[:-2]) != tuple(sizes[:-1]):
        return False
    count, size, width = nest[-2], nest[-1], sizes[-1]
    return count * size == width or ((size.constant or 0) > 1 and (width - 1) // size + 1 == count)


def _dense_place(shape: Sequence[Extent], place: int) -> int:
    return sum(size != ONE for size in shape[:place])


def _aligned(nest: LoopNest, node: Node, role: Role, kept: set[Node]) -> bool:
    """Return whether a node reads members of the nest only where the same row has them."""
    for one, index in reads_of(node, place_over(nest, node, role), kept):
        own = nest.members.get(one)
        if own is None:
            continue
        if own in ("column fold", "whole fold") or (own == "part" and role != "part"):
            return False
        if index != nest.place(one.shape, own):
            return False
        if role == "row" and own in ("element", "scan"):
            return False
    return True


def place_over(nest: LoopNest, node: Node, role: Role) -> Index:
    """Return the index in the loop variables of what a member reads."""
    if isinstance(node, Fold):
        return nest.place_of(node.arg.shape, range(len(nest.sizes)))
    return nest.place(node.shape, role)


def passes_of(nest: LoopNest, kept: frozenset[Node]) -> dict[Node, int]:
    """Return for each member the pass over the row in which it can be computed."""
    found: dict[Node, int] = {}
    for node, role in nest.members.items():
        level = 0
        for one, _ in reads_of(node, place_over(nest, node, role), kept):
            if one in nest.members:
                later = 1 if nest.members[one] == "row fold" else 0
                if nest.members[one] == "scan" and role in ("scan", "part"):
                    later = 1
                level = max(level, found[one] + later)
        found[node] = level
    return found
