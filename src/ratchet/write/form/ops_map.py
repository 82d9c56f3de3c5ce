"""Lowerings element by element, and of views, joins and pads: index maps that read nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.write.form import REALS, Choice, Node, Number, axes_of
from ratchet.write.form.build import (
    cast,
    chosen,
    constant,
    expanded,
    joined,
    mapped,
    padded,
    permuted,
    position,
    reshaped,
    sliced,
    viewed,
    wider,
)
from ratchet.write.form.extent import ONE, ZERO, Extent, larger, smaller, whole
from ratchet.write.form.op_table import MAP_OPS, MapOp
from ratchet.write.form.tracing import LoweredCall, Value, as_node, full_like, lowers


def _by_record(op: MapOp) -> None:
    @lowers(*op.aten_names)
    def run(call: LoweredCall, *args: Value) -> Value:
        if len(args) != op.arity:
            raise TypeError(f"{len(args)} of them")
        if op.is_test:
            inner = _common(*args)
            if op.of_whole == "false" and inner not in REALS:
                return constant(False, "bool", args[0].shape)
            given = [as_node(one, inner) for one in args]
            return mapped(op.name, *given, dtype="bool", inner=inner)
        if op.of_whole == "same" and args[0].dtype not in REALS:
            return args[0]
        return mapped(op.name, *(_operand(call, one) for one in args), dtype=call.dtype)

    @lowers(*op.logical)
    def run_logical(call: LoweredCall, *args: Node) -> Node:
        return mapped(op.name, *map(truth, args), dtype="bool")


for _op in MAP_OPS:
    _by_record(_op)


def truth(node: Node) -> Node:
    """Return whether values are not 0."""
    return cast(node, "bool")


def _operand(call: LoweredCall, value: Value) -> Node:
    return as_node(value, call.dtype)


def _common(*args: Value) -> str:
    """Return the dtype in which values are compared; a tensor's dtype rules a number's."""
    tensors = [one.dtype for one in args if isinstance(one, Node)]
    real = [one for one in args if isinstance(one, float)]
    if len(tensors) == 1 and real and tensors[0] not in REALS:
        return "float32"
    return wider(*tensors)


@lowers("add", "sub")
def add(call: LoweredCall, x: Value, y: Value, alpha: Value = 1) -> Node:
    """x + alpha y, or x - alpha y."""
    left, right = _operand(call, x), _operand(call, y)
    if alpha != 1:
        right = mapped("mul", right, as_node(alpha, call.dtype), dtype=call.dtype)
    op = "add" if call.name.startswith("aten.add") else "sub"
    if call.dtype == "bool" and op == "add":
        op = "or"
    return mapped(op, left, right, dtype=call.dtype)


@lowers("div")
def divide(call: LoweredCall, x: Value, y: Value, rounding_mode: str | None = None) -> Node:
    """x / y, rounded down or to 0."""
    left, right = _operand(call, x), _operand(call, y)
    if rounding_mode is None:
        return mapped("div", left, right, dtype=call.dtype)
    if call.dtype not in REALS:
        op = "floor_div" if rounding_mode == "floor" else "trunc_div"
        return mapped(op, left, right, dtype=call.dtype)
    whole = "floor" if rounding_mode == "floor" else "trunc"
    return mapped(whole, mapped("div", left, right, dtype=call.dtype), dtype=call.dtype)


@lowers("pow")
def power(call: LoweredCall, x: Value, y: Value) -> Node:
    """x to the power of y; small whole powers are products."""
    if isinstance(y, int | float) and float(y) in (0.5, -0.5, -1.0, 1.0, 2.0, 3.0, 4.0):
        base = cast(_operand(call, x), call.dtype)
        return _small_power(base, float(y), call.dtype)
    return mapped("pow", _operand(call, x), _operand(call, y), dtype=call.dtype)


def _small_power(x: Node, power: float, dtype: str) -> Node:
    named = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 2.0: "square"}
    if power == 1.0:
        return x
    if power in named:
        return mapped(named[power], x, dtype=dtype)
    squared = mapped("square", x, dtype=dtype)
    return mapped("mul", squared, x if power == 3.0 else squared, dtype=dtype)


@lowers("where")
def where(call: LoweredCall, condition: Node, x: Value, y: Value) -> Node:
    return chosen(condition, _operand(call, x), _operand(call, y), call.dtype)


@lowers("bitwise_not")
def negated(call: LoweredCall, x: Node) -> Node:
    if call.dtype != "bool":
        raise call.unsupported("of whole numbers")
    return mapped("not", x, dtype="bool")


@lowers("convert_element_type")
def to_dtype(call: LoweredCall, x: Node, *_: Value, **__: Value) -> Node:
    return cast(x, call.dtype)


@lowers("clone", "alias", "lift_fresh_copy", "lift_fresh")
def same(call: LoweredCall, x: Node, **_: Value) -> Node:
    return x


@lowers("copy", "copy_")
def copy(call: LoweredCall, to: Node, x: Node, non_blocking: bool = False) -> Node:
    """The values of x in the form of `to`."""
    return full_like(call, x)


@lowers("_assert_async", "_assert_scalar", "_assert_tensor_metadata")
def assertion(call: LoweredCall, *_: Value, **__: Value) -> None:
    """Nothing: what torch asserts of the values holds for a problem's inputs."""


@lowers("addcmul", "addcdiv")
def add_product(call: LoweredCall, x: Node, y: Node, z: Node, value: Value = 1) -> Node:
    """x + value y z, or x + value y / z."""
    op = "mul" if call.name.startswith("aten.addcmul") else "div"
    product = mapped(op, y, z, dtype=call.dtype)
    return mapped(
        "add",
        x,
        mapped("mul", product, as_node(value, call.dtype), dtype=call.dtype),
        dtype=call.dtype,
    )


@lowers("empty", "empty_strided", "new_empty_strided")
def empty(call: LoweredCall, *_: Value, **__: Value) -> Node:
    """A tensor whose values are set later."""
    return constant(0, call.dtype, call.shape)


@lowers("full", "scalar_tensor")
def full(call: LoweredCall, *args: Value, **_: Value) -> Node:
    """One number, the last argument, everywhere."""
    return expanded(cast(as_node(args[-1], call.dtype), call.dtype), call.shape)


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
    return permuted(x, [place % len(x.shape) for place in order])


@lowers("expand")
def expand(call: LoweredCall, x: Node, *_: Value, **__: Value) -> Node:
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
    first, size = _from_front(start, x.shape[dim]), x.shape[dim]
    if first != whole(start):
        first = larger(first, ZERO)
    return first if first == ZERO else smaller(first, size)


def _from_front(index: Value, size: Extent) -> Extent:
    """Return an index that counts from the end when it is a number below 0, from the front."""
    place = whole(index)
    return size + place if (place.constant or 0) < 0 else place


@lowers("select", "select_copy")
def select(call: LoweredCall, x: Node, dim: int, index: Value) -> Node:
    """One index of a dimension, which is dropped."""
    dim %= len(x.shape)
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    places = list(axes_of(shape))
    places.insert(dim, _from_front(index, x.shape[dim]))
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
    return [select(call, x, dim, place) for place in range(call.count)]


@lowers("split", "split_with_sizes", "split_copy")
def split(call: LoweredCall, x: Node, sizes: Value, dim: int = 0) -> list[Node]:
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
    grown = reshaped(source, (*source.shape[:dim], ONE, *source.shape[dim:]))
    return slice_scatter(call, x, grown, dim, _from_front(index, x.shape[dim]))


@lowers("iota")
def iota(call: LoweredCall, length: Value, *, start: Value, step: Value, **_: Value) -> Node:
    shape = call.shape
    value = axes_of(shape)[0] * whole(step) + whole(start)
    return cast(position(value, shape), call.dtype)
