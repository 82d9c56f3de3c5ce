"""Lowerings of reductions, scans and sorting."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.write.form.build import (
    cast,
    chosen,
    constant,
    first_of,
    folded,
    joined,
    mapped,
    mean_of,
    position,
    reshaped,
    viewed,
)
from ratchet.write.form.calls import LoweredCall, Value, known, lowers
from ratchet.write.form.extent import product_of
from ratchet.write.form.form import REALS, Node, Order, Scan, axes_of
from ratchet.write.form.op_table import FOLD_OPS, FoldOp
from ratchet.write.form.ops_map import truth

MOST_CHOSEN = 8
"""Largest k for which top-k is k searches for the largest value."""


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
    """The mean over dimensions."""
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
    """The variance and the mean over dimensions."""
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
