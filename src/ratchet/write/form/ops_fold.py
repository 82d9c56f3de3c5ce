"""Lowerings of reductions, scans, sorting, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.write.form import REALS, Node, Order, Scan, Scatter, Shape, View, axes_of
from ratchet.write.form.build import (
    cast,
    chosen,
    constant,
    expanded,
    first_of,
    folded,
    joined,
    joint,
    mapped,
    mean_of,
    position,
    reshaped,
    viewed,
)
from ratchet.write.form.extent import Extent, product_of, whole
from ratchet.write.form.op_table import FOLD_OPS, FoldOp
from ratchet.write.form.ops_map import truth
from ratchet.write.form.tracing import LoweredCall, Value, as_node, known, lowers

MOST_CHOSEN = 8  # Largest k for which top-k is k searches for the largest value


def _dims(x: Node, dims: Value) -> list[int]:
    if dims is None or dims == []:
        return list(range(len(x.shape)))
    return [dims] if isinstance(dims, int) else list(dims)


def _by_record(op: FoldOp) -> None:
    @lowers(*op.aten)
    def run(
        call: LoweredCall,
        x: Node,
        dims: Value = None,
        keepdim: bool = False,
        dtype: str | None = None,
    ) -> Node:
        given, own = (truth(x), "bool") if op.of_truths else (x, call.dtype)
        return cast(folded(op.name, given, _dims(x, dims), keepdim, own), call.dtype)

    @lowers(*op.scans)
    def run_along(call: LoweredCall, x: Node, dim: int, dtype: str | None = None) -> Node:
        given = cast(x, call.dtype)
        if not x.shape:
            return given
        axis = dim % len(x.shape)
        return Scan(shape=x.shape, dtype=call.dtype, op=op.name, arg=given, axis=axis)


for _op in FOLD_OPS:
    _by_record(_op)


@lowers("mean")
def mean(
    call: LoweredCall, x: Node, dims: Value = None, keepdim: bool = False, dtype: str | None = None
) -> Node:
    return mean_of(x, _dims(x, dims), keepdim, call.dtype)


@lowers("max", "min")
def best(call: LoweredCall, x: Node, dim: int | None = None, keepdim: bool = False) -> Value:
    """The largest or smallest value, and its place along a dimension."""
    largest = call.name.startswith("aten.max")
    if dim is None:
        return folded("max" if largest else "min", x, _dims(x, None), False, call.dtype)
    return [
        reshaped(one, call.part(place)[0]) for place, one in enumerate(first_of(x, dim, largest))
    ]


@lowers("argmax", "argmin")
def place_of_best(
    call: LoweredCall, x: Node, dim: int | None = None, keepdim: bool = False
) -> Node:
    """The first place of the largest or smallest value."""
    if dim is None:
        x, dim = reshaped(x, (product_of(x.shape),)), 0
    return reshaped(first_of(x, dim, call.name.startswith("aten.argmax"))[1], call.shape)


@lowers("var")
def variance(
    call: LoweredCall,
    x: Node,
    dims: Value = None,
    *,
    correction: Value = None,
    keepdim: bool = False,
) -> Node:
    """The variance over dimensions, in two passes."""
    return variance_and_mean(x, _dims(x, dims), correction, keepdim, call.dtype)[0]


@lowers("var_mean")
def var_mean(
    call: LoweredCall,
    x: Node,
    dims: Value = None,
    *,
    correction: Value = None,
    keepdim: bool = False,
) -> list[Node]:
    return list(variance_and_mean(x, _dims(x, dims), correction, keepdim, call.part(0)[1]))


def variance_and_mean(
    x: Node, dims: Sequence[int], correction: Value, keep: bool, dtype: str
) -> tuple[Node, Node]:
    """Return both; the squares are of differences to the mean."""
    middle = mean_of(x, dims, True, dtype)
    off = mapped("sub", x, middle, dtype=dtype)
    squared = mapped("square", off, dtype=dtype)
    less = 1.0 if correction is None else float(correction)
    spread = mean_of(squared, dims, keep, dtype, less)
    return spread, middle if keep else reshaped(middle, spread.shape)


@lowers("topk")
def top_k(
    call: LoweredCall, x: Node, k: Value, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Node]:
    """The k largest values and their places, for small k."""
    count, dim = known(call, k, "k"), dim % len(x.shape)
    if count > MOST_CHOSEN or not largest or x.dtype not in REALS:
        raise call.unsupported(f"of {count} values")
    own = axes_of(x.shape)[dim]
    rest, values, places = x, [], []
    for turn in range(count):
        value, place = first_of(rest, dim, True)
        values.append(value)
        places.append(place)
        if turn + 1 < count:
            taken = mapped("eq", position(own, x.shape), place, dtype="bool", inner="int64")
            low = constant(float("-inf"), x.dtype, x.shape)
            rest = chosen(taken, low, rest, x.dtype)
    if count == 1:
        return [values[0], places[0]]
    return [joined(values, dim, x.dtype), joined(places, dim, "int64")]


@lowers("sort")
def sort(
    call: LoweredCall,
    x: Node,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
) -> list[Node]:
    """Values in order and their places; equal ones keep their order."""
    if dim % len(x.shape) != len(x.shape) - 1:
        raise call.unsupported("along another dimension than the last")
    places = Order(shape=x.shape, dtype="int64", arg=x, descending=descending)
    index = axes_of(x.shape)
    return [viewed(x, x.shape, (*index[:-1], places)), places]


Place = Extent | Node


def from_front(index: Node, size: Extent) -> Node:
    """Return an index that counts from the end when it is below 0, from the front."""
    zero = constant(0, "int64")
    below = mapped("lt", index, zero, dtype="bool", inner="int64")
    moved = mapped("add", index, position(size), dtype="int64")
    return chosen(below, moved, cast(index, "int64"), "int64")


@lowers("embedding")
def embedding(call: LoweredCall, table: Node, indices: Node, *_: Value, **__: Value) -> Node:
    shape = call.shape
    own = axes_of(shape)
    wide = viewed(cast(indices, "int64"), shape, own[:-1])
    return View(shape=shape, dtype=table.dtype, arg=table, places=(wide, own[-1]))


@lowers("gather")
def gather(call: LoweredCall, x: Node, dim: int, indices: Node, sparse_grad: bool = False) -> Node:
    if not x.shape:
        return x
    places: list[Place] = list(axes_of(call.shape))
    places[dim % len(x.shape)] = cast(indices, "int64")
    return View(shape=call.shape, dtype=x.dtype, arg=x, places=tuple(places))


@lowers("index", "_unsafe_index")
def index(call: LoweredCall, x: Node, indices: Sequence[Node | None]) -> Node:
    """Elements by index tensors, which broadcast against each other."""
    places = indexed(call, x.shape, indices, call.shape)
    return View(shape=call.shape, dtype=x.dtype, arg=x, places=places)


def indexed(
    call: LoweredCall, shape: Shape, indices: Sequence[Node | None], result: Shape
) -> tuple[Place, ...]:
    """Return the places in a tensor of `shape` for each element of the result."""
    if any(one is not None and one.dtype == "bool" for one in indices):
        raise call.unsupported("by a mask")
    common, start = _broadcast(indices)
    own = axes_of(result)
    among = own[start : start + len(common)]
    rest = [one for one in own if one not in among] if among else list(own)
    places: list[Place] = []
    for place in range(len(shape)):
        one = indices[place] if place < len(indices) else None
        if one is None:
            places.append(rest.pop(0))
            continue
        wide = expanded(from_front(one, shape[place]), common)
        places.append(viewed(wide, result, among))
    return tuple(places)


def _broadcast(indices: Sequence[Node | None]) -> tuple[Shape, int]:
    """Return the shape that index tensors broadcast to, and its first dimension in the result."""
    given = [place for place, one in enumerate(indices) if one is not None]
    together = given == list(range(given[0], given[-1] + 1))
    common = joint([one.shape for one in indices if one is not None])
    return common, given[0] if together else 0


@lowers("index_put")
def index_put(
    call: LoweredCall,
    x: Node,
    indices: Sequence[Node | None],
    values: Node,
    accumulate: bool = False,
) -> Node:
    common, start = _broadcast(indices)
    given = {place for place, one in enumerate(indices) if one is not None}
    free = [size for place, size in enumerate(x.shape) if place not in given]
    shape = (*free[:start], *common, *free[start:])
    places = indexed(call, x.shape, indices, shape)
    source = expanded(cast(values, x.dtype), shape)
    op = "add" if accumulate else "set"
    return Scatter(shape=x.shape, dtype=x.dtype, op=op, base=x, source=source, places=places)


@lowers("_unsafe_masked_index_put_accumulate")
def masked_index_put(
    call: LoweredCall, x: Node, mask: Node, indices: Sequence[Node | None], values: Node
) -> Node:
    """x with values added at places where a mask holds, as embeddings' gradients do it."""
    none = constant(0.0, values.dtype)
    return index_put(call, x, indices, chosen(mask, values, none, values.dtype), True)


@lowers("index_add")
def index_add(
    call: LoweredCall, x: Node, dim: int, indices: Node, source: Node, *, alpha: Value = 1
) -> Node:
    """x with slices of `source` added at the indices of a dimension."""
    dim %= len(x.shape)
    places: list[Place] = list(axes_of(source.shape))
    places[dim] = viewed(cast(indices, "int64"), source.shape, [axes_of(source.shape)[dim]])
    given = cast(source, x.dtype)
    if alpha != 1:
        given = mapped("mul", given, as_node(alpha, x.dtype), dtype=x.dtype)
    return Scatter(
        shape=x.shape, dtype=x.dtype, op="add", base=x, source=given, places=tuple(places)
    )


@lowers("scatter_add", "scatter")
def scatter(
    call: LoweredCall, x: Node, dim: int, indices: Node, source: Value, **more: Value
) -> Node:
    """x with elements added or set along a dimension, by an index each."""
    if more.get("reduce") is not None:
        raise call.unsupported("with a reduction")
    dim %= len(x.shape)
    places: list[Place] = list(axes_of(indices.shape))
    places[dim] = cast(indices, "int64")
    given = as_node(source, x.dtype)
    values = given if given.shape else expanded(given, indices.shape)
    if values.shape != indices.shape:
        values = viewed(values, indices.shape, axes_of(indices.shape))
    op = "add" if call.name.startswith("aten.scatter_add") else "set"
    return Scatter(
        shape=x.shape,
        dtype=x.dtype,
        op=op,
        base=x,
        source=cast(values, x.dtype),
        places=tuple(places),
    )


@lowers("embedding_dense_backward")
def embedding_backward(
    call: LoweredCall, grad: Node, indices: Node, words: Value, padding: Value, by_frequency: bool
) -> Node:
    """Rows of a gradient added up by word."""
    if by_frequency or known(call, padding, "the padding word") >= 0:
        raise call.unsupported("with a padding word or by frequency")
    own = axes_of(grad.shape)
    wide = viewed(cast(indices, "int64"), grad.shape, own[:-1])
    base = constant(0.0, grad.dtype, call.shape)
    return Scatter(
        shape=call.shape,
        dtype=grad.dtype,
        op="add",
        base=base,
        source=grad,
        places=(wide, own[-1]),
    )


@lowers("bincount")
def bincount(call: LoweredCall, x: Node, weights: Node | None = None, minlength: Value = 0) -> Node:
    """The number of each whole number below `minlength`; larger ones are an error in torch."""
    if weights is not None:
        raise call.unsupported("with weights")
    shape = (whole(minlength),)
    base = constant(0, "int64", shape)
    ones = constant(1, "int64", x.shape)
    return Scatter(
        shape=shape, dtype="int64", op="add", base=base, source=ones, places=(cast(x, "int64"),)
    )
