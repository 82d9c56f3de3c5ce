"""Find the numbers of a graph that follow the batch size: one graph, traced with two batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

LEAST, MOST = 2, 3
"""Sizes of the other batch; torch treats a size of one as a case of its own."""


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
            return literal(here) if times is None else _product(times, batch)
        if here == other or (math.isnan(here) and math.isnan(other)):
            return literal(here)
        for ratio, form in ((here / self.here, "{} * {}"), (here * self.here, "{} / {}")):
            again = ratio * self.other if "*" in form else ratio / self.other
            if math.isclose(again, other, rel_tol=1e-9):
                return f"({form.format(literal(ratio), batch)})"
        raise NotScaled


def _product(times: int, batch: str) -> str:
    return batch if times == 1 else f"{times} * {batch}"


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
    """Return True if two nodes call the same operation on nodes of the same names."""
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

    order: tuple[int, ...]
    """Dimensions from the outermost to the innermost."""
    outer: int = 0
    """The first dimensions of `order`; the others make up a row, which a gap follows."""
    row: int = 0
    """Elements from one row to the next; 0 if there are no gaps."""

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
