"""Building blocks of the form: maps with broadcasting and casts, views, folds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ratchet.write.form import (
    REALS,
    Choice,
    Constant,
    Fold,
    Map,
    Node,
    Number,
    Position,
    Shape,
    View,
    axes_of,
    axis,
)
from ratchet.write.form.extent import ONE, ZERO, Extent, flattened, product_of, unflattened
from ratchet.write.form.op_table import MAPS

CLASSES: Final = {
    "float64": "double",
    "int64": "int64_t",
    "int32": "int32_t",
    "int8": "int32_t",
    "uint8": "int32_t",
    "bool": "bool",
}
"""Types that values are computed in; `float` for all others."""
RANK: Final = ("bool", "int32_t", "int64_t", "float", "double")


def class_of(dtype: str) -> str:
    """Return the C type in which a dtype's values are computed."""
    return CLASSES.get(dtype, "float")


def wider(*dtypes: str) -> str:
    """Return the dtype whose class holds the others'."""
    return max(dtypes, key=lambda dtype: RANK.index(class_of(dtype)))


def constant(value: Number, dtype: str, shape: Shape = ()) -> Constant:
    if dtype in REALS:
        value = float(value)
    elif dtype == "bool":
        value = bool(value)
    elif math.isfinite(value):
        value = int(value)
    return Constant(shape=shape, dtype=dtype, value=value)


def position(value: Extent, shape: Shape = ()) -> Position:
    """Return a whole number that is known from the index and the sizes."""
    return Position(shape=shape, dtype="int64", value=value)


def cast(node: Node, dtype: str) -> Node:
    """Return a node in another dtype; nothing is rounded between reals before the end."""
    if node.dtype == dtype:
        return node
    if isinstance(node, Constant):
        return constant(node.value, dtype, node.shape)
    return Map(shape=node.shape, dtype=dtype, op="cast", args=(node,))


def expanded(node: Node, shape: Shape) -> Node:
    if node.shape == shape:
        return node
    if isinstance(node, Constant):
        return constant(node.value, node.dtype, shape)
    lead = len(shape) - len(node.shape)
    places = tuple(
        ZERO
        if own == ONE and shape[lead + place] != ONE
        else axis(lead + place, shape[lead + place])
        for place, own in enumerate(node.shape)
    )
    return View(shape=shape, dtype=node.dtype, arg=node, places=places)


def joint(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    found: list[Extent] = []
    for place in range(rank):
        sizes = [shape[place - rank] for shape in shapes if len(shape) >= rank - place]
        found.append(next((size for size in sizes if size != ONE), ONE))
    return tuple(found)


def mapped(op: str, *args: Node, dtype: str, inner: str | None = None) -> Node:
    """Return an operation element by element, of arguments broadcast and cast to `inner`."""
    assert len(args) == MAPS[op].arity, op
    shape = joint([one.shape for one in args])
    own = inner if inner is not None else dtype
    given = tuple(expanded(_same_class(one, own), shape) for one in args)
    return Map(shape=shape, dtype=dtype, op=op, args=given)


def chosen(condition: Node, left: Node, right: Node, dtype: str) -> Node:
    shape = joint([condition.shape, left.shape, right.shape])
    given = (
        expanded(cast(condition, "bool"), shape),
        expanded(_same_class(left, dtype), shape),
        expanded(_same_class(right, dtype), shape),
    )
    return Map(shape=shape, dtype=dtype, op="where", args=given)


def _same_class(node: Node, dtype: str) -> Node:
    return node if class_of(node.dtype) == class_of(dtype) else cast(node, dtype)


def viewed(arg: Node, shape: Shape, places: Sequence[Extent | Node]) -> Node:
    """Return elements of a node by an index map in the names of the result's axes."""
    if isinstance(arg, Constant):
        return constant(arg.value, arg.dtype, shape)
    return View(shape=shape, dtype=arg.dtype, arg=arg, places=tuple(places))


def reshaped(arg: Node, shape: Shape) -> Node:
    """Return the same elements, row by row, in another shape."""
    if arg.shape == shape:
        return arg
    old = [place for place, size in enumerate(arg.shape) if size != ONE]
    new = [place for place, size in enumerate(shape) if size != ONE]
    places: list[Extent] = [ZERO] * len(arg.shape)
    at_old = at_new = 0
    while at_old < len(old) and at_new < len(new):
        take, give = _group(
            [arg.shape[place] for place in old[at_old:]], [shape[place] for place in new[at_new:]]
        )
        mine, other = old[at_old : at_old + take], new[at_new : at_new + give]
        where = flattened(
            [axis(place, shape[place]) for place in other], [shape[place] for place in other]
        )
        for place, index in zip(
            mine, unflattened(where, tuple(arg.shape[place] for place in mine)), strict=True
        ):
            places[place] = index
        at_old, at_new = at_old + take, at_new + give
    return viewed(arg, shape, places)


def _group(old: list[Extent], new: list[Extent]) -> tuple[int, int]:
    """Return the fewest leading dimensions of both that hold equally many elements."""
    for total in range(2, len(old) + len(new) + 1):
        for take in range(max(1, total - len(new)), min(len(old), total - 1) + 1):
            if product_of(old[:take]) == product_of(new[: total - take]):
                return take, total - take
    return len(old), len(new)


def permuted(arg: Node, order: Sequence[int]) -> Node:
    shape = tuple(arg.shape[place] for place in order)
    places: list[Extent] = [ZERO] * len(order)
    for place, old in enumerate(order):
        places[old] = axis(place, shape[place])
    return viewed(arg, shape, places)


def swapped(arg: Node) -> Node:
    rank = len(arg.shape)
    return permuted(arg, [*range(rank - 2), rank - 1, rank - 2])


def sliced(arg: Node, dim: int, start: Extent, length: Extent, step: int = 1) -> Node:
    """Return every `step`-th element along a dimension, from `start`."""
    shape = (*arg.shape[:dim], length, *arg.shape[dim + 1 :])
    places = list(axes_of(shape))
    places[dim] = places[dim] * step + start
    return viewed(arg, shape, places)


def joined(parts: Sequence[Node], dim: int, dtype: str) -> Node:
    """Return nodes side by side along a dimension."""
    total = parts[0].shape[dim]
    for part in parts[1:]:
        total = total + part.shape[dim]
    shape = (*parts[0].shape[:dim], total, *parts[0].shape[dim + 1 :])
    start = total
    found: Node | None = None
    for part in reversed(parts):
        start = start - part.shape[dim]
        places = list(axes_of(shape))
        end = start + part.shape[dim]
        own = places[dim]
        places[dim] = own - start
        here = viewed(cast(part, dtype), shape, places)
        if found is None:
            found = here
        else:
            found = Choice(shape=shape, dtype=dtype, when=(end - 1 - own,), arg=here, other=found)
    assert found is not None
    return found


def padded(arg: Node, widths: Sequence[tuple[Extent, Extent]], value: Number) -> Node:
    """Return a node with `value` before and after each dimension; negative widths cut."""
    shape = tuple(
        before + size + after for size, (before, after) in zip(arg.shape, widths, strict=True)
    )
    places = list(axes_of(shape))
    when: list[Extent] = []
    for place, (before, after) in enumerate(widths):
        index = places[place] - before
        if before != ZERO:
            when.append(index)
        if after != ZERO:
            when.append(arg.shape[place] - 1 - index)
        places[place] = index
    here = viewed(arg, shape, places)
    if not when:
        return here
    rest = constant(value, arg.dtype, shape)
    return Choice(shape=shape, dtype=arg.dtype, when=tuple(when), arg=here, other=rest)


def folded(op: str, arg: Node, dims: Sequence[int], keep: bool, dtype: str) -> Node:
    """Return a reduction; `keep` leaves dimensions of size 1."""
    rank = len(arg.shape)
    axes = tuple(sorted(dim % rank for dim in dims)) if rank else ()
    if not axes:
        return cast(arg, dtype)
    shape = tuple(size for place, size in enumerate(arg.shape) if place not in axes)
    node: Node = Fold(shape=shape, dtype=dtype, op=op, arg=cast(arg, dtype), axes=axes)
    if keep:
        kept = tuple(ONE if place in axes else size for place, size in enumerate(arg.shape))
        node = reshaped(node, kept)
    return node


def mean_of(arg: Node, dims: Sequence[int], keep: bool, dtype: str, less: float = 0.0) -> Node:
    """Return the sum over the number of elements, less `less`."""
    rank = len(arg.shape)
    count = product_of(arg.shape[dim % rank] for dim in dims)
    total = folded("sum", cast(arg, _wide(dtype)), dims, keep, _wide(dtype))
    number: Node = cast(position(count), _wide(dtype))
    if less:
        number = mapped("sub", number, constant(less, _wide(dtype)), dtype=_wide(dtype))
    return cast(mapped("div", total, number, dtype=_wide(dtype)), dtype)


def _wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def first_of(arg: Node, dim: int, largest: bool) -> tuple[Node, Node]:
    """Return the largest (or smallest) value along a dimension and its first place, both kept.

    NaN counts as the largest and as the smallest, as in torch.
    """
    best = folded("max" if largest else "min", arg, [dim], True, arg.dtype)
    wide = expanded(best, arg.shape)
    same = mapped("eq", arg, wide, dtype="bool", inner=arg.dtype)
    if arg.dtype in REALS:
        lost = mapped("isnan", arg, dtype="bool", inner=arg.dtype)
        same = mapped("or", same, lost, dtype="bool")
    place = position(axes_of(arg.shape)[dim], arg.shape)
    none = position(arg.shape[dim], arg.shape)
    found = folded("min", chosen(same, place, none, "int64"), [dim], True, "int64")
    return best, found
