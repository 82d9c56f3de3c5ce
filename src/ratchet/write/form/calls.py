"""The common part of all lowerings: the table of ops, and an op of a graph as lowering sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, fx

from ratchet.write.form.build import cast, constant, expanded, position
from ratchet.write.form.extent import Extent, product_of, whole
from ratchet.write.form.form import Node, Shape, UnsupportedOp
from ratchet.write.form.tracing import SizeReader

Value = Any
"""A resolved argument: a Node, an Extent, a number, None, or a list of these."""
Lowerer = Callable[..., Value]
OPS: Final[dict[str, Lowerer]] = {}
"""Lowerings by ATen's name, with or without the overload: f(call, *args, **kwargs)."""
F = TypeVar("F", bound=Lowerer)


def lowers(*names: str) -> Callable[[F], F]:
    """Register a lowering of ATen ops."""

    def register(function: F) -> F:
        for name in names:
            OPS[name] = function
        return function

    return register


class LoweredCall:
    """One op of the graph as its lowering sees it: the shape and dtype that torch gave it."""

    def __init__(self, node: fx.Node, sizes: SizeReader) -> None:
        self.name = op_name(node)
        self._value: Any = node.meta.get("val")
        self._sizes = sizes
        self._given = [one.meta.get("val") for one in node.args if isinstance(one, fx.Node)]

    @property
    def contiguous_throughout(self) -> bool:
        """Return whether the first argument and the result are contiguous and as large."""
        both = (self._given[0], self._value)
        if not all(isinstance(one, Tensor) and one.is_contiguous() for one in both):
            return False
        first, second = (product_of(self._sizes.shape(one)) for one in both if one is not None)
        return first == second

    @property
    def shape(self) -> Shape:
        """Return the result's shape."""
        return self._sizes.shape(self._tensor())

    @property
    def dtype(self) -> str:
        """Return the result's dtype."""
        return name_of(self._tensor().dtype)

    @property
    def count(self) -> int:
        """Return the number of results."""
        return len(self._value)

    def part(self, place: int) -> tuple[Shape, str]:
        """Return shape and dtype of one of several results."""
        tensor = self._value[place]
        return self._sizes.shape(tensor), name_of(tensor.dtype)

    def unsupported(self, why: str = "") -> UnsupportedOp:
        """Return the error that names this op."""
        return UnsupportedOp(self.name, why)

    def _tensor(self) -> Tensor:
        if not isinstance(self._value, Tensor):
            raise self.unsupported("its result is no tensor")
        return self._value


def name_of(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype."""
    return str(dtype).removeprefix("torch.")


def op_name(node: fx.Node) -> str:
    """Return a name for an op, such as aten.add.Tensor."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", str(target))


def as_number(value: Value) -> Node:
    """Return a Python number, which may depend on sizes, as a node in float64."""
    if isinstance(value, Extent):
        known = value.constant
        if known is not None:
            return constant(known, "float64")
        return cast(position(value), "float64")
    if isinstance(value, Node):
        return cast(value, "float64")
    return constant(value, "float64")


def as_node(value: Value, dtype: str) -> Node:
    """Return a tensor or a Python number as a node; numbers take `dtype`."""
    if isinstance(value, Node):
        return value
    if isinstance(value, Extent):
        known = value.constant
        return constant(known, dtype) if known is not None else cast(position(value), dtype)
    return constant(value, dtype)


def sized(values: Sequence[Value]) -> tuple[Extent, ...]:
    """Return sizes as extents."""
    return tuple(whole(one) for one in values)


def known(call: LoweredCall, value: Value, what: str) -> int:
    """Return an extent's number; an UnsupportedOp if it depends on the sizes."""
    number = whole(value).constant
    if number is None:
        raise call.unsupported(f"{what} depends on the sizes")
    return number


def full_like(call: LoweredCall, node: Node) -> Node:
    """Return a node in the shape and dtype of the op's result."""
    return expanded(cast(node, call.dtype), call.shape)
