"""Lowerings of views, joins and pads: index maps that read nothing themselves."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.write.form.build import (
    cast,
    expanded,
    joined,
    padded,
    permuted,
    position,
    reshaped,
    sliced,
    viewed,
)
from ratchet.write.form.calls import LoweredCall, Value, lowers
from ratchet.write.form.extent import ONE, ZERO, Extent, larger, smaller, whole
from ratchet.write.form.form import Choice, Node, Number, axes_of


@lowers("view", "unsqueeze", "squeeze", "_reshape_copy")
def view(call: LoweredCall, x: Node, *_: Value) -> Node:
    """The same elements row by row in another shape."""
    if call.dtype != x.dtype:
        raise call.unsupported("of the bits in another dtype")
    return reshaped(x, call.shape)


@lowers("as_strided")
def as_strided(
    call: LoweredCall, x: Node, size: Value, stride: Value, storage_offset: Value = None
) -> Node:
    """Memory read at other strides: only what is a reshape of a contiguous tensor."""
    if storage_offset not in (None, 0) or not call.contiguous_throughout:
        raise call.unsupported("of other than contiguous memory")
    return reshaped(x, call.shape)


@lowers("permute")
def permute(call: LoweredCall, x: Node, order: Sequence[int]) -> Node:
    """Dimensions in another order."""
    return permuted(x, [place % len(x.shape) for place in order])


@lowers("expand")
def expand(call: LoweredCall, x: Node, *_: Value, **__: Value) -> Node:
    """Dimensions of size 1 repeated."""
    return expanded(x, call.shape)


@lowers("slice", "slice_copy")
def slice_(
    call: LoweredCall, x: Node, dim: int = 0, start: Value = None, end: Value = None, step: int = 1
) -> Node:
    """Every step-th element from `start`."""
    dim %= len(x.shape)
    return sliced(x, dim, _start(x, dim, start), call.shape[dim], step)


def _start(x: Node, dim: int, start: Value) -> Extent:
    if start is None:
        return ZERO
    first, size = whole(start), x.shape[dim]
    if first.constant is not None and first.constant < 0:
        first = larger(size + first, ZERO)
    return first if first == ZERO else smaller(first, size)


@lowers("select", "select_copy")
def select(call: LoweredCall, x: Node, dim: int, index: Value) -> Node:
    """One index of a dimension, which is dropped."""
    dim %= len(x.shape)
    chosen = whole(index)
    if chosen.constant is not None and chosen.constant < 0:
        chosen = x.shape[dim] + chosen
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    places = list(axes_of(shape))
    places.insert(dim, chosen)
    return viewed(x, shape, places)


@lowers("rev")
def flip(call: LoweredCall, x: Node, dims: Sequence[int]) -> Node:
    """Dimensions from back to front."""
    places = list(axes_of(x.shape))
    for dim in dims:
        place = dim % len(places)
        places[place] = x.shape[place] - 1 - places[place]
    return viewed(x, x.shape, places)


@lowers("cat")
def cat(call: LoweredCall, parts: Sequence[Node], dim: int = 0) -> Node:
    """Tensors side by side; empty one-dimensional ones are left out."""
    given = [one for one in parts if len(one.shape) == len(call.shape)]
    return joined(given, dim % len(call.shape), call.dtype)


@lowers("unbind")
def unbind(call: LoweredCall, x: Node, dim: int = 0) -> list[Node]:
    """Every index of a dimension."""
    return [select(call, x, dim, place) for place in range(call.count)]


@lowers("split", "split_with_sizes", "split_copy")
def split(call: LoweredCall, x: Node, sizes: Value, dim: int = 0) -> list[Node]:
    """Parts along a dimension."""
    dim %= len(x.shape)
    parts: list[Node] = []
    start = ZERO
    for place in range(call.count):
        length = call.part(place)[0][dim]
        parts.append(sliced(x, dim, start, length))
        start = start + length
    return parts


@lowers("constant_pad_nd")
def pad(call: LoweredCall, x: Node, widths: Sequence[Value], value: Number = 0) -> Node:
    """A number before and after the last dimensions."""
    rank = len(x.shape)
    sides = [(ZERO, ZERO)] * rank
    for place in range(len(widths) // 2):
        sides[rank - 1 - place] = (whole(widths[2 * place]), whole(widths[2 * place + 1]))
    return padded(x, sides, value)


@lowers("repeat")
def repeat(call: LoweredCall, x: Node, repeats: Sequence[Value]) -> Node:
    """Dimensions repeated."""
    shape = call.shape
    lead = len(shape) - len(x.shape)
    places = [
        ZERO if size == ONE else axes_of(shape)[lead + place] % size
        for place, size in enumerate(x.shape)
    ]
    return viewed(x, shape, places)


@lowers("diagonal")
def diagonal(call: LoweredCall, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """The diagonal of two dimensions, as the last one."""
    rank = len(x.shape)
    one, two = dim1 % rank, dim2 % rank
    own = list(axes_of(call.shape))
    along = own.pop()
    places: list[Extent] = []
    for place in range(rank):
        if place == one:
            places.append(along + max(0, -offset))
        elif place == two:
            places.append(along + max(0, offset))
        else:
            places.append(own.pop(0))
    return viewed(x, call.shape, places)


@lowers("slice_scatter")
def slice_scatter(
    call: LoweredCall,
    x: Node,
    source: Node,
    dim: int = 0,
    start: Value = None,
    end: Value = None,
    step: int = 1,
) -> Node:
    """x with `source` in a slice of it."""
    dim %= len(x.shape)
    if step != 1:
        raise call.unsupported("with a step")
    first = _start(x, dim, start)
    places = list(axes_of(x.shape))
    own = places[dim]
    places[dim] = own - first
    here = viewed(cast(source, x.dtype), x.shape, places)
    when: list[Extent] = [] if first == ZERO else [own - first]
    last = first + source.shape[dim]
    if last != x.shape[dim]:
        when.append(last - 1 - own)
    if not when:
        return here
    return Choice(shape=x.shape, dtype=x.dtype, when=tuple(when), arg=here, other=x)


@lowers("select_scatter")
def select_scatter(call: LoweredCall, x: Node, source: Node, dim: int, index: Value) -> Node:
    """x with `source` at one index of a dimension."""
    dim %= len(x.shape)
    start = whole(index)
    if start.constant is not None and start.constant < 0:
        start = x.shape[dim] + start
    grown = reshaped(source, (*source.shape[:dim], ONE, *source.shape[dim:]))
    return slice_scatter(call, x, grown, dim, start)


@lowers("iota")
def iota(call: LoweredCall, length: Value, *, start: Value, step: Value, **_: Value) -> Node:
    """Whole numbers in steps."""
    shape = call.shape
    value = axes_of(shape)[0] * whole(step) + whole(start)
    return cast(position(value, shape), call.dtype)
