"""The canonical form of a region: its Python text and its key.

Nodes get their names and their order from the graph alone, so the same region of two layers, or of
two models, has the same text. A tensor that lies permuted in memory is an input as it lies there,
and the text permutes it; so are outputs.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import Argument, map_arg
from torch.utils import _pytree as pytree

from ratchet.train.graph.regions.cut import Cut, is_getitem

LEAST, MOST = 2, 3  # Sizes of the other batch; torch treats a size of one as a case of its own


class NotScaled(Exception):
    """A number of the graph differs between two batches, but not in proportion."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Two batch sizes, and each node's counterpart in the graph of the other one."""

    here: int = 1
    other: int = 1
    twins: Mapping[Node, Node] = field(default_factory=dict)

    def factor(self, here: int, other: int) -> int | None:
        """Return k if the numbers are k times the batch size; None if they are equal."""
        if here == other:
            return None
        if here % self.here == 0 and here // self.here * self.other == other:
            return here // self.here
        raise NotScaled

    def literal(self, here: Any, other: Any, batch: str) -> str:
        """Return Python text for a number at any batch size, which `batch` names."""
        if type(here) is not type(other):
            raise NotScaled
        if isinstance(here, bool) or not isinstance(here, (int, float)):
            if here != other:
                raise NotScaled
            return literal(here)
        if isinstance(here, int):
            times = self.factor(here, other)
            if times is None:
                return literal(here)
            return batch if times == 1 else f"{times} * {batch}"
        if here == other or (math.isnan(here) and math.isnan(other)):
            return literal(here)
        for ratio, form in ((here / self.here, "{} * {}"), (here * self.here, "{} / {}")):
            again = ratio * self.other if "*" in form else ratio / self.other
            if math.isclose(again, other, rel_tol=1e-9):
                return f"({form.format(literal(ratio), batch)})"
        raise NotScaled


def literal(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, (torch.dtype, torch.memory_format)):
        return str(value)
    return repr(value)


def aligned(here: Graph, other: Graph) -> dict[Node, Node]:
    """Return the counterparts of the nodes that have one, by name.

    Both partitions take their nodes from one joint graph, so names tell. A value that one of them
    saves the other may recompute.
    """
    theirs = {node.name: node for node in other.nodes}
    return {node: theirs[node.name] for node in here.nodes if node.name in theirs}


def same_call(one: Node, two: Node) -> bool:
    if one.op != two.op or one.target != two.target or len(one.args) != len(two.args):
        return False
    names = ([node.name for node in given.all_input_nodes] for given in (one, two))
    return next(names) == next(names)


def batch_size(batch: object) -> int:
    """Return the leading dimension that all tensors of a batch share; 0 if there is none."""
    tensors = [one for one in pytree.tree_leaves(batch) if isinstance(one, Tensor) and one.dim()]
    sizes = {one.shape[0] for one in tensors}
    return sizes.pop() if len(sizes) == 1 else 0


def other_size(size: int) -> int:
    """Return another batch size to trace with: small, and no factor of the first where possible."""
    if size > MOST:
        return MOST
    return LEAST if size != LEAST else MOST


def resized(batch: object, size: int) -> object:
    """Return a batch of another size: cut, or its rows repeated."""

    def take(tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor
        rows = torch.arange(size, device=tensor.device) % tensor.shape[0]
        return tensor.index_select(0, rows)

    return pytree.tree_map_only(Tensor, take, batch)


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """A tensor's place in memory, with what follows it up to the start of its next row."""

    order: tuple[int, ...]  # Dimensions from the outermost to the innermost
    outer: int = 0  # The first dimensions of `order`; the others make up a row, which a gap follows
    row: int = 0  # Elements from one row to the next; 0 if there are no gaps

    @property
    def is_dense(self) -> bool:
        """Return True for a tensor without gaps."""
        return not self.row

    def shape(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the memory of a tensor: its sizes in order, rows with their gaps."""
        lying = tuple(sizes[at] for at in self.order)
        return lying if self.is_dense else (*lying[: self.outer], self.row)


def memory_layout(shape: Sequence[int], stride: Sequence[int]) -> MemoryLayout | None:
    """Return how a tensor lies; None if it overlaps itself or has gaps in several places."""
    order = sorted(range(len(shape)), key=lambda at: (-stride[at] if shape[at] > 1 else 0, at))
    order = _with_units(order, shape)
    expected, outer, row = 1, 0, 0
    for place in reversed(range(len(order))):
        at = order[place]
        if shape[at] <= 1:
            continue
        if stride[at] != expected:
            if row or stride[at] < expected or expected == 1:
                return None
            outer, row = place + 1, stride[at]
            expected = stride[at]
        expected *= shape[at]
    return MemoryLayout(tuple(order), outer, row)


def _with_units(order: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the order with each dimension of size one after the one it follows."""
    found = [at for at in order if shape[at] > 1]
    for at in range(len(shape)):
        if shape[at] <= 1:
            place = found.index(at - 1) + 1 if at else 0
            found.insert(place, at)
    return found


REAL = "real"  # The text's name for float64, when the judge computes its oracle
BATCH = "batch"
SKIPPED = ("device", "layout", "pin_memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class InputForm:
    """One tensor that a region reads, as it lies in memory."""

    node: Node
    shape: tuple[int, ...]
    dtype: str
    factors: tuple[int | None, ...]  # Each size as a multiple of the batch size, or None


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionForm:
    key: str
    inputs: tuple[InputForm, ...]
    outputs: tuple[Node, ...]
    order: tuple[Node, ...]
    reference: str  # Text of `def reference(...)`, for any batch size if `scales`
    scales: bool


def form_of(cut: Cut, batches: Batches | None) -> RegionForm:
    """Return a cut's canonical form. `batches` tells which sizes follow the batch, if known."""
    order = _order(cut)
    inputs = _inputs_of(cut, order)
    plain = _Text(cut, order, inputs, None)
    text = plain.write()
    scaled = _scaled(cut, order, inputs, batches)
    written = _Text(cut, order, inputs, scaled)
    device = str(cut.outputs[0].meta["val"].device.type)
    content = [text, [[str(spec) for spec in _spec(node)] for node in inputs], device]
    return RegionForm(
        key=hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        inputs=tuple(written.form(node) for node in inputs),
        outputs=tuple(written.outputs),
        order=order,
        reference=written.write() if scaled else text,
        scales=scaled is not None,
    )


def _scaled(
    cut: Cut, order: Sequence[Node], inputs: Sequence[Node], batches: Batches | None
) -> Batches | None:
    """Return `batches` if the region can be written for any batch size and has one."""
    if batches is None or any(one not in batches.twins for one in (*cut.nodes, *cut.inputs)):
        return None
    if not all(same_call(node, batches.twins[node]) for node in cut.nodes):
        return None
    try:
        text = _Text(cut, order, inputs, batches)
        text.write()
    except NotScaled:
        return None
    return batches if text.source is not None else None


# Order


def _order(cut: Cut) -> tuple[Node, ...]:
    colours = _colours(cut)
    inside = set(cut.nodes)
    waiting = {node: sum(one in inside for one in node.all_input_nodes) for node in cut.nodes}
    places: dict[Node, int] = {}
    ready: list[tuple[str, tuple[int, ...], int, Node]] = []
    numbers = itertools.count()

    def push(node: Node) -> None:
        arguments = tuple(places.get(one, -1) for one in node.all_input_nodes)
        heapq.heappush(ready, (colours[node], arguments, next(numbers), node))

    for node in cut.nodes:
        if not waiting[node]:
            push(node)
    while ready:
        *_, node = heapq.heappop(ready)
        places[node] = len(places)
        for user in node.users:
            if user in waiting:
                waiting[user] -= 1
                if not waiting[user]:
                    push(user)
    return tuple(places)


def _colours(cut: Cut) -> dict[Node, str]:
    """Return a hash of each node's place in the region: what it is made of and who uses it."""
    nodes = [*cut.inputs, *cut.nodes]
    colours = {node: _own_colour(node, cut) for node in nodes}
    inside = set(cut.nodes)
    for turn in range(3):
        for node in reversed(nodes) if turn else ():
            users = [
                [colours[user], [place for place, one in enumerate(_leaves(user)) if one is node]]
                for user in node.users
                if user in inside
            ]
            colours[node] = _hash([colours[node], sorted(users, key=json.dumps)])
        for node in cut.nodes:
            colours[node] = _hash([colours[node], *(colours[one] for one in _leaves(node))])
    return colours


def _own_colour(node: Node, cut: Cut) -> str:
    if node in cut.inputs:
        return _hash(["input", *map(str, _spec(node))])
    skeleton = map_arg((node.args, _kwargs(node)), lambda _: "_")
    return _hash([_target(node), repr(skeleton), node in cut.outputs])


def _leaves(node: Node) -> list[Node]:
    """Return the nodes among the arguments, in order, repeated as often as they stand there."""
    found: list[Node] = []
    map_arg((node.args, _kwargs(node)), lambda one: found.append(one) or one)  # type: ignore[func-returns-value]
    return found


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _inputs_of(cut: Cut, order: Sequence[Node]) -> list[Node]:
    """Return the inputs in the order in which the text first uses them."""
    found: dict[Node, None] = {}
    for node in order:
        found.update((one, None) for one in _leaves(node) if one in cut.inputs)
    return list(found)


def _spec(node: Node) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    value = node.meta["val"]
    return tuple(value.shape), tuple(value.stride()), str(value.dtype).removeprefix("torch.")


def _target(node: Node) -> str:
    if is_getitem(node):
        return "getitem"
    target: Any = node.target
    name = target._schema.name.split("::")[1]
    name = "reshape" if name in ("view", "_unsafe_view") else name
    overload = target._overloadname if name != "reshape" else "default"
    return f"{target.namespace}.{name}.{overload}"


def _kwargs(node: Node) -> dict[str, Argument]:
    return {name: one for name, one in sorted(node.kwargs.items()) if name not in SKIPPED}


class _Text:
    """Writes the reference of a region."""

    def __init__(
        self, cut: Cut, order: Sequence[Node], inputs: Sequence[Node], batches: Batches | None
    ) -> None:
        self._order, self._inputs, self._batches = order, inputs, batches
        self._names = {node: f"a{place}" for place, node in enumerate(inputs)}
        self._names |= {node: f"t{place}" for place, node in enumerate(order)}
        self.outputs = [node for node in order if node in cut.outputs]
        self.source: str | None = None  # Text that computes the batch size
        self._real = any(one.meta["val"].dtype.is_floating_point for one in inputs)

    def form(self, node: Node) -> InputForm:
        shape, _, dtype = _spec(node)
        layout = memory_layout(*_spec(node)[:2])
        return InputForm(
            node=node,
            shape=_span(node) if layout is None else layout.shape(shape),
            dtype=dtype,
            factors=self._factors(node, layout),
        )

    def write(self) -> str:
        names = ", ".join([*(self._names[node] for node in self._inputs), "scalars"])
        body = [line for node in self._inputs for line in self._arrive(node)]
        body += [f"{self._names[node]} = {self._call(node)}" for node in self._order]
        returned = "".join(f"{self._leave(node)}, " for node in self.outputs)
        one = len(self.outputs) == 1
        body.append(f"return ({returned.rstrip() if one else returned.rstrip(', ')})")
        head = [f"{BATCH} = {self.source}"] if self.source else []
        uses = "\n".join(body)
        if f"{REAL} or" in uses:
            floating = next(
                self._names[one] for one in self._inputs if one.meta["val"].dtype.is_floating_point
            )
            head.append(f"{REAL} = torch.float64 if {floating}.dtype == torch.float64 else None")
        return "\n".join([f"def reference({names}):", *(f"    {line}" for line in [*head, *body])])

    # Tensors at the edges

    def _factors(self, node: Node, layout: MemoryLayout | None) -> tuple[int | None, ...]:
        """Return the sizes of an input's memory as multiples of the batch size."""
        shape, _, _ = spec = _spec(node)
        here = _span(node) if layout is None else layout.shape(shape)
        if self._batches is None:
            return (None,) * len(here)
        theirs = self._batches.twins[node]
        their_shape, their_stride, _ = their_spec = _spec(theirs)
        if layout is None:
            if their_spec != spec:
                raise NotScaled
            return (None,)
        if memory_layout(their_shape, their_stride) != layout:
            raise NotScaled
        return tuple(map(self._batches.factor, here, layout.shape(their_shape)))

    def _arrive(self, node: Node) -> list[str]:
        """Return the lines that give an input its shape and find the batch size."""
        name, layout = self._names[node], memory_layout(*_spec(node)[:2])
        for place, times in enumerate(self._factors(node, layout)):
            if times is not None and self.source is None:
                self.source = f"{name}.shape[{place}]" + (f" // {times}" if times > 1 else "")
        if layout is None:
            shape, stride, _ = _spec(node)
            return [f"{name} = aten.as_strided.default({name}, {list(shape)}, {list(stride)})"]
        lines = [] if layout.is_dense else self._rows(node, layout)
        back = [layout.order.index(at) for at in range(len(layout.order))]
        if back != sorted(back):
            lines.append(f"{name} = aten.permute.default({name}, {back})")
        return lines

    def _rows(self, node: Node, layout: MemoryLayout) -> list[str]:
        """Return the lines that cut the gaps off an input's rows and give it its dimensions."""
        name, shape = self._names[node], _spec(node)[0]
        inner = [shape[at] for at in layout.order[layout.outer :]]
        lines = [f"{name} = aten.slice.Tensor({name}, {layout.outer}, 0, {math.prod(inner)})"]
        if len(inner) == 1:
            return lines
        twin = self._batches.twins[node] if self._batches else node
        sizes = [(shape[at], _spec(twin)[0][at]) for at in layout.order]
        shown = ", ".join(self._value(*both) for both in sizes)
        return [*lines, f"{name} = aten.reshape.default({name}, [{shown}])"]

    def _leave(self, node: Node) -> str:
        name, layout = self._names[node], memory_layout(*_spec(node)[:2])
        if layout is None or not layout.is_dense or list(layout.order) == sorted(layout.order):
            return name
        return f"aten.permute.default({name}, {list(layout.order)})"

    # Operations

    def _call(self, node: Node) -> str:
        if is_getitem(node):
            return f"{self._names[node.args[0]]}[{node.args[1]}]"  # type: ignore[index]
        twin = self._batches.twins[node] if self._batches else node
        target = _target(node)
        if target == "prims.convert_element_type.default":
            return f"{self._value(node.args[0], None)}.to({self._dtype(node.args[1])})"
        if target == "prims.iota.default":
            return self._counting(node, twin)
        args = [self._value(*both) for both in zip(node.args, twin.args, strict=True)]
        theirs = _kwargs(twin)
        for name, one in _kwargs(node).items():
            if one is not None:
                args.append(f"{name}={self._value(one, theirs.get(name))}")
        if "device" in node.kwargs:
            args.append(f"device={self._device(node)}")
        return f"{target}({', '.join(args)})"

    def _counting(self, node: Node, twin: Node) -> str:
        """Return text for start, start + step, ... of some length."""
        length = self._value(node.args[0], twin.args[0])
        start, step = (self._value(node.kwargs[k], twin.kwargs[k]) for k in ("start", "step"))
        rest = f"dtype={self._dtype(node.kwargs['dtype'])}, device={self._device(node)}"
        if (start, step) == ("0", "1"):
            return f"aten.arange.default({length}, {rest})"
        end = f"{start} + {step} * {length}"
        return f"aten.arange.start_step({start}, {end}, {step}, {rest})"

    def _device(self, node: Node) -> str:
        first = f"{self._names[self._inputs[0]]}.device" if self._inputs else ""
        return first or repr(str(node.kwargs["device"]))

    def _value(self, one: object, other: object) -> str:
        if isinstance(one, Node):
            return self._names[one]
        if isinstance(one, (list, tuple)):
            others = other if isinstance(other, (list, tuple)) else one
            if len(others) != len(one):
                raise NotScaled
            return f"[{', '.join(map(self._value, one, others))}]"
        if isinstance(one, torch.dtype):
            return self._dtype(one)
        if self._batches is None or other is None:
            return literal(one)
        return self._batches.literal(one, other, BATCH)

    def _dtype(self, dtype: Argument) -> str:
        if self._real and isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            return f"{REAL} or {dtype}"
        return str(dtype)


def _span(node: Node) -> tuple[int, ...]:
    shape, stride, _ = _spec(node)
    return (1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)),)
