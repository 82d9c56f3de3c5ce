"""The loop-level form of a problem: what its kernels compute, before any choice of a schedule.

`forms_of` traces a problem's reference to core ATen and lowers it, op by op, to a graph of a few
kinds of nodes (`form`) over index maps (`extent`). Importing it does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

from ratchet.base.errors import RatchetError
from ratchet.write.form.extent import Extent, Name, named

# A `LoopForm` is a graph of few kinds of nodes. Index maps are `Extent`s in the names `#0`, `#1`,
# ... of the node's own dimensions (`axis`).

Shape = tuple[Extent, ...]
Number = float | int | bool

REALS: Final = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")


class UnsupportedOp(RatchetError):
    """An operation outside the generator's list, or used in a way that it does not take."""

    def __init__(self, op: str, why: str = "") -> None:
        self.op, self.why = op, why
        super().__init__(
            f"the generator has no {op}{f' ({why})' if why else ''}: let another author write this "
            "problem, or add the op (docs/design/generator.md)"
        )


def axis(place: int, size: Extent) -> Extent:
    return named(f"#{place}", size)


def axes_of(shape: Shape) -> Shape:
    return tuple(axis(place, size) for place, size in enumerate(shape))


def own_axes(index: Sequence[Extent]) -> dict[str, Extent]:
    """Return what a node's own dimensions are at an index, by their names."""
    return {f"#{place}": one for place, one in enumerate(index)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A tensor of the form; nodes are compared by identity."""

    shape: Shape
    dtype: str
    """torch's name. Reals are computed in float32 (float64 in float64) and rounded when stored."""

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """Return the nodes that it reads, in the order of its fields."""
        given = (getattr(self, one.name) for one in fields(self))
        parts = (part for one in given for part in (one if isinstance(one, tuple) else (one,)))
        return tuple(part for part in parts if isinstance(part, Node))


@dataclass(frozen=True, eq=False, kw_only=True)
class InputNode(Node):
    place: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Constant(Node):
    """One number everywhere."""

    value: Number


@dataclass(frozen=True, eq=False, kw_only=True)
class Position(Node):
    """A whole number computed from the index and the sizes."""

    value: Extent


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Node):
    """An operation element by element; every argument has the node's shape."""

    op: str  # A name of `MAPS` in `op_table.py`
    args: tuple[Node, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class View(Node):
    """Elements of another node by their index; a node as an index is read at the own index."""

    arg: Node
    places: tuple[Extent | Node, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice(Node):
    """`arg` where every extent of `when` is at least 0, else `other`, of the same shape."""

    when: tuple[Extent, ...]
    arg: Node
    other: Node


@dataclass(frozen=True, eq=False, kw_only=True)
class Fold(Node):
    """A reduction over some axes, which the result does not have."""

    op: str  # A name of `FOLDS` in `op_table.py`
    arg: Node
    axes: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Scan(Node):
    """A running sum, product or log of a sum of exponentials along an axis."""

    op: str  # A name of `FOLDS` in `op_table.py`
    arg: Node
    axis: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Scatter(Node):
    """`base` with elements of `source` added (or set) at `places`, by the source's index."""

    op: str  # add or set
    base: Node
    source: Node
    places: tuple[Extent | Node, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Order(Node):
    """Places of the elements in sorted order along the last axis; equal ones keep their order."""

    arg: Node
    descending: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Matmul(Node):
    """[..., M, K] times [..., K, N]; both have the same leading dimensions."""

    left: Node
    right: Node


@dataclass(frozen=True, kw_only=True)
class Tensor:
    dtype: str
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class LoopForm:
    """A problem's computation for one pattern of ranks, dtypes and scalars."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Node, ...]
    slots: tuple[int, ...]
    """For every output the tensor of the C interface that it goes to: an input, if in place."""
    scalars: tuple[float, ...]  # The scalars that the form was made for

    def nodes(self) -> list[Node]:
        return ordered(self.outputs)

    def named_sizes(self) -> dict[str, tuple[int, int, int]]:
        """Return (input, dimension, factor) by name: a size is the dimension's over the factor."""
        found: dict[str, tuple[int, int, int]] = {}
        for place, tensor in enumerate(self.inputs):
            for dim, size in enumerate(tensor.shape):
                for product, factor in size.terms if len(size.terms) == 1 else ():
                    if len(product) == 1 and isinstance(product[0], Name):
                        found.setdefault(product[0].name, (place, dim, factor))
        return found


def ordered(outputs: Iterable[Node]) -> list[Node]:
    """Return nodes and all that they read, arguments first."""
    found: dict[Node, None] = {}
    for output in outputs:
        stack: list[tuple[Node, bool]] = [(output, False)]
        while stack:
            node, ready = stack.pop()
            if node in found:
                continue
            if ready:
                found[node] = None
                continue
            stack.append((node, True))
            stack.extend((one, False) for one in node.inputs if one not in found)
    return list(found)


def over_of(node: Node) -> Shape:
    """Return the sizes that a node's computation runs over: for a reduction, its argument's."""
    return node.arg.shape if isinstance(node, Fold) else node.shape
