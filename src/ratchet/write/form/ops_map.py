"""Lowerings element by element: by a record of the table alone, or made of several."""

from __future__ import annotations

from ratchet.write.form.build import cast, chosen, constant, expanded, mapped, wider
from ratchet.write.form.calls import LoweredCall, Value, as_node, full_like, lowers
from ratchet.write.form.form import REALS, Node
from ratchet.write.form.op_table import MAP_OPS, MapOp


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
    """x where the condition holds, else y."""
    return chosen(condition, _operand(call, x), _operand(call, y), call.dtype)


@lowers("bitwise_not")
def negated(call: LoweredCall, x: Node) -> Node:
    """The opposite of a truth value."""
    if call.dtype != "bool":
        raise call.unsupported("of whole numbers")
    return mapped("not", x, dtype="bool")


@lowers("convert_element_type")
def to_dtype(call: LoweredCall, x: Node, *_: Value, **__: Value) -> Node:
    """Values in another dtype."""
    return cast(x, call.dtype)


@lowers("clone", "alias", "lift_fresh_copy", "lift_fresh")
def same(call: LoweredCall, x: Node, **_: Value) -> Node:
    """The same values."""
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
