"""Find nodes that must not move: tensors written in place, and regions without gradients."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node

_IN_PLACE_OPERATORS = frozenset(
    {
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.itruediv,
        operator.ifloordiv,
        operator.imod,
        operator.ipow,
        operator.iand,
        operator.ior,
        operator.ixor,
        operator.imatmul,
    }
)
_OPERATORS = frozenset({operator.and_, operator.or_, operator.not_})
_VIEWS = frozenset(
    {
        *("view", "reshape", "transpose", "permute", "expand", "expand_as", "unsqueeze", "squeeze"),
        *("flatten", "unflatten", "narrow", "select", "chunk", "split", "unbind", "getitem"),
        *("__getitem__", "t", "movedim", "swapaxes", "view_as", "detach", "contiguous", "to"),
        *("float", "bfloat16", "type_as", "dropout"),
    }
)
"""Calls whose result may share memory with their first argument."""


def root(node: Node) -> Node:
    """Return the node whose memory this one may share."""
    while node.args and isinstance(node.args[0], Node) and _may_alias(node):
        node = node.args[0]
    return node


def writers_of(graph: Graph) -> dict[Node, list[Node]]:
    """Return the nodes that write in place, by the root of what they write."""
    found: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for target in written_by(node):
            found.setdefault(root(target), []).append(node)
    return found


def earliest_reading(node: Node) -> Node | None:
    """Return the first node of the views and casts that end in `node`; None if it is neither.

    A pattern may look through them and read what they start from. A write in place ends them: what
    comes before it has other values.
    """
    found = None
    while (
        node.args
        and isinstance(node.args[0], Node)
        and _may_alias(node)
        and not any(True for _ in written_by(node))
    ):
        found, node = node, node.args[0]
    return found


def written_by(node: Node) -> Iterator[Node]:
    """Yield the nodes whose memory `node` writes."""
    if node.op == "call_method" and _in_place_name(str(node.target)):
        yield from _nodes(node.args[:1])
    elif node.op == "call_function":
        yield from _nodes([node.kwargs.get("out")])
        if _in_place_function(node):
            yield from _nodes(node.args[:1])
        elif isinstance(node.target, torch._ops.OpOverload):
            yield from _mutable_arguments(node, node.target)


def grad_regions(graph: Graph) -> dict[Node, int]:
    """Number the nodes; the number changes wherever the graph turns gradients on or off."""
    regions, region = {}, 0
    for node in graph.nodes:
        if node.op == "call_function" and _changes_grad_mode(node.target):
            region += 1
        regions[node] = region
    return regions


def _changes_grad_mode(target: object) -> bool:
    name = getattr(target, "__name__", "")
    return "set_grad_enabled" in name or "inference_mode" in name


def _may_alias(node: Node) -> bool:
    if node.op == "call_method":
        name = str(node.target)
        return name in _VIEWS or _in_place_name(name)
    if node.op != "call_function":
        return False
    if node.target in _IN_PLACE_OPERATORS:
        return True
    return getattr(node.target, "__name__", "") in _VIEWS


def _in_place_name(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"


def _in_place_function(node: Node) -> bool:
    target = node.target
    if target in _IN_PLACE_OPERATORS or target is operator.setitem:
        return True
    if target in _OPERATORS:
        return False  # the trailing underscore only avoids a Python keyword
    return _in_place_name(getattr(target, "__name__", "")) or _inplace_flag(node)


def _inplace_flag(node: Node) -> bool:
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    position = _inplace_position(node.target)
    return position is not None and len(node.args) > position and bool(node.args[position])


@cache
def _inplace_position(target: Any) -> int | None:
    if getattr(target, "__module__", "") != "torch.nn.functional":
        return None
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # a builtin without a signature has no such flag
        return None
    return names.index("inplace") if "inplace" in names else None


def _mutable_arguments(node: Node, overload: torch._ops.OpOverload) -> Iterator[Node]:
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.kwargs.get(argument.name)
            if given is None and position < len(node.args):
                given = node.args[position]
            yield from _nodes([given])


def _nodes(arguments: Iterable[object]) -> Iterator[Node]:
    for argument in arguments:
        if isinstance(argument, Node):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _nodes(argument)
